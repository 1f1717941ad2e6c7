"""Freezing a tree of processes, by the kernel's freezer where a task has a cgroup of its own, by signals elsewhere (H7)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import freeze, tree
from headway.agent.freeze import Freezer
from tests.support.agents import alive
from tests.support.waiting import until

# Counts; with a second argument it first starts a child that does the same. A SIGCONT would be told in the file `heard`.
COUNT = """
import os, signal, subprocess, sys
folder, name = sys.argv[1:3]
signal.signal(signal.SIGCONT, lambda *_: open(f"{folder}/heard", "w").close())
if name == "main":
    subprocess.Popen([sys.executable, "-S", "-c", sys.argv[3], folder, "child"], start_new_session=True)
n = 0
while True:
    n += 1
    with open(f"{folder}/{name}.new", "w") as file:
        file.write(str(n))
    os.replace(f"{folder}/{name}.new", f"{folder}/{name}")
"""
PLACES = {"v1": "/sys/fs/cgroup/freezer", "v2": "/sys/fs/cgroup/unified", "v2 alone": "/sys/fs/cgroup"}
ROOTS = {name: Path(place) for name, place in PLACES.items() if os.access(f"{place}/cgroup.procs", os.W_OK)}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-S", "-c", COUNT, str(tmp_path), "main", COUNT])
    until(lambda: (tmp_path / "main").exists() and (tmp_path / "child").exists())
    yield started
    tree.kill([started.pid], None)
    started.wait()


def counts(folder: Path) -> tuple[str, str]:
    return (folder / "main").read_text(), (folder / "child").read_text()


def stands_still(folder: Path) -> bool:
    """Two looks that are further apart than a hundred steps of it."""
    before = counts(folder)
    for _ in range(20):
        subprocess.run(["true"], check=True)
    return counts(folder) == before


def test_without_a_cgroup_every_process_is_stopped_and_goes_on(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    freezer = Freezer()
    freezer.freeze("task", [program.pid], None)
    until(lambda: stands_still(tmp_path))  # a signal is heard a little later
    before = counts(tmp_path)
    freezer.thaw("task", [program.pid], None)
    until(lambda: all(new != old for new, old in zip(counts(tmp_path), before, strict=True)))


@pytest.fixture(params=sorted(ROOTS))
def cgroup(request: pytest.FixtureRequest) -> Iterator[Path]:
    root = ROOTS[request.param]
    made = root / f"headway-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"this machine has no {request.param} cgroups that we may make: {error.strerror}")
    if not ((made / "freezer.state").exists() or (made / "cgroup.freeze").exists()):
        made.rmdir()
        pytest.skip(f"{root} has no freezer")
    yield made
    until(lambda: not (made / "cgroup.procs").read_text().strip())
    made.rmdir()


def test_a_cgroup_of_its_own_is_frozen_without_a_signal(
    cgroup: Path, program: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "SETTLE_S", 60.0)  # a busy machine takes its time, and signals would be heard
    for pid in tree.members([program.pid], None):
        (cgroup / "cgroup.procs").write_text(str(pid))
    freezer = Freezer()
    freezer.freeze("task", [program.pid], None)
    until(lambda: stands_still(tmp_path))  # a signal is heard a little later
    before = counts(tmp_path)
    freezer.thaw("task", [program.pid], None)
    until(lambda: all(new != old for new, old in zip(counts(tmp_path), before, strict=True)))
    assert not (tmp_path / "heard").exists()
    tree.kill([program.pid], None)


def test_who_was_stopped_by_a_signal_and_then_frozen_goes_on(cgroup: Path, program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A pause is said again until it is confirmed, and a program that has just begun comes into its group meanwhile."""
    freezer = Freezer()
    freezer.freeze("task", [program.pid], None)
    for pid in tree.members([program.pid], None):
        (cgroup / "cgroup.procs").write_text(str(pid))
    freezer.freeze("task", [program.pid], None)
    before = counts(tmp_path)
    freezer.thaw("task", [program.pid], None)
    until(lambda: all(new != old for new, old in zip(counts(tmp_path), before, strict=True)))
    tree.kill([program.pid], None)


def test_what_is_killed_while_it_is_frozen_dies(cgroup: Path, program: subprocess.Popen[bytes]) -> None:
    members = tree.members([program.pid], None)
    for pid in members:
        (cgroup / "cgroup.procs").write_text(str(pid))
    freezer = Freezer()
    freezer.freeze("task", [program.pid], None)
    tree.kill([program.pid], None)
    freezer.thaw_all()
    program.wait(120)
    assert program.returncode == -signal.SIGKILL
    until(lambda: not any(alive(pid) for pid in members))


def test_a_cgroup_that_others_share_is_left_alone(cgroup: Path, program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    neighbour = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        for pid in (neighbour.pid, program.pid):
            (cgroup / "cgroup.procs").write_text(str(pid))
        Freezer().freeze("task", [program.pid], None)
        until(lambda: stands_still(tmp_path))
        neighbour.communicate(timeout=120)  # it ends when it is told, because nobody froze it
        assert neighbour.returncode == 0
    finally:
        neighbour.kill()
        neighbour.wait()
        tree.kill([program.pid], None)
