"""Tasks in containers: the command line of Podman or Docker, with the task's limits (H2).

The engine's own client runs as the task's process, behind a small launcher (contain.py) that removes the container at its end. The
processes of a container are those in the groups that the engine made for it (container_group.py). They carry the task's marks in their
environment, unless they drop them, so that they are found and ended also when client, launcher, monitor and agent were killed before
them. A container that is left on record by that is removed here, or by the survivor of a supervisor that was killed.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from headway.agent import cgroups, container_group, tree
from headway.agent.container_use import Use
from headway.agent.link import Terms
from headway.agent.prepare import CONTAINERS, PREPARED
from headway.agent.sandbox import STATUS_FD, VARIABLES_FD, Usage
from headway.agent.scratch import remove
from headway.agent.variables import divided
from headway.domain.isolation import EVERYTHING
from headway.domain.task import Definition
from headway.logs import log
from headway.wire.exchange import Order

ENGINES = ("podman", "docker")
PODMANS_OWN = 32768  # the processes of a user; as root without all rights it cannot set more
ANSWER_S = 10.0  # for a daemon that is busy
INSIDE = "/headway"  # where a container finds its input and leaves its result
_START = "from headway.agent.contain import main; main()"
_FOLDER = ("HEADWAY_INPUT", "HEADWAY_RESULT", "HEADWAY_CHECKPOINT_DIR", "HEADWAY_SUBTASKS")
_LISTED = '$(echo $("$@" ps --all --quiet --filter label=%s))'
# An engine that is still busy with a container whose monitor was killed refuses to remove it, so: until it is gone, for a while.
# An engine that does not answer at all is given up each time, where there is a program for that. One that has just failed otherwise
# (a record that is locked) does not say so: only who is not found twice is gone.
_REMOVE = """
within=$(command -v timeout) && within="$within -k 5 60"
for name in $names; do
    case " $spared " in *" $name "*) continue ;; esac
    tries=0 missed=0
    while [ $tries -lt 20 ] && [ $missed -lt 2 ]; do
        if $within "$@" inspect --type container "$name"; then
            missed=0
            $within "$@" rm --force --volumes "$name" || sleep 1
        else
            missed=$((missed + 1))
            sleep 1
        fi
        tries=$((tries + 1))
    done
