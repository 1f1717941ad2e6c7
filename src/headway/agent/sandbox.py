"""The sandbox of an isolated task: bubblewrap with namespaces of its own, a read-only system, and a filter of system calls (H11).

Inside there are `/task` (the task's own folder), `/tmp` (its own too), the system's programs and libraries read-only, a fresh `/proc` with
only its own processes, a minimal `/dev`, and a network with nothing but a loopback. It has no capabilities and can gain none. Outside it is
an unprivileged user of its own, one for each slot, when the agent runs as root.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import ipaddress
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from headway.agent import seccomp
from headway.agent.gate import Grant
from headway.agent.slots import can_change_user
from headway.domain.addresses import OF_THE_NODE
from headway.domain.isolation import EVERYTHING, place
from headway.wire.exchange import Excess

WORK = "/task"
DOOR = "headway.sock"  # in its /etc: the way to the server (door.py)
AUTHORITY = "headway-ca.pem"  # in its /etc: by what a task with the node's network knows the server
USER = 1000  # inside; outside it is the slot's
FILTER_FD, STATUS_FD, HELD_FD, VARIABLES_FD = 10, 11, 12, 13
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What programs expect of /etc, and nothing that is private: no passwd of the host, no keys, no settings of other services.
ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "crypto-policies", "debian_version", "gai.conf", "inputrc", "java*",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic", "mime.types", "nodejs", "nsswitch.conf", "openmpi",
    "os-release", "perl", "php", "pki", "protocols", "python3", "R", "services", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "timezone",
)  # fmt: skip
NAMES = ("/etc/hosts", "/etc/resolv.conf")
NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
ALONE = ("--unshare-net",)
LIVING = ("/proc", "/sys", "/dev")  # where reading a file may wait, or change something
PROBE_S = 10.0
MADE = ".made"
SCRIPT_WORDS, SCRIPT_BYTES = 3, 2**18  # of a command line; of a script
CALL = re.compile(rb"(?<![\w/.-])headway +[a-z]")
CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE = 0x0002_0000, 4096, 16384, 1 << 19


class Usage(NamedTuple):
    """What an attempt used."""

    cpu_ms: int
    max_memory: int | None
    read_bytes: int
    written_bytes: int


class Sandbox:
    """Builds command lines. `folder` keeps the filter and the small files that every sandbox sees; slots' users may read it."""

    def __init__(
        self,
        folder: str,
        *,
        shown: Sequence[str] = (),
        sources: Sequence[str] = (),
        tls_ca: str | None = None,
        program: str = "bwrap",
    ) -> None:
        """`shown` is visible in every sandbox; of `sources`, parts may be shown to single tasks."""
        self._bwrap = shutil.which(program) or program
        os.makedirs(folder, mode=0o711, exist_ok=True)
        os.chmod(folder, 0o711)
        self.filter = os.path.join(folder, "filter.bpf")
        _put(self.filter, seccomp.program())
        self.etc = etc = os.path.join(folder, "etc")
        _copy_etc(etc)
        if tls_ca:
            with open(tls_ca, "rb") as file:
                _put(os.path.join(etc, AUTHORITY), file.read())
        self._gate = os.path.join(folder, "gate.py")
        with open(os.path.join(os.path.dirname(__file__), "gate.py"), "rb") as file:
            _put(self._gate, file.read())
        self._fixed = [*_system(), "--ro-bind", etc, "/etc"]
        self._hidden: list[tuple[str, str]] = []  # paths that slots' users cannot reach -> where they can
        self.python = python_paths()  # shown to those who need it: each mount costs time
        for path in (*shown, *self.python, *sources):
            self._make_reachable(folder, path)
        self._always = self._show(shown)
        self._shown = tuple(f"{path.rstrip('/')}/" for path in (*SYSTEM, *shown, *self.python))

    def _make_reachable(self, folder: str, path: str) -> None:
        """Slots' users may not be able to walk to it: then there is another way, for them alone."""
        of_files = not os.path.isdir(path)
        parts = _parts(path)[of_files:]
        if not can_change_user() or not os.path.exists(path) or all(os.stat(part).st_mode & 0o001 for part in parts):
            return
        there = os.path.join(folder, f"shown-{'file-' * of_files}{len(self._hidden)}")
        if of_files:
            if not os.path.exists(there):  # replaced, it would be gone for whoever has something mounted on it
                _put(there, b"")
        else:
            os.makedirs(there, exist_ok=True)
        self._hidden.append((path, there))

    def _show(self, paths: Iterable[str]) -> list[str]:
        """Paths of the host that can be read inside, at the same place."""
        return [word for path in paths for word in ("--ro-bind", self.source(path), path)]

    def source(self, path: str) -> str:
        """Where whoever makes the sandbox finds what is at this path."""
        for hidden, there in self._hidden:
            if f"{path}/".startswith(f"{hidden}/"):
                return there + path[len(hidden) :]
        return path

    def uncover(self) -> None:
        """For the calling thread, as root and in a mount namespace of its own: what users of slots could not reach, they can."""
        if not self._hidden:
            return
        _call("unshare", CLONE_NEWNS)
        _call("mount", None, b"/", None, MS_REC | MS_SLAVE, None)
        for path, there in self._hidden:
            _call("mount", os.fsencode(path), os.fsencode(there), None, MS_BIND | MS_REC, None)

    def needed_by(self, argv: Sequence[str]) -> list[str]:
        """The agent's own Python, for a program that is it, and for one that calls `headway`."""
        ours = any(argv[0].startswith(f"{path}/") for path in self.python)
        return self.python if ours or any(map(_calls_headway, argv[:SCRIPT_WORDS])) else []

    def visible(self, path: str) -> bool:
        """Whether what the host has at this path is there inside too."""
        return f"{path}/".startswith(self._shown)

    def command(
        self,
        argv: Sequence[str],
        directory: str,
        *,
        private_tmp: str,
        shown: Iterable[str] = (),
        mounts: Sequence[str] = (),
        chdir: str = WORK,
        network: Sequence[str] = ALONE,
        hosts: str | None = None,
        filter_fd: int = FILTER_FD,
        status_fd: int | None = STATUS_FD,
        variables_fd: int | None = VARIABLES_FD,
        held: bool = False,
    ) -> list[str]:
        """The command line of `argv` inside. `directory` becomes /task, `shown` are further paths it may read, `mounts` bubblewrap's own
        words for others.

        `network` is how it gets one: the default is an empty one of its own, nothing is the network of whoever starts it, with the names
        that are known there unless `hosts` is a file of others. One that is
        `held` begins when HELD_FD comes to its end: it reads more words from there, and there are none. Its variables are read from
        `variables_fd` (variables.py); without one they are those of whoever starts it.
        """
        return [
            self._bwrap, *(("--args", str(HELD_FD)) if held else ()),
            *(("--args", str(variables_fd)) if variables_fd is not None else ()), *NAMESPACES, *network,
            "--die-with-parent", "--uid", str(USER), "--gid", str(USER), "--hostname", "task",
            *self._fixed, *(("--ro-bind", hosts, "/etc/hosts") if hosts else () if network else _names_of_the_node()),
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
            "--bind", private_tmp, "/tmp", "--symlink", "../tmp", "/var/tmp",
            *self._always, *self._show(shown),  # after /tmp: they may be below the one of the host
            "--bind", directory, WORK, *mounts, "--remount-ro", "/", "--chdir", chdir,
            *(("--json-status-fd", str(status_fd)) if status_fd is not None else ()),
            "--seccomp", str(filter_fd), "--", *argv,
        ]  # fmt: skip

    def connected(
        self, argv: Sequence[str], directory: str, network: Sequence[str], bandwidth: int, *, private_tmp: str, **options: Any
    ) -> tuple[list[str], dict[str, str]]:
        """command() with the network that was granted, and what must be in the environment of whoever runs it."""
        grants = grants_of(network) if network != (EVERYTHING,) else []
        if not grants:
            alone = ALONE if network != (EVERYTHING,) else ()
            return self.command(argv, directory, private_tmp=private_tmp, network=alone, **options), {}
        self.hosts_file(hosts := f"{private_tmp}.hosts", grants)
        command = self.command(argv, directory, private_tmp=private_tmp, network=(), hosts=hosts, **options)
        return self.through_gate(command, grants, bandwidth)

    def through_gate(self, command: list[str], grants: list[Grant], bandwidth: int) -> tuple[list[str], dict[str, str]]:
        """The command line with a way out to granted places before it, and what the gate needs in its environment."""
        never = [str(network) for network in OF_THE_NODE]
        spec = msgspec.json.encode({"grants": grants, "bandwidth": bandwidth, "never_by_name": never}).decode()
        python = self.source(os.path.realpath(sys.executable))
        home = self.source(os.path.realpath(sys.base_prefix))
        return [python, "-S", "-P", self._gate, spec, *command], {"PYTHONHOME": home}

    def hosts_file(self, path: str, grants: list[Grant]) -> None:
        """Granted names lead to the sandbox's own loopback."""
        lines = [f"{address} {host}\n" for host, _, address in grants if host != address]
        _put(path, ("127.0.0.1 localhost task\n::1 localhost\n" + "".join(dict.fromkeys(lines))).encode())

    @property
    def opens(self) -> tuple[tuple[int, str], ...]:
        """Descriptors the command line names."""
        return ((FILTER_FD, self.filter),)


