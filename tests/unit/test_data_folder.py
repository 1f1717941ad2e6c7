"""The data folder, before anything is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.embedded.folder import make_folder
from headway.errors import ConfigError


def test_a_folder_that_cannot_be_written_is_named_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only file system, or of somebody else: it was `.../lock: Read-only file system`, with no word of what to do."""
    make_folder(tmp_path)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root may write everywhere
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be written") as refused:
        make_folder(tmp_path)
    assert "--data-dir" in (refused.value.hint or "")