done
"""
_HOSTS_OWN = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LC_ALL", "LANG")  # of the node, not of the image


def engine_words(setting: str) -> list[str]:
    """The command line that runs containers on this node, or nothing: a name, a whole command line, `auto` or `none`."""
    if setting == "none":
        return []
    if setting == "auto":
        return next(([found] for name in ENGINES if (found := shutil.which(name))), [])
    words = shlex.split(setting)
    found = shutil.which(words[0]) if words else None
    return [os.path.abspath(found), *words[1:]] if found else []


def why_no_engine(words: list[str]) -> str:
    """Why the engine of this command line runs nothing; empty when it does. A client of Docker is worth nothing without its daemon."""
    if not words or os.path.basename(words[0]) != "docker":
        return ""
    try:
        asked = subprocess.run([*words, "version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if asked.returncode == 0 else asked.stderr.strip()[-300:] or f"it ended with {asked.returncode}"


class Containers:
    def __init__(self, engine: list[str], terms: Terms, instance: str, env: dict[str, str], work_dir: str, life: str) -> None:
        """`life`: what no other supervisor's containers are labelled with."""
        self._engine, self._terms, self._instance, self._env, self._life = engine, terms, instance, env, life
        self._disk = cgroups.disk_of(work_dir)
        # Where clients are started: monitors leave notes there, which must not follow a link that a task has put into its own folder.
        self.folder = os.path.join(work_dir, ".engine")
        remove(self.folder)
        os.makedirs(self.folder, mode=0o700)
        self._used = _used_on(work_dir)
        self.pids: set[int] = set()  # of commands that remove containers

    def command(self, order: Order, definition: Definition, env: dict[str, str], scratch: str, volumes: Sequence[str]) -> list[str]:
        """The whole command line. Values of variables are not on it, where every process of the node could read them: the launcher adds
        the file that most of them are in, and the client passes the others on from its own environment."""
        content, need = definition.content, definition.resources
        others = divided(self.inside(definition, env, scratch))[1]
        most, files, programs = self._terms.max_processes, self._terms.open_files, _most_of_a_user()
        options = [
            f"--name={self.name_of(order)}",
            f"--label=headway={self._instance}",
            f"--label=headway-life={self._life}",
            f"--network={'host' if definition.network == (EVERYTHING,) else 'none'}",
            "--security-opt=no-new-privileges",
            "--cap-drop=all",
            "--log-driver=none",  # the client hears all the same; else the engine keeps what is printed too, in files without a limit
            f"--pids-limit={most}",
            f"--ulimit=nofile={files}:{files}",
            # Counted for each user of the whole node: as low as the limit above, containers of one user would be in each other's way.
            # Without it, it is Podman's own default, which an engine with fewer rights may not set.
            f"--ulimit=nproc={programs}:{programs}",
            f"--volume={scratch}:{INSIDE}",
            *(f"--volume={path}:{path}:ro" for path in volumes),
            f"--workdir={definition.workdir or INSIDE}",
            *(f"--env={name}" for name in sorted(others)),
        ]
        if need.memory:
            options += [f"--memory={need.memory}b", f"--memory-swap={need.memory}b"]
        if need.cpus_milli:
            options.append(f"--cpus={need.cpus_milli / 1000:g}")
        for way in ("read", "write") if self._disk else ():
            options += [f"--device-{way}-iops={self._disk}:{need.iops}"] if need.iops else []
            options += [f"--device-{way}-bps={self._disk}:{need.bandwidth}"] if need.bandwidth else []
        runs = ["sh", "-ec", "\n".join(content.commands)] if content.commands else list(definition.args)
        return [
            sys.executable, "-P", "-c", _START, str(STATUS_FD), str(VARIABLES_FD), self.name_of(order),
            f"{need.memory},{most},{need.disk}", scratch, str(len(self._engine)), *self._engine, "run", *options, content.image, *runs,
        ]  # fmt: skip

    def inside(self, definition: Definition, env: dict[str, str], scratch: str) -> dict[str, str]:
        """The variables in the container: the task's, not the node's."""
        own = {
            name: value.replace(scratch, INSIDE) if name in _FOLDER else value
            for name, value in env.items()
            if name not in _HOSTS_OWN
        }
        return {**own, **{name: definition.env[name] for name in _HOSTS_OWN if name in definition.env}}

    def name_of(self, order: Order) -> str:
        return f"headway-{self._instance}-{order.id}-{order.attempt}"

    def members(self, order: Order) -> list[int]:
        """Every process in the container of this attempt."""
        return container_group.members(container_group.id_in(os.path.join(self.folder, self.name_of(order))))

    def used(self, order: Order, members: list[int]) -> Usage | None:
        """What the container of these processes has used by now; None when its groups are gone, or the engine makes none."""
        container = container_group.id_in(os.path.join(self.folder, self.name_of(order)))
        groups = next((found for pid in members if (found := container_group.groups_of(pid, container))), None)
        if groups is None:
            return None
        now = Use(groups).now()
        return Usage(now["cpu-ms"], now["peak"] or None, now["read"], now["written"])

    def left(self, order: Order) -> None:
        """A container's attempt was ended by force: nothing of it may stay on record."""
        self._remove(f"names={self.name_of(order)}")
        shutil.rmtree(os.path.join(self.folder, self.name_of(order)), ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Containers of earlier lives of this agent. What this one starts while the engine is asked is not among them."""
        if self._engine and os.path.exists(self._used):
            self._wake_monitors()
            self._remove(f"names={_LISTED % f'headway={self._instance}'}\nspared={_LISTED % f'headway-life={self._life}'}")

    def remove_all(self) -> None:
        """The supervisor is ending, and has killed everything: whoever starts the next, perhaps on another folder, finds no name taken."""
        if self._engine and os.path.exists(self._used):
            self._remove(f"names={_LISTED % f'headway-life={self._life}'}")

    def _wake_monitors(self) -> None:
        """An agent stops all it finds before it kills them, and may be killed in between. Monitors have no marks; when they go on they see
        that their container has ended, and end too."""
        name = f"headway-{self._instance}-".encode()
        found = [pid for pid in tree.table() if any(word.startswith(name) for word in tree.words(pid))]
        tree.send(found, signal.SIGCONT)

    def _remove(self, names: str) -> None:
        words = ["/bin/sh", "-c", f"{names}\n{_REMOVE}", "sh", *self._engine]
        devnull = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
        try:
            self.pids.add(os.posix_spawn(words[0], words, self._env, file_actions=devnull, setsid=True, setsigmask=()))
        except OSError as error:
            log("agent.cannot_remove_container", level="warning", reason=str(error))

    def ended(self, pid: int) -> None:
        self.pids.discard(pid)


def removal(engine: list[str], life: str, work_dir: str) -> str:
    """A program for the shell that removes the containers of a supervisor which was killed."""
    if not engine:
        return ""
    asks = f"[ -e {shlex.quote(_used_on(work_dir))} ] || exit 0\nset -- {shlex.join(engine)}"
    return f"{asks}\nnames={_LISTED % f'headway-life={life}'}\n{_REMOVE}"


def _used_on(work_dir: str) -> str:
    """The file that is there once an image was: the engine of a node without containers is not asked for any."""
    return os.path.join(work_dir, PREPARED, CONTAINERS)


def _most_of_a_user() -> int:
    """Processes on the node: what the agent has itself, if Podman has as many to give."""
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return PODMANS_OWN if own == resource.RLIM_INFINITY else min(own, PODMANS_OWN)
