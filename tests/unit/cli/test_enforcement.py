"""What `doctor` says of the disk limit: who can be held on this node, and who cannot (G3 J1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.cli import enforcement
from headway.config import Settings

GROUPS = dict.fromkeys(("memory", "cpu", "cpuacct", "pids", "blkio"), "")


@pytest.mark.skipif(os.geteuid() != 0, reason="without root there is another reason to warn")
def test_where_nothing_can_freeze_a_crowd_the_disk_limit_is_not_in_order(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    found = {name: enforcement._disk(settings, (1, groups)) for name, groups in (("v1", GROUPS), ("hybrid", GROUPS | {"unified": ""}))}
    if found["hybrid"].state == "warn":
        pytest.skip(f"this machine has another reason to warn: {found['hybrid'].found}")
    assert found["v1"].state == "warn"
    assert "a task of many processes" in found["v1"].found
