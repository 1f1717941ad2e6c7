"""Whatever stands in a file, the reader answers with trees or with an error of ours that has a line (A8)."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.spec import KEYWORDS
from headway.errors import HeadwayError
from headway.treefile import load
from headway.treefile.drawing import dot, mermaid, plan_json, text

PIECES = st.sampled_from(
    [
        "a:",
        "b:",
        "task:",
        "command: x",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "<<: ",
        "|",
        ">",
        "'",
        '"',
        "${p}",
        "!!str ",
        "\n",
        "\n  ",
        "\n    ",
        "\t",
        ": ",
        ",",
        "? ",
        "--- ",
        "%YAML 1.1",
        "#",
        "\\",
        "after: a",
        "sequence:",
        "0",
        "~",
        "é",
        "\ufeff",
    ]
)
WORDS = st.one_of(st.sampled_from(sorted(KEYWORDS)), st.sampled_from(["a", "b", "c", "task"]))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), WORDS, st.sampled_from(["1h", "./x.sh"])
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4), max_leaves=12)


def read(source: str) -> None:
    refused: HeadwayError | None = None
    try:
        trees = load(source)
    except HeadwayError as error:
        refused, trees = error, []
    assert refused is None or (refused.extra["line"] >= 1 and refused.extra["column"] >= 1)
    for tree in trees:
        assert text(tree)
        assert mermaid([tree])
        assert dot(tree)
        assert all(msgspec.json.encode(task.spec) for task in tree.tasks)
    assert bool(plan_json(trees)["trees"]) == (refused is None)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=25).map("".join))
def test_pieces_of_yaml_in_any_order(source: str) -> None:
    read(source)


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_any_text(source: str) -> None:
    read(source)


@settings(max_examples=300)
@given(st.dictionaries(WORDS, VALUES, min_size=1, max_size=4))
def test_well_formed_files_of_any_shape(value: dict[str, Any]) -> None:
    read(msgspec.json.encode(value).decode())
