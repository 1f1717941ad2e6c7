"""Whether btrfs counts what its subvolumes take, now (G3). Used by the watch on disks too: imports little.

Where its counts are not consistent the kernel counts nothing any more, and lets everybody write: that comes of a snapshot with a large
tree that is removed (on kernels with `drop_subtree_threshold`), or of a lack of memory. While it counts anew it begins at nothing.
"""

from __future__ import annotations

import fcntl
import os

_RESCAN = 2 << 30 | 64 << 16 | 0x94 << 8 | 45  # BTRFS_IOC_QUOTA_RESCAN_STATUS


def are_counted(told: str, folder: str) -> bool:
    """`told`: where the kernel tells of the quotas of the file system that holds the folder."""
    try:
        if _said(f"{told}/enabled") != b"1" or _said(f"{told}/inconsistent") != b"0":
            return False
        status = bytearray(64)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(at, _RESCAN, status)
        finally:
            os.close(at)
    except OSError:
        return False
    return not any(status[:8])


def _said(path: str) -> bytes:
    with open(path, "rb", 0) as file:
        return file.read(16).strip()
