"""A test that hangs fails alone: with its name, with the stacks of what it waits for, and with nothing of it left running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agents import alive
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
HEAD = """
import asyncio, ctypes, subprocess, threading, time
import pytest
from hypothesis import given, strategies

def test_another(): pass
"""
WAITS = """
async def asks_a_neighbour(): await asyncio.Event().wait()

@pytest.mark.time_limit(1)
async def test_a_coroutine():
    keep = asyncio.create_task(asks_a_neighbour())
    await asyncio.Event().wait()

def tries_again():
    while True:
        try: [None for _ in range(1000)]
        except Exception: continue

@pytest.mark.time_limit(1)
def test_a_loop(): tries_again()

@pytest.mark.time_limit(1)
def test_a_thread():
    def waits_elsewhere(): threading.Event().wait()
    other = threading.Thread(target=waits_elsewhere, name="the other", daemon=True)
    other.start(); other.join()

@pytest.mark.time_limit(1)
@given(strategies.integers())
def test_a_property(number): time.sleep(600)
"""
FIXTURES = """
@pytest.fixture
def first():
    yield
    print("the first was cleaned up")

@pytest.fixture
def slow(first):
    yield
    time.sleep(600)

@pytest.mark.time_limit(1)
def test_hangs(slow): pass
"""

def run(folder: Path, body: str, *words: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.support.time_limit"]')
    test = folder / "test_it.py"
    test.write_text(HEAD + body + "\ndef test_one_more(): pass\n")
    chosen = ["pytest_asyncio.plugin", "xdist.plugin", "no:cacheprovider"]  # an interpreter with all of them takes seconds
    plugins = [word for name in chosen for word in ("-p", name)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *words, str(test)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_each_fails_by_name_with_the_stacks_of_what_waits_and_the_others_run(tmp_path: Path) -> None:
    code, said = run(tmp_path, WAITS)
    assert code == 1, said
    told = {"coroutine": "asks_a_neighbour", "loop": "tries_again", "thread": "waits_elsewhere", "property": "test_a_property"}
    for name, where in told.items():
        assert f"test_a_{name} was not done within 1 s" in said, said
        assert f"in {where}" in said, said
    assert "4 failed, 2 passed" in said


def test_one_whose_fixture_hangs_is_an_error_and_the_other_fixtures_are_cleaned_up(tmp_path: Path) -> None:
    code, said = run(tmp_path, FIXTURES, "-s")
    assert code == 1, said
    assert "test_hangs was not done within 1 s" in said
    assert "the first was cleaned up" in said
    assert "3 passed, 1 error" in said


def test_what_it_started_is_ended_though_it_left_its_parent(tmp_path: Path) -> None:
    seen = tmp_path / "pid"
    body = f"""
@pytest.mark.time_limit(2)
def test_hangs():
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & echo $! > {seen}.new; mv {seen}.new {seen}; exit 0"])
    time.sleep(600)
"""
    code, said = run(tmp_path, body)
    assert code == 1, said
    pid = int(seen.read_text())
    until(lambda: not alive(pid))


@pytest.mark.parametrize("words", [(), ("-n", "1")])
def test_one_that_does_not_let_go_ends_its_process_and_under_xdist_fails_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    body = """
@pytest.mark.time_limit(1, grace=1)
def test_hangs():
    lock = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)
"""
    code, said = run(tmp_path, body, *words)
    assert code == 1, said
    assert "Timeout (0:00:03)!" in said
    assert "in test_hangs" in said
    if words:
        assert "crashed while running" in said
        assert "1 failed, 2 passed" in said
