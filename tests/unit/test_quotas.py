"""The count of btrfs is relied on only while it is one (G3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.agent import quotas


@pytest.mark.parametrize(
    ("enabled", "inconsistent", "rescan", "counted"),
    [("1", "0", 0, True), ("0", "0", 0, False), ("1", "1", 0, False), ("1", "0", 1, False), (None, "0", 0, False)],
)
def test_they_are_counted_while_they_are_on_and_consistent_and_nobody_counts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str | None, inconsistent: str, rescan: int, *, counted: bool
) -> None:
    if enabled is not None:
        (tmp_path / "enabled").write_text(f"{enabled}\n")
    (tmp_path / "inconsistent").write_text(f"{inconsistent}\n")

    def answer(at: int, call: int, status: bytearray) -> None:
        status[0] = rescan

    monkeypatch.setattr(quotas.fcntl, "ioctl", answer)
    assert quotas.are_counted(str(tmp_path), str(tmp_path)) is counted


def test_another_file_system_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("1\n")
    (tmp_path / "inconsistent").write_text("0\n")
    (tmp_path / "file").touch()
    assert not quotas.are_counted(str(tmp_path), str(tmp_path / "file"))
    assert not quotas.are_counted(str(tmp_path), str(tmp_path / "missing"))
