"""Pulling an image, by the process that prepares tasks and with an engine that is a script of ours (H2 H5)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from headway.agent.prepare import LOOK_S, Answer, Job
from headway.domain.content import Content
from headway.domain.task import Definition

LIMIT = 100_000


def test_what_is_kept_for_other_tasks_does_not_count_as_what_the_pull_writes(tmp_path: Path) -> None:
    """A pull that took longer than a moment failed on every node whose folder of prepared things was full, as it is meant to be."""
    root, engine = tmp_path / "prepared", tmp_path / "engine"
    (root / "place-1").mkdir(parents=True)
    (root / "place-1" / "file").write_bytes(bytes(2 * LIMIT))
    engine.write_text(f"#!/bin/sh\n[ $1 = pull ] && exec sleep {4 * LOOK_S}\nexit 1\n")
    engine.chmod(0o755)
    job = Job(
        1, Definition(name="report", content=Content(image="debian")), str(root), {"PATH": "/usr/bin:/bin"}, [], None, None, [], {},
        limit=LIMIT, seconds=300.0, engine=[str(engine)],
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from headway.agent.prepare import main; main()"],
        input=msgspec.msgpack.encode(job), capture_output=True, timeout=300,
    )  # fmt: skip
    answer = msgspec.msgpack.decode(done.stdout, type=Answer)
    assert (answer.error, answer.image) == ("", True)
    assert sorted(path.name for path in root.glob("tmp-*")) == []
