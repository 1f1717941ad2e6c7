"""Two readers of YAML, one of them 30 times as fast: where both take a text, they see the same in it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml.error import YAMLError

from headway.errors import InvalidInput
from headway.treefile import elements, load, yaml_events
from headway.treefile.document import Node, _Composer

WRITTEN = "a: ,b: ,- ,{,},[,],&a ,*a,<<: *a,|\n  ,>\n  ,',\",${p},!!str ,\n,\n  ,\n    ,: "
MORE = "? ,\n---\n, #,\\,0,~,é,http://x,a:b,-1,?x,:x,\\u00e9,\\/,x y,😀"
PIECES = st.sampled_from([",", *WRITTEN.split(","), *MORE.split(",")])


def nodes(text: str, events: Any) -> list[Node] | None:
    """What the file says, or None where it is refused; a value that is not there has no place worth comparing."""
    try:
        return list(_Composer(text, "f", events).documents())
    except (InvalidInput, YAMLError, yaml.YAMLError, ValueError, IndexError, AssertionError):
        return None


def plainly(node: Any) -> Any:
    """A node without the places of empty values, which the readers put on either side of the space before them."""
    if hasattr(node, "items"):
        return [plainly(item) for item in node.items], node.mark
    if hasattr(node, "entries"):
        return {name: (entry.key, plainly(entry.value)) for name, entry in node.entries.items()}, node.mark
    return (node.text, node.plain, node.mark) if node.text else ""


@settings(max_examples=500)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_both_readers_see_the_same(text: str) -> None:
    events = yaml_events.quick(text)
    assert events is not None, "this PyYAML has no libyaml"
    quick, thorough = nodes(text, events), nodes(text, yaml_events.thorough(text))
    if quick is not None and thorough is not None:
        assert [plainly(node) for node in quick] == [plainly(node) for node in thorough]


def test_a_file_without_a_slip_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def thorough(text: str) -> Any:
        raise AssertionError("ruamel was asked for a file that libyaml takes")

    monkeypatch.setattr(yaml_events, "thorough", thorough)
    (tree,) = load("a:\n  b: {command: [echo, 'é']}\n  c:\n    command: |\n      echo a\n      echo b\n    after: b\n")
    assert [task.name for task in tree.tasks] == ["b", "c"]


def test_characters_that_json_writes_as_two_escapes_are_read() -> None:
    (tree,) = load(r'{"command": ["echo", "\ud83d\ude00"]}')
    assert tree.tasks[0].spec.command == ["echo", "😀"]


def test_too_many_tasks_are_refused_before_any_of_them_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "MOST_TASKS", 3)
    with pytest.raises(InvalidInput, match="f:5:3: more than 3 tasks in one tree") as caught:
        load("a:\n  first: {command: x, attempts: wrong}\n" + "".join(f"  t{n}: {{command: x}}\n" for n in range(5)), source="f")
    assert "stream" in str(caught.value.hint)
