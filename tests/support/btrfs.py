"""A file system in which the kernel can hold what a folder takes: btrfs with quotas, in a file of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.packages import need


@contextmanager
def mounted(folder: Path, size: int = 3 * 2**30) -> Iterator[Path]:
    """Mounted in the folder, and gone afterwards. The file takes as much of the disk as is written into it."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    make = need("btrfs-progs")
    image, place = folder / "image", folder / "mounted"
    place.mkdir(parents=True)
    with open(image, "wb") as file:
        file.truncate(size)
    _said([make, "--quiet", str(image)])
    if why := _said(["mount", "-o", "loop,noatime", str(image), str(place)]):
        pytest.skip(f"this machine cannot mount btrfs: {why}")
    try:
        if why := _said(["btrfs", "quota", "enable", str(place)]):
            pytest.skip(f"this kernel has no quotas of btrfs: {why}")
        yield place
    finally:
        _said(["umount", "--lazy", str(place)])
        image.unlink()


def _said(command: list[str]) -> str:
    """Why it did not work, or nothing."""
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"{command[0]} failed with {done.returncode}")
