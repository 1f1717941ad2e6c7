"""The process around a container, with engines that are scripts of ours (H2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


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
