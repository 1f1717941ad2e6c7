"""Agents that were started under `nice`, by who may be better than that and by who may not (agent.niceness)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.agent import niceness
from headway.agent.niceness import USUAL
from tests.support.confined import is_root, need_starter

# Three programs that say their nice value: started by compiled code, by Python in a slot, and by a common thread.
THREE = """
import os, sys
from headway.agent import niceness
from headway.agent.group import Limits
from headway.agent.link import Terms
from headway.agent.places import Places
from headway.agent.spawn import Launch
from headway.agent.starts import Starts

niceness.be_prompt()
places = Places(sys.argv[1], os.urandom(8).hex(), Terms(), 10)
starts, slot = Starts(places.slots.starter), places.slots.take(Limits(), isolated=False)
out = os.open(sys.argv[1] + "/said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
say = ["/bin/sh", "-c", f"nice >>{sys.argv[1]}/said"]
compiled = -1 if slot is not None and slot.compiled else out
for program in (Launch(say, {}, "/", compiled, compiled, slot), Launch(say, {}, "/", out, out, slot), Launch(say, {}, "/", out, out)):
    starts.give([program])
    begun = []
    starts.wait(lambda: begun.extend(starts.take()))
    assert not program.error, program.error
    if program.run is None or program.run.status is None:
        os.waitpid(program.run.pid if program.run else program.pid, 0)
places.close()
"""
MAY_NOT = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"]
SECONDS = 60


@pytest.mark.parametrize("asked", [0, 7])
@pytest.mark.parametrize("may", [True, False])
def test_programs_have_the_nice_value_that_their_agent_was_started_with(tmp_path: Path, asked: int, may: bool) -> None:
    need_starter()
    if not may and (not is_root() or shutil.which("setpriv") is None):
        pytest.skip("nobody to take the right from")
    words = [*([] if may else MAY_NOT), "nice", "-n", str(asked), sys.executable, "-c", THREE, str(tmp_path)]
    subprocess.run(words, check=True, timeout=SECONDS)
    assert (tmp_path / "said").read_text().split() == [str(min(USUAL + asked, 19))] * 3


def test_a_process_of_an_agent_that_was_started_by_a_prompt_one_is_told_what_is_usual(tmp_path: Path) -> None:
    need_starter()
    if not is_root():
        pytest.skip("only root may")
    asked = niceness.PROMPT - os.getpriority(os.PRIO_PROCESS, 0)
    words = ["nice", "-n", str(asked), sys.executable, "-c", THREE, str(tmp_path)]
    subprocess.run(words, check=True, timeout=SECONDS, env={**os.environ, niceness.TOLD: "6"})
    assert (tmp_path / "said").read_text().split() == ["6"] * 3


def test_an_agent_that_was_made_more_important_does_not_make_its_tasks_so(tmp_path: Path) -> None:
    need_starter()
    if not is_root():
        pytest.skip("only root may")
    asked = -5 - os.getpriority(os.PRIO_PROCESS, 0)
    subprocess.run(["nice", "-n", str(asked), sys.executable, "-c", THREE, str(tmp_path)], check=True, timeout=SECONDS)
    assert (tmp_path / "said").read_text().split() == ["0"] * 3
