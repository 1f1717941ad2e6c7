"""The documentation says what the code does: blocks parse, links resolve, nothing that a user can meet is left out."""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import re
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway import errors, telemetry
from headway.agent.process import INHERITED
from headway.api.app import ROUTES
from headway.api.problems import STATUS
from headway.cli.main import EXIT_CODES
from headway.config import Settings
from headway.domain.lifecycle import Outcome, State
from headway.domain.spec import KEYWORDS
from headway.policy.webhook import signature
from headway.treefile import load
from tests.docs.blocks import PAGES, ROOT, Block, anchors, blocks, links

DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_every_task_file_in_the_documentation_is_valid(block: Block) -> None:
    assert load(block.text, source=str(block))


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_every_python_block_parses(block: Block) -> None:
    ast.parse(block.text, str(block))


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_every_shell_block_parses(block: Block) -> None:
    done = subprocess.run(["sh", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_every_json_block_parses(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_resolves(path: Path) -> None:
    for target in links(path):
        name, _, anchor = target.partition("#")
        aim = (path.parent / name).resolve() if name else path
        assert aim.exists(), target
        assert not anchor or anchor in anchors(aim), target


@pytest.mark.parametrize("name", ["lifecycle.md", "cli.md"])
def test_the_generated_pages_are_up_to_date(name: str) -> None:
    assert page(name) == generator().PAGES[name](), "run `make docs`"


def test_every_state_and_outcome_is_explained() -> None:
    made = generator()
    assert set(made.STATES) == set(State)
    assert set(made.OUTCOMES) == set(Outcome)


def test_every_setting_is_described() -> None:
    described = page("settings.md")
    internal = {"sources"}
    missing = [
        name for name in Settings.__struct_fields__ if name not in internal and f"HEADWAY_{_variable(name)}" not in described
    ]
    assert missing == []


def _variable(name: str) -> str:
    return {"data_dir": "DATA"}.get(name, name.upper())


def test_every_error_code_is_described_with_its_status_and_exit_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+ \| \d+) \|", page("api.md"), re.MULTILINE))
    assert rows == {code: f"{STATUS[code]} | {EXIT_CODES[code].value}" for code in _codes()}


def _codes() -> set[str]:
    kinds = [errors.HeadwayError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {kind.code for kind in kinds if kind.__module__ == errors.__name__}


def test_every_route_is_described() -> None:
    text = page("api.md")
    paths = {re.sub(r"\{\w+:\w+\}", "{id}", path) for route in ROUTES for path in route.paths}
    missing = {path for path in paths if path not in text and path.replace("/undrain", "/drain") not in text}
    assert missing - {"/v1/nodes/{id}"} == set()


def test_every_metric_is_listed() -> None:
    listed = set(re.findall(r"^\| `(headway_\w+)` \|", page("operations.md"), re.MULTILINE))
    made = {f"{m.name}_total" if m.type == "counter" else m.name for m in telemetry.registry.collect()}
    assert listed == made


def test_every_keyword_of_a_task_file_is_mentioned() -> None:
    mentioned = set(re.findall(r"`(\w+)`", page("task-files.md")))
    assert KEYWORDS - mentioned == set()


def test_what_a_program_inherits_is_listed() -> None:
    text = page("task-authors.md")
    assert [name for name in INHERITED if f"`{name}`" not in text] == []


def test_the_errors_shown_for_task_files_are_those_that_are_given() -> None:
    shown = re.findall(r"^demo\.yaml:.*$", page("task-files.md"), re.MULTILINE)
    files = [
        "a:\n  b:\n    command: x\n    c:\n      command: y\n\n    atempts: 3\n",
        "a:\n  b:\n    schedule:300\n    command: x\n",
        "a:\n  b:\n    command: x\n\tattempts: 3\n",
        "n:\n  a:\n    command: x\n\n\n\n\n\n    after: [b]\n  b: {command: x, after: a}\n",
    ]
    for text, line in zip(files, shown, strict=True):
        with pytest.raises(errors.InvalidInput) as caught:
            load(text, source="demo.yaml")
        assert str(caught.value) == line


def test_the_check_of_a_signature_that_is_shown_accepts_ours_and_no_other() -> None:
    shown: dict[str, Any] = {}
    exec(next(block.text for block in blocks("python") if "def is_genuine" in block.text), shown)
    now, secret, body = int(time.time()), "whsec_" + base64.b64encode(b"k" * 24).decode(), b'{"id": "1"}'
    headers = {"webhook-id": "7-1", "webhook-timestamp": str(now), "webhook-signature": signature("7-1", now, body, [secret])}
    assert shown["is_genuine"](headers, body, secret)
    assert not shown["is_genuine"](headers, body + b" ", secret)
    assert not shown["is_genuine"]({**headers, "webhook-timestamp": str(now - 301)}, body, secret)
