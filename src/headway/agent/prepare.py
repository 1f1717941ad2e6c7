"""The process that prepares what one definition needs, started by the supervisor and gone when it is done (H1 H2 H5).

The job comes on descriptor 0, the answer goes to descriptor 1. Everything is kept in entries of a folder, named by a hash of what
went into them (entries.py): fetched files, prepared places (packages, archives, a prepare command), built programs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from headway.agent import tree
from headway.agent.disk_count import count
from headway.agent.entries import Entries, Failed
from headway.agent.fetching import CannotFetch, UploadServers, fetch_url
from headway.agent.health import for_want_of_room
from headway.agent.interpreters import NotStartable, in_volume
from headway.agent.sandbox import SYSTEM
from headway.agent.scratch import put
from headway.agent.unpack import BadArchive, unpack
from headway.agent.workshop import TMP, Workshop
from headway.domain import languages
from headway.domain.content import Archive, Requires, file_name, on_volume, uploaded
from headway.domain.task import Definition

PREPARED = "prepared"  # in the work folder
CONTAINERS = "containers-were-run"
LOG = 16 * 1024  # the end of a failed command's output that is shown
PRINTED = 16 * 2**20  # of what a running command printed, before all but its end is dropped
DYING_S = 30.0
LOOK_S = 0.25  # between two looks at what it writes
PIP = ("install", "--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--quiet")
NPM = ("npm", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


class Job(msgspec.Struct):
    """All that the process is told."""

    number: int
    definition: Definition
    root: str
    env: dict[str, str]  # of commands that install and build: never a token
    urls: list[str]
    token: str | None
    tls_ca: str | None
    hosts: list[str]
    volumes: dict[str, str]
    limit: int
    seconds: float
    sandbox_paths: list[str] = []
    engine: list[str] = []  # the command line of the container engine
    box: str = ""  # where the sandbox of its commands is made, for an isolated task
    user: int | None = None  # whose commands they are outside; None: the agent's own


class Answer(msgspec.Struct, omit_defaults=True):
    """What is ready, and where; or why it is not."""

    error: str = ""
    log: str = ""
    no_room: bool = False  # on the disk, that is why
    executable: str = ""  # where the fetched file is
    program: str = ""  # what was built from it
    image: bool = False  # the image is here
    env: dict[str, str] = {}
    entries: dict[str, int] = {}  # used, with their sizes
    watched: dict[str, tuple[int, int]] = {}  # files of the node this was made from: (mtime_ns, size)


class Preparation:
    def __init__(self, job: Job) -> None:
        self.job, self.content = job, job.definition.content
        self.root = Path(job.root)
        self.entries = Entries(self.root, job.limit)
        self.deadline = time.monotonic() + job.seconds
        self.servers: UploadServers | None = UploadServers(job.urls, job.token, job.tls_ca)
        self.answer = Answer()
        self.workshop = self._workshop(())

    def run(self) -> Answer:
        """Fetch everything first: what is run afterwards cannot reach the token any more."""
        definition = self.job.definition
        if self.content.image and self.content.prepared:  # refused when it was submitted: the image has no place for it
            raise Failed("a container has what its image has: requires, prepare and archives are not for it")
        source = self._file(definition.executable, self.content.checksum) if definition.executable else None
        archives = [(archive, self._file(archive.source, archive.checksum)) for archive in self.content.archives]
        self.servers, self.job.token = None, None
        if source is not None and str(source) != definition.executable:
            self.answer.executable = str(source)
        seen = [str(source)] if source is not None else []
        self.workshop = self._workshop([*seen, *self.job.sandbox_paths])
        if self.content.prepared:
            self._place(archives)
        language = languages.chosen(definition.executable, definition.interpreter) if source else None
        if source is not None and language is not None and language.build:
            self._build(source, language)
        if self.content.image:
            self._image(self.content.image)
        return self.answer

    def _workshop(self, shown: Sequence[str]) -> Workshop:
        return Workshop(self.job.definition, self.entries, shown, folder=self.job.box, user=self.job.user)

    def _entry(self, key: str, build: Callable[[Path], None]) -> Path:
        place, self.answer.entries[key] = self.entries.get(key, build)
        return place

    # --- files

    def _file(self, source: str, checksum: str) -> Path:
        wanted = checksum.removeprefix("sha256:")
        if upload := uploaded(source):
            return self._fetched(f"file-{upload[0]}", upload[1], lambda to: self._from_server(upload[0], to))
        if "://" in source:
            return self._from_url(source, wanted)
        path = Path(
            in_volume(source, self.job.volumes) if on_volume(source) else os.path.join(self.job.definition.workdir or "/", source)
        )
        if not on_volume(source):
            self._check_visible(path, source)
        try:
            found = path.stat()
        except OSError as error:
            raise Failed(f"{source!r} is not on this node: {error.strerror}") from None
        if wanted and _digest(path) != wanted:
            raise Failed(f"{source!r} is not what its checksum says: it has sha256:{_digest(path)}")
        self.answer.watched[str(path)] = (found.st_mtime_ns, found.st_size)
        return path

    def _check_visible(self, path: Path, source: str) -> None:
        """This process may read what an isolated task may not: a path is taken only where the sandbox shows it anyway."""
        if not self._visible(str(path)):
            raise Failed(f"{source!r} is not visible inside the sandbox: upload it with the task, or put it on a volume")

    def _visible(self, path: str) -> bool:
        shown = (*SYSTEM, *self.job.sandbox_paths)
        return not self.workshop.isolated or os.path.realpath(path).startswith(tuple(f"{folder.rstrip('/')}/" for folder in shown))

    def _fetched(self, key: str, name: str, fetch: Callable[[Path], None]) -> Path:
        def build(place: Path) -> None:
            with self._in_time(name):
                fetch(place / name)
            os.chmod(place / name, 0o755)  # so that a #! line works too

        path = self._entry(key, build) / name
        if not path.exists():  # the same content was uploaded under another name
            path = self._entry(f"{key}-{_hash(name)[:16]}", build) / name
        return path

    @contextlib.contextmanager
    def _in_time(self, name: str) -> Iterator[None]:
        """Also one that sends a byte now and then comes to an end: this node prepares few things at a time."""

        def late(*_: object) -> None:
            raise Failed(f"{name} could not be fetched within {self.job.seconds:g} s (setting prepare_s)")

        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, max(self.deadline - time.monotonic(), 0.001))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _from_server(self, digest: str, to: Path) -> None:
        assert self.servers is not None
        self.servers.upload(self.job.number, digest, to, self.job.limit)

    def _from_url(self, url: str, wanted: str) -> Path:
        """With a checksum: that content. Without: what it was when it was first fetched, for this tenant, on any node."""

        def fetch(to: Path) -> None:
            assert self.servers is not None
            found = fetch_url(url, to, hosts=self.job.hosts, limit=self.job.limit)
            pinned = wanted or self.servers.pin(self.job.number, url, found)
            if found != pinned:
                how = "its checksum says" if wanted else "it was when it was first fetched"
                then = "correct the checksum or what is there" if wanted else f"if the new one is right: headway pin rm {shlex.quote(url)}"
                raise Failed(f"{url} is not what {how}: expected sha256:{pinned}, got sha256:{found}; {then}")

        return self._fetched(f"url-{_hash(self.job.number if not wanted else '', url, wanted)}", file_name(url), fetch)

    # --- a prepared place

    def _place(self, archives: list[tuple[Archive, Path]]) -> None:
        content = self.content
        inputs = [_digest(path) for _, path in archives]
        of = (self.job.definition.isolation, self.job.definition.tenant)  # isolated tenants share nothing
        made = msgspec.json.encode((content.requires, content.prepare, content.archives, inputs, sys.version, of))
        place = self._entry(f"place-{_hash(made)}", lambda place: self._fill(place, archives))
        self.answer.env = place_env(place, self.job.env.get("PATH", os.defpath))

    def _fill(self, place: Path, archives: list[tuple[Archive, Path]]) -> None:
        for archive, path in archives:
            unpack(path, place, limit=self.job.limit, into=archive.into)
        if self.content.requires:
            self._install(place, self.content.requires)
        if self.content.prepare:
            env = {**self.job.env, **place_env(place, self.job.env.get("PATH", os.defpath))}
            self._call(self.content.prepare, place, "the prepare command", env)
        self.workshop.take_back(place)

    def _install(self, place: Path, requires: Requires) -> None:
        if requires.pip:
            _put(place / "requirements.txt", "\n".join(requires.pip) + "\n")
            words = [*self._pip(), *PIP, "--target", str(place / "python"), "-r", str(place / "requirements.txt")]
            self._call(words, place, f"pip could not install {_few(requires.pip)}")
        if requires.lock:
            _put(place / "package-lock.json", requires.lock)
            _put(place / "package.json", _package_of(requires.lock))
            self._call([*NPM, "ci"], place, "npm could not install the package-lock.json")
        if requires.npm:
            if not os.path.lexists(place / "package.json"):
                _put(place / "package.json", "{}")
            self._call([*NPM, "install", *requires.npm], place, f"npm could not install {_few(requires.npm)}")

    def _pip(self) -> list[str]:
        """The agent's own pip, which installs for the Python that runs the tasks; else any that is told for which."""
        if importlib.util.find_spec("pip") is not None:
            return [sys.executable, "-m", "pip"]
        for name in ("pip3", "pip"):
            if found := shutil.which(name, path=self.job.env.get("PATH")):
                return [found, "--python", sys.executable]
        raise Failed("this node has no pip: it cannot install Python packages")

    # --- programs and images

    def _build(self, source: Path, language: languages.Language) -> None:
        compiler = shutil.which(language.build[0], path=self.job.env.get("PATH"))
        if compiler is None:
            raise Failed(f"{language.build[0]!r}, which builds {language.name} programs, was not found on this node")
        if not self._visible(compiler):
            raise Failed(
                f"{compiler!r}, which builds {language.name} programs, is not visible inside the sandbox: let the operator add its folder, "
                "and those of what it needs, to the agent's sandbox_paths"
            )
        of = os.stat(compiler)

        def build(place: Path) -> None:
            filled = {"source": str(source), "program": str(place / "program")}
            words = [compiler, *(word.format(**filled) for word in language.build[1:])]
            self._call(words, place, f"{language.build[0]} could not build {source.name}")
            self.workshop.take_back(place)
            if not stat.S_ISREG(os.lstat(place / "program").st_mode):
                raise Failed(f"{language.build[0]} built no plain file from {source.name}")

        key = _hash(
            self.job.definition.tenant, _digest(source), language.name, compiler, of.st_mtime_ns, of.st_size, *language.build
        )
        self.answer.program = str(self._entry(f"program-{key}", build) / "program")

    def _image(self, image: str) -> None:
        engine = self.job.engine
        if not engine:
            raise Failed("this node has neither podman nor docker")
        with self.entries.locked(f"image-{_hash(image)}"):
            inspect = subprocess.run([*engine, "image", "inspect", image], env=self.job.env, capture_output=True)
            if inspect.returncode != 0:
                self.workshop.isolated = False  # the engine is the node's own program, and this its own work
                with tempfile.TemporaryDirectory(dir=self.root, prefix=TMP) as nothing:  # what is kept for others is not what it writes
                    self._call([*engine, "pull", "--quiet", image], Path(nothing), f"the image {image} could not be pulled")
        (self.root / CONTAINERS).touch()  # the next supervisor looks for containers that were left
        self.answer.image = True

    # --- commands

    def _call(self, words: Sequence[str], folder: Path, what: str, env: dict[str, str] | None = None) -> None:
        """Run a command in a folder; when it fails, say what failed and show the end of what it printed."""
        log = self.root / f"log-{os.getpid()}"
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(open(log, "a+b"))
            log.unlink()
            command = self.workshop.command(words, folder, env or self.job.env, stack)
            try:
                process = subprocess.Popen(
                    command.argv,
                    cwd=folder,
                    env=command.env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    pass_fds=command.fds,
                    user=command.user,
                    group=command.user,
                    extra_groups=None if command.user is None else (),
                )
            except OSError as error:
                raise Failed(f"{what}: {words[0]!r} cannot be started: {error.strerror}") from None
            if why := self._attend(process, out):
                tree.kill([process.pid], None)
                process.wait()
                self._end_others()
                raise Failed(f"{what}: {why}", _end(out))
            code = process.returncode
            self._end_others()
            if code != 0:
                how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
                raise Failed(f"{what}: {words[0].rpartition('/')[2]} {how}", _end(out))

    def _end_others(self) -> None:
        """What a command left in the background: when this returns nobody works in its place any more."""
        until = time.monotonic() + DYING_S
        try:
            while time.monotonic() < until:
                tree.kill(tree.children(os.getpid()), None)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                time.sleep(0.005)
        except ChildProcessError:
            return
        raise Failed(f"what a command left in the background does not end within {DYING_S:g} s")

    def _attend(self, process: subprocess.Popen[bytes], out: IO[bytes]) -> str:
        """Until it ends, or there is a reason to end it: what it writes is the node's disk, which others need too."""
        while True:
            try:
                process.wait(min(LOOK_S, max(self.deadline - time.monotonic(), 0.0)))
            except subprocess.TimeoutExpired:
                _shorten(out)
            else:
                return ""
            if time.monotonic() >= self.deadline:
                return f"it took longer than {self.job.seconds:g} s (setting prepare_s)"
            if count(self.workshop.folders, self.job.limit).total > self.job.limit:
                return f"it wrote more than this node keeps ({self.job.limit} bytes, setting prepared_size), or nested folders too deeply"


