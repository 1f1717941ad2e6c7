"""The process around a container, with engines that are scripts of ours (H2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway.agent.containers import why_no_engine
from headway.agent.hardware import capacity


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_as_the_engine_s_client_ended(tmp_path: Path, number: signal.Signals) -> None:
    """By SIGKILL too, of which nobody may say what it does: it told the task of an error of its own."""
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\n[ $1 = run ] && kill -{int(number)} $$\nexit 0\n")
    engine.chmod(0o755)
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from headway.agent.contain import main; main()",
             str(nothing), str(nothing), "name", "0,0,0", str(tmp_path), "1", str(engine), "run", "image"],
            cwd=tmp_path, pass_fds=(nothing,), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    finally:
        os.close(nothing)
    assert (done.returncode, done.stderr) == (-number, "")


@pytest.mark.parametrize("answers", [True, False])
def test_a_node_offers_containers_only_where_the_daemon_of_its_engine_answers(
    tmp_path: Path, answers: bool
) -> None:
    """The client alone is on many machines, and tasks that were given to them failed."""
    client = tmp_path / "docker"
    client.write_text(f"#!/bin/sh\n[ $1 = version ] && {'exit 0' if answers else 'echo Cannot connect to the daemon >&2; exit 1'}\n")
    client.chmod(0o755)
    offered = capacity(cpus=1, memory=1, disk=1, labels={}, work_dir=str(tmp_path), engine=str(client)).labels
    assert offered.get("container") == ("docker" if answers else None)
    assert ("Cannot connect to the daemon" in why_no_engine([str(client)])) is not answers
