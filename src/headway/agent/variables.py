"""The variables of an isolated task: given to the task, never to what builds the walls around it (H11).

The loader obeys LD_PRELOAD, Python PYTHONPATH, an engine's client CONTAINERS_CONF. bubblewrap and the client of a container engine run
outside of the walls, the client as root; so a task's own variables are not in their environment. They go through a file in memory that
has no name: bubblewrap reads it as further words of its command line, the engine as a file of variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from headway.agent.interpreters import NotStartable

INSTANCE = "HEADWAY_AGENT_INSTANCE"  # marks every process that tasks of this agent started
MARKS = (INSTANCE, "HEADWAY_TASK_ID", "HEADWAY_ATTEMPT")  # also in the environment of those outside: by them its processes are found
LONGEST_LINE = 60_000  # bytes: Podman reads files of variables in lines of at most 64 KiB
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AWKWARD = re.compile(r"""[\r\n"'`#\\]|^\s|\s$""")  # engines, and their versions, do not agree on what these mean in such a file
# What an engine's client, the programs it starts, our launcher, a shell or the loader obeys.
CLIENTS_OWN = re.compile(
    r"LD_.*|GLIBC_.*|GCONV_PATH|GETCONF_DIR|LOCPATH|NLSPATH|LANG|LANGUAGE|LC_.*|MALLOC_.*|RES_OPTIONS|HOSTALIASES|LOCALDOMAIN|TZ|TZDIR"
    r"|PYTHON.*|PERL.*|BASH.*|SHELL.*|ENV|IFS|PS4|CDPATH"
    r"|PODMAN.*|_PODMAN.*|DOCKER.*|CONTAINER.*|_CONTAINER.*|BUILDAH.*|CONMON.*|CRUN.*|RUNC.*|_LIBCONTAINER.*|OCI_.*|NETAVARK.*|STORAGE_.*"
    r"|REGISTRY_.*|REGISTRIES_.*|DBUS_.*|LISTEN_.*|NOTIFY_SOCKET|XDG_.*|PATH|HOME|USER|LOGNAME|TMPDIR|TMP|TEMP|GO.*|SSL_.*|OPENSSL_.*"
    r"|[A-Z]+_PROXY|SSH_.*|SUDO_.*|HEADWAY_AGENT_.*",
    re.IGNORECASE,
)


def marks_of(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in MARKS if name in env}


def for_bubblewrap(env: Mapping[str, str]) -> int:
    """The descriptor of words for `--args`: inside, there are these variables and no others."""
    words = ["--clearenv"]
    for name, value in env.items():
        if "\0" in name or "\0" in value:  # what stands behind it would be words of bubblewrap's own command line
            raise NotStartable(f"env: {name!r} holds a NUL")
        words += ("--setenv", name, value)
    return _file("".join(f"{word}\0" for word in words))


def for_engine(env: Mapping[str, str]) -> int:
    """The descriptor of a file of variables, for `--env-file`."""
    return _file("".join(f"{name}={value}\n" for name, value in env.items()))


def divided(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Those a file of variables can hold, and those that only the client's environment can. NotStartable when the client would obey one."""
    lines: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            raise NotStartable(f"env: {name!r} is not a variable name")
        if not _AWKWARD.search(value) and len(os.fsencode(value)) < LONGEST_LINE:
            lines[name] = value
        elif CLIENTS_OWN.fullmatch(name):
            raise NotStartable(
                f"env: {name} of a container must be one line of less than {LONGEST_LINE} bytes, without quotes, # and \\, because the "
                "container engine itself obeys a variable of this name: set it inside, in commands"
            )
        else:
            others[name] = value
    return lines, others


def _file(text: str) -> int:
    """In memory, to be read from its beginning."""
    descriptor = os.memfd_create("headway-variables")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(os.fsencode(text))
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
