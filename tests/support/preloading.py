"""Code that tells when it was run outside of the walls, for tests of what a task's variables can do there."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.packages import need

_SOURCE = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void here(void) {
    FILE *file = fopen(WHERE, "a");
    if (file) { fprintf(file, "%s as %d\\n", program_invocation_short_name, (int)getuid()); fclose(file); }
}
"""
_MODULE = """
import os
try:
    with open({where!r}, "a") as file: file.write(f"a module of Python as {{os.getuid()}}\\n")
except OSError: pass
raise ImportError("not the real one")
"""


class Preloading:
    """Where a task may not write, `ran` tells what ran there all the same."""

    def __init__(self, folder: Path) -> None:
        self._told = folder / "told"
        self._told.touch()
        self._told.chmod(0o666)
        self.library = str(folder / "evil.so")
        source = folder / "evil.c"
        source.write_text(_SOURCE)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f'-DWHERE="{self._told}"', "-o", self.library, str(source)], check=True, capture_output=True
        )
        modules = folder / "modules"
        modules.mkdir()
        for name in ("asyncio", "headway", "sitecustomize", "subprocess"):
            (modules / f"{name}.py").write_text(_MODULE.format(where=str(self._told)))
        # All of it is what a tenant can have: a library and modules in a place that was prepared for it, or on a volume.
        self.variables = {"LD_PRELOAD": self.library, "LD_AUDIT": self.library, "PYTHONPATH": str(modules)}

    def ran(self) -> list[str]:
        return self._told.read_text().splitlines()


@contextmanager
def preloading() -> Iterator[Preloading]:
    """In a folder that users of slots can reach."""
    need("gcc")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Preloading(Path(folder))