def place_env(place: Path, path: str) -> dict[str, str]:
    """How a task finds what was prepared."""
    folders = [place / "bin", place / "python" / "bin", place / "node_modules" / ".bin"]
    return {
        "HEADWAY_PREPARED": str(place),
        "PATH": os.pathsep.join([*(str(folder) for folder in folders), path]),
        "PYTHONPATH": str(place / "python"),
        "NODE_PATH": str(place / "node_modules"),
    }


def main() -> None:
    """The job is on descriptor 0, the answer goes to descriptor 1."""
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    with open(0, "rb") as file:
        job = msgspec.msgpack.decode(file.read(), type=Job)
    os.makedirs(job.root, mode=0o755, exist_ok=True)
    preparation = Preparation(job)
    entries = preparation.answer.entries  # what it made stays, also when something else could not be made
    try:
        answer = preparation.run()
    except Failed as error:
        answer = Answer(error=str(error), log=error.log, no_room=for_want_of_room(error, error.log), entries=entries)
    except (CannotFetch, BadArchive, NotStartable) as error:
        answer = Answer(error=str(error), no_room=for_want_of_room(error), entries=entries)
    except OSError as error:
        why = f"the node could not prepare the task: {error}"
        answer = Answer(error=why, no_room=for_want_of_room(error), entries=entries)
    os.write(1, msgspec.msgpack.encode(answer))


def _shorten(out: IO[bytes]) -> None:
    """Of what a command prints, its end is kept."""
    if os.fstat(out.fileno()).st_size > PRINTED:
        end = _end(out).encode()
        os.ftruncate(out.fileno(), 0)
        os.write(out.fileno(), end)


def _end(out: IO[bytes]) -> str:
    out.flush()
    size = out.seek(0, os.SEEK_END)
    out.seek(max(0, size - LOG))
    return str(out.read().decode(errors="replace").replace("\0", "\ufffd"))


def _put(path: Path, text: str) -> None:
    """Commands of the tenant have written in this folder: a link they left under the name is not followed."""
    put(str(path), text.encode())


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _package_of(lock: str) -> str:
    """The package.json behind a lock file: npm wants both."""
    root = msgspec.json.decode(lock).get("packages", {}).get("", {})
    wanted = ("name", "version", "dependencies", "devDependencies", "optionalDependencies")
    return msgspec.json.encode({key: root[key] for key in wanted if key in root}).decode()


def _hash(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
