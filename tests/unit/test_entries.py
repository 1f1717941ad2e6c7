"""Entries of the folder that keeps what was prepared: whole, or not there (H5)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.agent.entries import Entries, change_mode, size_of

LIMIT = 2**20


def build(place: Path) -> None:
    (place / "file").write_bytes(b"x")


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    entries, built = Entries(tmp_path, LIMIT), []
    for _ in range(2):
        place, size = entries.get("place-1", lambda place: (built.append(place), build(place)))
        assert size == size_of(tmp_path, "place-1")
    assert built == [place]


def test_an_entry_that_somebody_removed_is_whole_again_only_when_it_is(tmp_path: Path) -> None:
    """Its mark is beside it and may have stayed: whoever comes while it is built anew, or after a crash, must not take half of it."""
    entries = Entries(tmp_path, LIMIT)
    entries.get("place-1", build)
    shutil.rmtree(tmp_path / "place-1")
    seen: list[int | None] = []

    def fails(place: Path) -> None:
        build(place)
        seen.append(size_of(tmp_path, "place-1"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        entries.get("place-1", fails)
    assert seen == [None]
    assert size_of(tmp_path, "place-1") is None


def test_the_mode_of_what_a_link_leads_to_is_never_changed(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("secret")
    (tmp_path / "shadow").chmod(0o600)
    (tmp_path / "link").symlink_to("shadow")
    with pytest.raises(OSError, match="symbolic links"):
        change_mode(str(tmp_path / "link"), lambda mode: mode | 0o444)
    assert (tmp_path / "shadow").stat().st_mode & 0o777 == 0o600
