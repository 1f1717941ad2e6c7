"""A second Linux, as a process of this one: with cgroups of version 2, whatever the machine itself has.

Its root is this machine's, read-only, so it has the same Python and the same tree; it has a disk of its own, since throttles count on
disks. It has one CPU, and system calls cost several times as much: what runs in it must not count on time.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.packages import need

INIT = Path(__file__).with_name("user_mode_init.sh")
MORE_REGISTERS = "amx_tile"
TREE = Path(__file__).parents[2]
PATIENCE_S = 3600.0
SIZE = 2 * 2**30


def run(here: Path, command: list[str]) -> tuple[int, str]:
    """Run it there, in this tree; returns its exit code and what it printed."""
    if os.geteuid() != 0:
        pytest.skip("a Linux in user mode has the rights of who starts it, and its agents need root's")
    if MORE_REGISTERS in Path("/proc/cpuinfo").read_text():
        pytest.skip("a Linux in user mode gives up where the processor has more registers than it has room for, those of AMX")
    linux, format_disk = need("user-mode-linux"), need("e2fsprogs")
    for name in ("disk", "out"):
        (here / name).mkdir()
    (here / "command").write_text(shlex.join(command))
    image = here / "image"
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run([format_disk, "-q", "-F", str(image)], check=True)
    boot = f"mem=2G root=/dev/root rootfstype=hostfs rootflags=/ ro ubda={image} init={INIT} con=null con0=null,fd:1 quiet loglevel=1"
    words = [linux, *boot.split(), f"HERE={here}", f"TREE={TREE}", f"umid={here.name}-{os.getpid()}", f"uml_dir={here}"]
    machine = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        console = machine.communicate(timeout=PATIENCE_S)[0].decode(errors="replace")
    finally:
        if machine.poll() is None:
            os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
        image.unlink()
    log = here / "out" / "log"
    said = log.read_text(errors="replace") if log.exists() else ""
    code = here / "out" / "exit"
    assert code.exists(), f"the machine went away before the command ended\n{console}\n{said}"
    return int(code.read_text()), said
