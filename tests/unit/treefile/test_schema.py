"""The published JSON Schema says the same as the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

from headway.domain.spec import KEYWORDS
from headway.errors import InvalidInput
from headway.treefile import load
from headway.treefile.schema import schema

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
VALIDATOR = jsonschema_rs.validator_for(schema())


def value(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def test_the_schema_is_a_valid_schema() -> None:
    assert jsonschema_rs.meta.is_valid(schema())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_satisfies_the_schema(path: Path) -> None:
    assert list(VALIDATOR.iter_errors(value(path.read_text()))) == []


@pytest.mark.parametrize(
    "text",
    [
        "command: echo hello\nattempts: 3\nretry: {interval: 10s, backoff: 2}\n",
        "n:\n  task: {executable: ./a.sh, schedule: 300, logger: syslog, sub: {command: [a, 1]}}\n",
        "n:\n  sequence: [a, {parallel: [./b.sh, {name: c, command: x}]}]\n  a: {command: x}\n",
        "n:\n  task: {command: x, subtasks: {a: {command: y}}, after: [{task: a, when: done}]}\n",
        "parameters: {day: null}\ndefaults: {attempts: 2}\nn:\n  t: {command: x, env: {A: 1}, input: [1, {a: null}]}\n",
        "n: {command: x, resources: {cpus: 2, memory: 512MiB, labels: {gpu: a100}}, delay_tolerance: 0}\n",
    ],
)
def test_what_the_reader_takes_satisfies_the_schema(text: str) -> None:
    load(text, params={"day": "x"} if "day" in text else {})
    assert VALIDATOR.is_valid(value(text))


@pytest.mark.parametrize(
    "text",
    [
        "command: x\nattempts: three\n",
        "command: x\nretry: {intervall: 3}\n",
        "command: x\natempts: 3\n",
        "command: x\nnotify: {url: x}\n",
        "n:\n  task: {attempts: 3}\n",
        "n:\n  task: {command: x, sub: ./short.sh}\n",
        "n:\n  levels: strickt\n  t: {command: x}\n",
        "defaults: {command: x}\nn:\n  t: {command: x}\n",
    ],
)
def test_what_the_reader_refuses_breaks_the_schema(text: str) -> None:
    with pytest.raises(InvalidInput):
        load(text)
    assert not VALIDATOR.is_valid(value(text))


def test_every_keyword_has_its_place_in_the_schema() -> None:
    assert set(schema()["$defs"]["task"]["properties"]) == KEYWORDS
