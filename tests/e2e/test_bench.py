"""`headway bench` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway.bench.main import KEYS
from tests.support.upped import clean_environment

HEADWAY = [sys.executable, "-m", "headway.cli.main"]


def bench(*words: str, database: str | None = None) -> subprocess.CompletedProcess[str]:
    where = ["--url", "http://127.0.0.1:9", "--database", database] if database else []
    command = [*HEADWAY, "bench", "--json", *where, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_it_refuses_to_report_of_a_database_that_may_lose_tasks(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_TOKEN", "hw_admin_unused")
    refused = bench("--quick", database=dsn)
    assert refused.returncode == 64
    assert "fsync is off" in refused.stderr
    assert refused.stdout == ""


def test_a_running_headway_needs_its_database_too() -> None:
    refused = subprocess.run([*HEADWAY, "bench", "--url", "http://127.0.0.1:9"], capture_output=True, text=True)
    assert refused.returncode == 64
    assert "--database" in refused.stderr


def test_a_running_headway_that_cannot_be_reached_is_told(dsn: str, tmp_path: Path) -> None:
    def said(database: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [*HEADWAY, "bench", "--quick", "--url", "http://127.0.0.1:9", "--database", database]
        return subprocess.run(command, capture_output=True, text=True, env=clean_environment(HEADWAY_DATA=str(tmp_path), **environment))

    nobody = said(dsn)
    assert (nobody.returncode, "HEADWAY_TOKEN is an administrator's" in nobody.stderr) == (64, True)
    nowhere = said("postgresql://nobody@127.0.0.1:9/none", HEADWAY_TOKEN="hw_x")
    assert (nowhere.returncode, nowhere.stderr[:46]) == (69, "headway: the database at 127.0.0.1:9 does not ")


def test_the_last_line_is_an_object_with_the_promised_keys() -> None:
    done = bench("--quick", "--only", "submit_single")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report.keys() >= KEYS.keys()
    assert report["submit_single_per_s"] > 0
    assert report["drain_per_s"] == {"10000": None, "1000000": None}