class Told(NamedTuple):
    """What the sandbox, or the launcher of a container, says about itself at the end."""

    first: int | None  # the process that is number 1 inside
    exit_code: int | None  # None: the program was never started, or everything was killed
    left: bool = False  # its container could not be removed
    excess: Excess | None = None  # the limit that a container was ended for
    used: Usage | None = None  # by a container


def grants_of(network: Sequence[str]) -> list[Grant]:
    """Granted places with the addresses that stand for them inside: an address stands for itself, a name for one of 127.1/16."""
    names: dict[str, str] = {}
    found: list[Grant] = []
    for word in network:
        if (at := place(word)) is None:
            continue
        host, port = at
        try:
            address = str(ipaddress.ip_address(host))
        except ValueError:
            number = len(names) + 1
            address = names.setdefault(host, f"127.1.{number >> 8}.{number & 255}")
        found.append((host, port, address))
    return found


def told(text: bytes) -> Told:
    found: dict[str, int] = {}
    for line in text.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            found |= {key: value for key, value in msgspec.json.decode(line).items() if isinstance(value, int)}
    over = next((what for what in ("memory", "processes", "disk") if f"over-{what}" in found), None)
    excess = Excess(over, found[f"over-{over}"], found.get("allowed", 0)) if over is not None else None
    used = Usage(found["cpu-ms"], found.get("peak") or None, found.get("read", 0), found.get("written", 0)) if "cpu-ms" in found else None
    return Told(found.get("child-pid"), found.get("exit-code"), bool(found.get("left")), excess, used)


