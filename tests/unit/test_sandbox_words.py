"""Whether a command line calls `headway`: looked at by the supervisor, so nothing in it may make the supervisor wait (H11)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.agent.sandbox import _calls_headway


@pytest.mark.parametrize(
    ("word", "calls"),
    [("headway submit -- true", True), ("cd x; headway once pay", True), ("./headway run", False), ("my-headway run", False), ("", False)],
)
def test_words_of_a_shell(word: str, calls: bool) -> None:
    assert _calls_headway(word) is calls


def test_a_script_is_read(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\nheadway submit -- true\n")
    assert _calls_headway(str(script))


@pytest.mark.parametrize("trick", ["pipe", "link", "/proc/kmsg", "//proc/kmsg", "/tmp/../proc/kmsg", "/dev/zero", "/nowhere"])
def test_what_would_wait_or_never_end_is_not_opened(tmp_path: Path, trick: str) -> None:
    word = trick
    if trick == "pipe":
        word = str(tmp_path / "pipe")
        os.mkfifo(word)
    elif trick == "link":
        word = str(tmp_path / "link")
        os.symlink("/proc/kmsg", word)
    assert not _calls_headway(word)
