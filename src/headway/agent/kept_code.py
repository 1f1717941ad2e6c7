"""The code that an agent began with, kept in memory for when another is installed under it (H7).

What runs belongs to the supervisor, and outlives the exchange side: the next one is started from the code that is installed then. Code that
speaks another version of the link, or of the exchange whose messages the supervisor reads and writes itself, could neither report those
tasks nor renew their lease. Then an exchange side of the old version is started from here: what runs comes to its end and is told. And
from the moment that other code is there, nothing new is taken until the agent is started again. Why so: decision 0059.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import os
import re
import struct
import sys
import zipfile
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from zipimport import zipimporter

from headway.agent.link import LINK
from headway.wire import PROTOCOL

CODE_FD = 4  # of the supervisor, and of an exchange side that it starts from this code
OWN = LINK, PROTOCOL
TROUBLE = "was upgraded under its agent: restart that"
_STATED = (("agent/link.py", re.compile(r"^LINK = (\d+)", re.M)), ("wire/__init__.py", re.compile(r"^PROTOCOL = (\d+)", re.M)))
_NO_SOURCE = bytes(12)  # in the head of compiled code: flags, time and size of a source, which is not looked for


def pack() -> int:
    """The descriptor of all modules that this process has loaded, compiled, as an archive that Python imports from."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, module in sorted(sys.modules.items()):
            if name.partition(".")[0] == __name__.partition(".")[0] and (spec := module.__spec__) is not None:
                place = f"{name.replace('.', '/')}{'/__init__' if spec.submodule_search_locations is not None else ''}.pyc"
                archive.writestr(zipfile.ZipInfo(place), _compiled(spec))
    descriptor = os.memfd_create("headway-code")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(packed.getbuffer())
    return descriptor


def _compiled(spec: ModuleSpec) -> bytes:
    """What Python keeps beside the source, if it is of this source; that takes a tenth of the time."""
    try:
        with open(spec.cached or "", "rb") as file:
            kept = file.read()
        of = os.stat(spec.origin or "")
    except OSError:
        kept = b""
    else:
        if kept[:16] == importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(of.st_mtime) & 0xFFFFFFFF, of.st_size & 0xFFFFFFFF):
            return kept
    assert isinstance(spec.loader, InspectLoader | zipimporter)
    return importlib.util.MAGIC_NUMBER + _NO_SOURCE + marshal.dumps(spec.loader.get_code(spec.name))


def installed() -> tuple[int, ...] | None:
    """The versions of link and exchange that code started now would speak; None when there is none that says so."""
    package = os.path.dirname(os.path.dirname(__file__))
    found: list[int] = []
    for name, states in _STATED:
        try:
            with open(os.path.join(package, name)) as file:
                stated = states.search(file.read())
        except OSError:
            return None
        if stated is None:
            return None
        found.append(int(stated[1]))
    return tuple(found)


def path_first(environment: dict[str, str]) -> dict[str, str]:
    """For a process that has the archive as CODE_FD: it imports Headway from there."""
    before = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**environment, "PYTHONPATH": os.pathsep.join([f"/proc/self/fd/{CODE_FD}", *before])}
