"""`headway db` and `headway doctor` on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Databases


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    return made


def headway(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    env["HEADWAY_DATA"] = str(folder)
    command = [sys.executable, "-m", "headway.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)


def examined(said: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(said.stdout)}


def test_migrate_makes_the_tables_once_and_status_tells(folder: Path, empty_dsn: str) -> None:
    before = headway(folder, "db", "status", "--database", empty_dsn)
    first = headway(folder, "db", "migrate", "--database", empty_dsn, "--json")
    again = headway(folder, "db", "migrate", "--database", empty_dsn)
    after = headway(folder, "db", "status", "--database", empty_dsn, "--json")
    assert before.returncode == 1
    assert json.loads(first.stdout)["applied"]
    assert again.stdout == "up to date\n"
    assert after.returncode == 0
    assert all(one["applied"] for one in json.loads(after.stdout))


@pytest.mark.parametrize("words", [("db", "migrate"), ("db", "status"), ("server",), ("up", "--port", "0")])
def test_a_database_that_is_not_there_is_exit_code_69_and_says_where_it_was_looked_for(folder: Path, words: tuple[str, ...]) -> None:
    said = headway(folder, *words, "--database", "postgresql://nobody:hidden@127.0.0.1:9/none")
    assert said.returncode == 69
    assert said.stderr.startswith("headway: the database at 127.0.0.1:9 does not answer: ")
    assert "hidden" not in said.stderr


@pytest.mark.parametrize("words", [("db", "migrate"), ("server",), ("up", "--port", "0")])
def test_a_wrong_url_of_a_database_is_no_bug_of_ours(folder: Path, dsn: str, words: tuple[str, ...]) -> None:
    nowhere = headway(folder, *words, "--database", "foo")
    assert nowhere.returncode == 64
    assert "the database's URL cannot be read" in nowhere.stderr
    unknown = headway(folder, *words, "--database", dsn.replace("//postgres@", "//stranger@", 1).replace("//headway@", "//stranger@", 1))
    assert unknown.returncode == 64
    assert 'role "stranger" does not exist' in unknown.stderr
    assert "Traceback" not in nowhere.stderr + unknown.stderr


def test_migrate_without_a_database_says_which_option_names_one(folder: Path) -> None:
    said = headway(folder, "db", "migrate")
    assert said.returncode == 64
    assert "--database" in said.stderr


def test_doctor_looks_at_the_database_and_the_clock(folder: Path, dsn: str) -> None:
    said = headway(folder, "doctor", "--database", dsn, "--json")
    checks = examined(said)
    assert checks["database"]["state"] == "ok"
    assert checks["clock"]["state"] == "ok"
    assert checks["schema"]["state"] == "ok"
    assert checks["server"]["state"] == "warn"
    assert {"fsync", "synchronous_commit", "full_page_writes", "disk", "python"} <= set(checks)


def test_doctor_fails_on_a_database_that_may_lose_tasks(folder: Path, postgres: Databases, dsn: str) -> None:
    unsafe = dsn + ("&" if "?" in dsn else "?") + "options=-csynchronous_commit%3Doff"
    said = headway(folder, "doctor", "--database", unsafe, "--json")
    assert said.returncode == 1
    check = examined(said)["synchronous_commit"]
    assert (check["state"], check["found"]) == ("fail", "off")
    assert "acknowledged tasks may be lost" in check["todo"]


def test_doctor_fails_on_a_token_that_others_can_read(folder: Path) -> None:
    (folder / "token").write_text("hw_admin_x")
    (folder / "token").chmod(0o644)
    said = headway(folder, "doctor")
    assert said.returncode == 1
    assert f"→ chmod 600 {folder}/token" in said.stdout


def test_doctor_says_nothing_of_the_database_of_a_server_elsewhere(folder: Path) -> None:
    check = examined(headway(folder, "doctor", "--url", "http://127.0.0.1:9", "--json"))["database"]
    assert (check["state"], check["found"]) == ("ok", "the server's own, not looked at (--database URL does)")


def test_doctor_fails_on_a_database_it_cannot_reach_and_on_a_server_that_does_not_answer(folder: Path) -> None:
    url = "http://127.0.0.1:9"
    said = headway(folder, "doctor", "--database", "postgresql://nobody@127.0.0.1:9/none", "--url", url, "--json")
    checks = examined(said)
    assert said.returncode == 1
    assert (checks["database"]["state"], checks["server"]["state"]) == ("fail", "fail")
    assert url in checks["server"]["found"]


def test_doctor_repeats_no_half_of_a_password(folder: Path) -> None:
    said = headway(folder, "doctor", "--database", "postgresql://u:opensesame/other@127.0.0.1:9/none")
    assert "its parts are not where they belong" in said.stdout
    assert "opensesame" not in said.stdout + said.stderr
