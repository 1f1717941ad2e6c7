"""The examples and the blocks behind `<!-- runs -->` really run, against a Headway of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.treefile import load_file
from tests.docs.blocks import ROOT, Block, blocks
from tests.support.upped import LIVENESS, clean_environment, upped

BIN = Path(sys.executable).parent
EXAMPLES = ROOT / "examples"
PAGES_IN_SHELL = sorted({block.page for block in blocks("sh", runs=True)})
LONGEST_S = 120


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user beside a running `headway up`."""
    folder = tmp_path_factory.mktemp("headway")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    env |= {"HEADWAY_DATA": str(folder), "PATH": f"{BIN}:{env['PATH']}"}
    with open(folder / "up.log", "wb") as log:
        up = subprocess.Popen(
            [BIN / "headway", "up", "--port", "0", "-o", "quiet"], env=env | LIVENESS, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert up.stdout is not None
        url = up.stdout.readline().strip()
        assert url, (folder / "up.log").read_text()
        yield env | {"HEADWAY_URL": url, "HEADWAY_TOKEN": (folder / "token").read_text().strip()}
    finally:
        up.terminate()
        up.wait(LONGEST_S)


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")


def run(*words: str | Path, env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@needs_curl
@pytest.mark.parametrize("page", PAGES_IN_SHELL)
def test_the_shell_blocks_of_a_page_run_one_after_another(page: str, environment: dict[str, str], tmp_path: Path) -> None:
    for block in blocks("yaml", "sh", "python", "json"):
        if block.page == page and block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    script = "set -eu\n" + "\n".join(block.text for block in blocks("sh", runs=True) if block.page == page)
    assert run("sh", "-c", script, env=environment, cwd=tmp_path)


def test_the_certificate_of_the_page_on_operations_serves_agent_and_commands(tmp_path: Path) -> None:
    (block,) = [block for block in blocks("sh", runs=True) if "openssl req" in block.text]
    folder = tmp_path / "certificates"
    folder.mkdir()
    run("sh", "-euc", block.text, env=clean_environment(), cwd=folder)
    modes = {name: (folder / name).stat().st_mode & 0o777 for name in ("ca.key", "server.key", "ca.pem", "server.pem")}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "ca.pem": 0o644, "server.pem": 0o644}
    certificate = {"HEADWAY_TLS_CERT": str(folder / "server.pem"), "HEADWAY_TLS_KEY": str(folder / "server.key")}
    trusting = clean_environment(HEADWAY_DATA=str(tmp_path / "data"), HEADWAY_TLS_CA=str(folder / "ca.pem"))
    with upped(tmp_path / "data", **certificate, HEADWAY_TLS_CA=str(folder / "ca.pem")) as up:
        assert up.url.startswith("https://")
        assert run(BIN / "headway", "run", "--", "echo", "hello", env=trusting, cwd=tmp_path) == "hello\n"
        stranger = subprocess.run([BIN / "headway", "ls"], env=clean_environment(HEADWAY_DATA=str(tmp_path / "data")), capture_output=True)
        assert stranger.returncode == 69


@pytest.mark.parametrize("block", blocks("python", runs=True), ids=str)
def test_the_python_blocks_run_as_scripts(block: Block, environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(block.text)
    assert run(sys.executable, script, env=environment, cwd=tmp_path)


def test_the_demo_tells_which_station_is_the_warmest(environment: dict[str, str], tmp_path: Path) -> None:
    words = ["--param", f"folder={tmp_path}", "--param", "pause=0"]
    said = run(BIN / "headway", "run", EXAMPLES / "demo.yaml", *words, env=environment, cwd=tmp_path)
    assert json.loads(said) == {"warmest": "coast", "mean": 14.0, "stations": 3}


def test_the_demo_has_three_levels() -> None:
    (tree,) = load_file(EXAMPLES / "demo.yaml")
    assert {level: len(tasks) for level, tasks in tree.levels.items()} == {0: 3, 1: 3, 2: 1}
    assert tree.warnings == []


def test_the_functions_of_the_example_run(environment: dict[str, str], tmp_path: Path) -> None:
    said = run(sys.executable, EXAMPLES / "hello.py", env=environment, cwd=tmp_path)
    assert said.splitlines() == ["Hello, world!", "sum of squares below 100: 328350"]


@needs_curl
def test_the_example_with_curl_prints_the_output_of_its_task(environment: dict[str, str], tmp_path: Path) -> None:
    said = run("sh", EXAMPLES / "submit.sh", env=environment, cwd=tmp_path)
    assert said.splitlines()[-1] == "hello from curl"