def _calls_headway(word: str) -> bool:
    """Whether a shell's words, or the script that is named, call `headway`: showing it to everyone would cost each start its mounts."""
    if not word.startswith("/"):
        return CALL.search(os.fsencode(word)) is not None
    word = os.path.realpath(word)
    if word.startswith(tuple(f"{path}/" for path in (*SYSTEM, *LIVING))):
        return False
    try:
        if not stat.S_ISREG(os.stat(word).st_mode):  # opening a pipe waits, opening a device may do something
            return False
        fd = os.open(word, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return CALL.search(file.read(SCRIPT_BYTES) or b"") is not None
    except OSError:
        return False


def _parts(path: str) -> list[str]:
    """The folders that lead to a path, and itself."""
    return [path, *(path[:at] or "/" for at, letter in enumerate(path) if letter == "/")]


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def python_paths() -> list[str]:
    """Where this Python and its packages are, as far as the system's folders do not have them already."""
    found = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if path and os.path.isdir(path)]
    found = [path for path in dict.fromkeys(found) if not path.startswith("/usr/") and path != "/usr"]
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


def _names_of_the_node() -> list[str]:
    """How names are looked up on the node, now: for those who have its network."""
    return [word for path in NAMES for word in ("--ro-bind-try", os.path.realpath(path), path)]


def _system() -> list[str]:
    words: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    return words


def _copy_etc(folder: str) -> None:
    """One folder for all sandboxes instead of forty mounts in each: bubblewrap takes 0.5-1 ms for every mount.

    Made by the agent before it registers; its supervisor, which must not be held up, finds it. Who may not read a file of the host may not
    read its copy either: owners and modes stay.
    """
    if os.path.exists(os.path.join(folder, MADE)):
        return
    os.makedirs(folder, mode=0o755, exist_ok=True)
    found = [path for name in ETC for path in sorted(glob.glob(f"/etc/{name}"))]
    subprocess.run(["cp", "-a", "--parents", *(path[1:] for path in found), os.path.dirname(folder)], cwd="/", stderr=subprocess.DEVNULL)
    _put(os.path.join(folder, "passwd"), f"task:x:{USER}:{USER}:task:{WORK}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n".encode())
    _put(os.path.join(folder, "group"), f"task:x:{USER}:\nnogroup:x:65534:\n".encode())
    _put(os.path.join(folder, "hosts"), b"127.0.0.1 localhost task\n::1 localhost\n")
    _put(os.path.join(folder, "resolv.conf"), b"")
    _put(os.path.join(folder, MADE), b"")


def installed() -> tuple[str, int] | None:
    """The bubblewrap that is there now: where, and since when."""
    found = shutil.which("bwrap")
    return None if found is None else (found, os.stat(found).st_mtime_ns)


def why_not(folder: str, uid: int | None) -> str | None:
    """Why this node cannot run isolated tasks, or None: one is started for a try."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    if not seccomp.supported():
        return "there is no filter of system calls for this processor"
    work = os.path.join(folder, "probe")
    os.makedirs(work, exist_ok=True)
    sandbox = Sandbox(folder)
    if uid is not None:
        os.chown(work, uid, uid)
    try:
        with open(sandbox.filter, "rb") as bpf:
            command = sandbox.command(
                ["/bin/true"], work, private_tmp=work, filter_fd=bpf.fileno(), status_fd=None, variables_fd=None
            )
            user = {"user": uid, "group": uid, "extra_groups": ()} if uid is not None else {}
            done = subprocess.run(  # type: ignore[call-overload]
                command, pass_fds=(bpf.fileno(),), capture_output=True, text=True, timeout=PROBE_S, env={}, **user
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"bubblewrap ended with {done.returncode}"])[-1]


def _put(path: str, content: bytes) -> None:
    """Replaced in one step: an agent beside us may be reading it, or writing the same."""
    new = f"{path}.{os.getpid()}.new"
    with open(new, "wb") as file:
        file.write(content)
    os.chmod(new, 0o644)
    os.replace(new, path)
