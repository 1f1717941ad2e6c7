"""The kinds of events are listed once; what is written is in the list, and what is asked for is understood (J6)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headway
from headway.domain.events import FINISHED, KINDS, kinds_of
from headway.errors import InvalidInput
from headway.store.queries import every_file, load

SOURCE = Path(headway.__file__).parent
WRITTEN = re.compile(r"['\"](task\.[a-z_]+)['\"]")


def written_kinds() -> set[str]:
    """Every kind that a statement or a module writes; queries have names of the same form, and are none."""
    queries = {f"{file}.{name}" for file in every_file() for name in load(file)}
    files = [*SOURCE.glob("store/sql/*.sql"), *SOURCE.glob("control/*.py")]
    return {kind for file in files for kind in WRITTEN.findall(file.read_text()) if kind not in queries}


def test_every_event_that_is_written_is_in_the_list() -> None:
    assert written_kinds() <= KINDS.keys()


def test_a_filter_names_kinds_in_full_in_short_or_together() -> None:
    assert kinds_of(["failed", "task.killed"], "events") == ("task.failed", "task.killed")
    assert set(kinds_of(["finished"], "events")) == set(FINISHED)
    assert set(kinds_of(["*"], "events")) == {kind for kind in KINDS if kind.startswith("task.")}


def test_a_slip_in_a_filter_is_answered_with_what_was_meant() -> None:
    with pytest.raises(InvalidInput, match="faild") as error:
        kinds_of(["faild"], "events")
    assert error.value.hint == "did you mean 'failed'?"


def test_the_page_lists_every_kind() -> None:
    page = (SOURCE.parents[1] / "docs" / "notifications.md").read_text()
    assert set(re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE)) == KINDS.keys()
