"""Folders for attempts, used again and again.

Making and removing two folders costs 300-900 µs of journalled file system for each attempt, as much as starting the
program. An attempt gets a clean one and leaves it; what it wrote there is removed before the next attempt sees it.
"""

from __future__ import annotations

import os
import shutil

CHECKPOINT = "checkpoint"
KEPT = 64  # free folders; a burst's surplus is removed


class Scratch:
    def __init__(self, root: str) -> None:
        """`root` must be empty or missing: what an earlier supervisor left is removed."""
        shutil.rmtree(root, ignore_errors=True)
        os.makedirs(root, mode=0o700)
        self.root = root
        self._free: list[str] = []
        self._made = 0

    def take(self) -> str:
        """An empty folder with an empty folder for checkpoints in it."""
        if self._free:
            return self._free.pop()
        self._made += 1
        path = f"{self.root}/{self._made}"
        os.mkdir(path, 0o700)
        os.mkdir(f"{path}/{CHECKPOINT}", 0o700)
        return path

    def give_back(self, path: str) -> None:
        """Its attempt is over and none of its processes lives."""
        try:
            if len(self._free) < KEPT and _cleaned(path):
                self._free.append(path)
                return
        except OSError:
            pass  # it was changed beyond use: it is removed below, and the next attempt gets a new one
        shutil.rmtree(path, ignore_errors=True)


def _cleaned(path: str) -> bool:
    """Remove what is in the folder; True when it looks as it did when it was made."""
    for name in os.listdir(path):
        if name == CHECKPOINT:
            continue
        inside = f"{path}/{name}"
        if os.path.isdir(inside) and not os.path.islink(inside):
            shutil.rmtree(inside)
        else:
            os.unlink(inside)
    return not os.listdir(f"{path}/{CHECKPOINT}")
