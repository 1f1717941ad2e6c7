"""Says that this is the same machine as before, and no other with its name (F2).

A number drawn once and kept in the work folder would go along when the folder is copied, with an image of the machine say, and two agents
would take each other's tasks. So the file itself counts too, and the boot of the kernel: a copy has another. A machine that was started
again waits until its former self is lost, if that was not seen to end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

FILE = "machine"
_BOOT = "/proc/sys/kernel/random/boot_id"


def machine_of(work_dir: str) -> str:
    path = os.path.join(work_dir, FILE)
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        if kept := file.read().strip():
            return _mark(kept, os.fstat(file.fileno()).st_ino)
    drawn = os.urandom(8).hex()
    with open(f"{path}.new", "w") as file:
        file.write(drawn)
    os.replace(f"{path}.new", path)
    return _mark(drawn, os.stat(path).st_ino)


def _mark(drawn: str, inode: int) -> str:
    boot = ""
    with contextlib.suppress(OSError), open(_BOOT) as file:  # not Linux, or hidden
        boot = file.read().strip()
    return hashlib.blake2b(f"{drawn} {inode} {boot}".encode(), digest_size=8).hexdigest()
