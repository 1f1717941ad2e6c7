"""All settings, declared once: flags win over the environment, that over the TOML file, that over the defaults.

Everything is read and checked here, once, when a process starts; an error names the flag, the variable, or the file and
line it came from. docs/settings.md is generated from this file (`python docs/settings.py`) and compared by a test.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from headway.domain import units
from headway.errors import ConfigError, InvalidInput

MIB = 2**20
DEFAULT_URL = "http://127.0.0.1:8470"
KILL_AND_DRIFT_S = 1.5  # a fenced node needs up to 1 s to kill its tasks; clocks may drift by 0.5 s meanwhile
LEVELS = ("debug", "info", "warning", "error")

# Variables of ours that are no settings: where the file is, and what tasks see.
OTHER_VARIABLES = {"CONFIG", "TASK_ID", "ATTEMPT", "INPUT", "RESULT", "CHECKPOINT_DIR", "DEADLINE", "PREPARED", "AGENT_INSTANCE"}


@dataclass(frozen=True)
class Option:
    """What the type of a setting does not say."""

    section: str  # of the TOML file; "" is the top
    help: str
    unit: str = ""  # "duration" and "size" accept "10m" and "64MiB"; "path", "paths", "labels" likewise
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    key: str = ""  # its name in the TOML file, when that is not the setting's
    variable: str = ""  # likewise in the environment, after HEADWAY_


def default_data_dir(env: Mapping[str, str] = os.environ) -> str:
    return os.path.join(_at_home(env.get("XDG_DATA_HOME") or "~/.local/share"), "headway")


def _at_home(path: str) -> str:
    """A user whom no list knows, and without HOME, has none: a folder that nobody can make, so that who needs it is told its name."""
    found = os.path.expanduser(path)
    return found if not found.startswith("~") else found.replace("~", "/nonexistent", 1)


def _duration(section: str, text: str, *, low: float = 0.0) -> Option:
    return Option(section, text, unit="duration", low=low)


def _size(section: str, text: str, *, low: int = 0) -> Option:
    return Option(section, text, unit="size", low=low)


_COUNT = 2**31 - 1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process. `sources` tells where each that is no default came from."""

    data_dir: Annotated[
        str, Option("", "Folder of the embedded database, tokens and working files.", unit="path", variable="DATA")
    ] = msgspec.field(default_factory=default_data_dir)
    url: Annotated[str, Option("", "Server to talk to; agents take several, separated by commas.", unit="urls")] = DEFAULT_URL
    token: Annotated[str | None, Option("", "Token to show to the server.")] = None
    tls_ca: Annotated[str | None, Option("", "Authority (PEM file) that signed the servers' certificates.")] = None
    log_level: Annotated[str, Option("", "How much to log.", choices=LEVELS)] = "info"
    log_format: Annotated[str, Option("", "Log for people or for programs.", choices=("text", "json"))] = "text"
    max_checkpoint: Annotated[int, _size("", "Largest checkpoint of a task.", low=1024)] = 64 * MIB

    database: Annotated[str | None, Option("database", "PostgreSQL (15 or newer) to use; embedded when not set.", key="url")] = None
    pool_size: Annotated[
        int, Option("database", "Connections of one server: half for tasks, a quarter for people who ask.", low=6, high=100)
    ] = 12
    db_statement_timeout_s: Annotated[float, _duration("database", "Longest statement.", low=1.0)] = 30.0

    host: Annotated[str, Option("server", "Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option("server", "Port to listen on; 0 takes a free one.", low=0, high=65535)] = 8470
    tls_cert: Annotated[str | None, Option("server", "Certificate (PEM file): serve HTTPS.")] = None
    tls_key: Annotated[str | None, Option("server", "Private key (PEM file) of the certificate.")] = None
    heartbeat_s: Annotated[float, _duration("server", "How often agents report that they live.", low=0.05)] = 1.0
    fence_s: Annotated[float, _duration("server", "Without contact for so long an agent kills its tasks.", low=0.1)] = 3.0
    lost_s: Annotated[float, _duration("server", "Without contact for so long a node is lost.", low=0.2)] = 5.0
    hold_s: Annotated[float, _duration("server", "While the database is away, agents hold on for so long.")] = 60.0
    impossible_s: Annotated[
        float, _duration("server", "A ready task that no node could ever run any more fails when that has been so for this long.", low=0.1)
    ] = 600.0
    duty_lease_s: Annotated[float, _duration("server", "A duty's leader that is silent for so long is replaced.", low=0.5)] = 10.0
    retention_days: Annotated[int, Option("server", "Days that finished tasks are kept.", low=1, high=36500)] = 30
    secrets_key: Annotated[
        str | None, Option("server", "File with the key that seals secrets; inside the data folder when not set.", unit="path")
    ] = None
    max_body: Annotated[int, _size("server", "Largest request.", low=1024)] = 64 * MIB
    admission_queue: Annotated[int, _size("server", "Bytes of requests that may wait for their commit.", low=MIB)] = 256 * MIB

    webhook_networks: Annotated[
        str, Option("server", "Networks that webhooks may reach besides public addresses, as 10.0.0.0/8, separated by commas.")
    ] = ""
    webhook_timeout_s: Annotated[float, _duration("server", "How long a webhook may take to answer.", low=0.1)] = 10.0
    webhook_concurrency: Annotated[
        int, Option("server", "Webhook messages on their way at once from one server.", low=1, high=1000)
    ] = 32

    node_name: Annotated[str, Option("agent", "Name of this node; the same name is the same node.")] = msgspec.field(
        default_factory=socket.gethostname
    )
    cpus: Annotated[float | None, Option("agent", "CPUs to offer; all when not set.", low=0.0, high=100_000)] = None
    memory: Annotated[int | None, _size("agent", "Memory to offer; all when not set.")] = None
    disk: Annotated[int | None, _size("agent", "Disk to offer; what is free when not set.")] = None
    labels: Annotated[dict[str, str], Option("agent", "Labels of this node.", unit="labels")] = {}
    paths: Annotated[list[str], Option("agent", "Folders to import functions from.", unit="paths")] = []
    work_dir: Annotated[str | None, Option("agent", "Folder for tasks; inside the data folder when not set.", unit="path")] = None
    look_s: Annotated[float, _duration("agent", "How often to look which languages, volumes and engines are here.", low=0.1)] = 60.0
    drain_s: Annotated[float, _duration("agent", "How long a stopping agent waits for running tasks.")] = 30.0
    runner_tasks: Annotated[int, Option("agent", "A runner is replaced after so many tasks.", low=1, high=_COUNT)] = 1_000_000
    runner_growth: Annotated[int, _size("agent", "A runner is replaced when it grew by so much.", low=MIB)] = 256 * MIB
    runner_idle_s: Annotated[float, _duration("agent", "An idle runner ends after so long.")] = 60.0
    max_output: Annotated[int, _size("agent", "Output kept of one attempt; the middle of longer output is cut.", low=1024)] = MIB
    max_processes: Annotated[int, Option("agent", "Processes and threads of one task.", low=1, high=1_000_000)] = 512
    open_files: Annotated[int, Option("agent", "Open files of one process of a task.", low=64, high=_COUNT)] = 8192
    cgroups: Annotated[
        str, Option("agent", "Limits by the kernel's cgroups, or by a weaker watcher.", choices=("use", "avoid"))
    ] = "use"
    first_port: Annotated[int, Option("agent", "First TCP port to give to tasks.", low=1024, high=64_000)] = 20_000
    sandbox_dir: Annotated[
        str | None, Option("agent", "Folder for isolated tasks; others must be able to enter it.", unit="path")
    ] = None
    sandbox_paths: Annotated[
        list[str], Option("agent", "Folders that isolated tasks may read besides the system's.", unit="paths")
    ] = []
    sandbox_uid: Annotated[
        int, Option("agent", "First of 65,536 user ids for isolated tasks, when the agent is root.", low=1000, high=_COUNT)
    ] = 200_000

    volumes: Annotated[dict[str, str], Option("agent", "Shared volumes of this node: name=folder.", unit="labels")] = {}
    runners: Annotated[dict[str, str], Option("agent", "Further warm runners: language=command line.", unit="labels")] = {}
    fetch_hosts: Annotated[
        list[str], Option("agent", "Hosts of URLs that tasks are fetched from or log to; none when not set.", unit="words")
    ] = []
    prepare_s: Annotated[float, _duration("agent", "Longest preparation of a task's packages.", low=1.0)] = 600.0
    prepared_size: Annotated[int, _size("agent", "Prepared packages and files that are kept.", low=MIB)] = 10 * 1024 * MIB
    output_store: Annotated[
        str | None, Option("", "Object store of whole outputs, for agents and servers: file:///folder, s3://bucket/prefix.")
    ] = None
    stored_output: Annotated[int, _size("agent", "Largest output that is kept in the object store.", low=MIB)] = 1024 * MIB
    syslog: Annotated[str, Option("agent", "Where `logger: syslog` goes: a socket, or host:port by UDP.")] = "/dev/log"
    journald: Annotated[str, Option("agent", "Where `logger: journald` goes.")] = "/run/systemd/journal/socket"
    log_dir: Annotated[
        str | None,
        Option("agent", "Folder of `logger: file:NAME`, with one for each tenant; inside the work folder when not set.", unit="path"),
    ] = None
    container_engine: Annotated[str, Option("agent", "Command line that runs containers: auto, none, podman, docker ...")] = "auto"

    sources: dict[str, str] = {}


def load(*, file: str | None = None, env: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings of this process, or a ConfigError that says where the mistake is."""
    values: dict[str, Any] = {"data_dir": default_data_dir(env)}
    sources: dict[str, str] = {}
    for layer in (_from_file(file, env), _from_env(env), _from_flags(flags or {})):
        for name, value, source in layer:
            values[name] = _read(name, value, source)
            sources[name] = source
    settings = Settings(**values, sources=sources)
    _check_together(settings)
    return settings


@cache
def options() -> dict[str, tuple[Any, Option]]:
    """Every setting with its type and its Option, in the order of the declaration."""
    hints = get_type_hints(Settings, include_extras=True)
    found = {}
    for name in Settings.__struct_fields__:
        if name != "sources":
            kind, option = get_args(hints[name])
            found[name] = (kind, option)
    return found


def environment(settings: Settings) -> dict[str, str]:
    """The settings that are no defaults, as variables: a process started with them loads the same settings."""
    return {variable_of(name): _written(getattr(settings, name), options()[name][1].unit) for name in settings.sources}


def variable_of(name: str) -> str:
    return "HEADWAY_" + (options()[name][1].variable or name.upper())


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


_Layer = Iterator[tuple[str, Any, str]]


def _from_flags(flags: Mapping[str, Any]) -> _Layer:
    for name, value in flags.items():
        if name not in options():
            raise ConfigError(f"there is no setting {name!r}", hint=_near(name, options()), where=flag_of(name))
        if value is not None:
            yield name, value, flag_of(name)


def _from_env(env: Mapping[str, str]) -> _Layer:
    names = {variable_of(name): name for name in options()}
    others = {"HEADWAY_" + name for name in OTHER_VARIABLES}
    for variable, value in env.items():
        if variable in names:
            if value != "":  # an empty variable is how a shell or a unit file says "not set"
                yield names[variable], value, variable
            continue
        foreign = not variable.startswith("HEADWAY_") or variable in others or variable.startswith("HEADWAY_VOLUME_")
        # Programs around us may have variables of their own; only what looks like a slip is refused.
        if not foreign and (near := _nearest(variable, names, cutoff=0.88)):
            raise ConfigError(f"there is no variable {variable}", hint=f"did you mean {near}?", where=variable)


def _from_file(file: str | None, env: Mapping[str, str]) -> _Layer:
    path = _find_file(file, env)
    if path is None:
        return
    import tomllib  # only when there is a file

    try:
        text = path.read_text()
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {path} cannot be read: {error}", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", hint="the file is TOML: name = value", where=str(path)) from error
    sections = {option.section for _, option in options().values()}
    for key, value in content.items():
        if key in sections and isinstance(value, dict):
            for inner, found in value.items():
                yield _name_of(key, inner, path, text), found, f"{path}:{_line(text, key, inner)}"
        else:
            yield _name_of("", key, path, text), value, f"{path}:{_line(text, '', key)}"


def _find_file(file: str | None, env: Mapping[str, str]) -> Path | None:
    if named := file or env.get("HEADWAY_CONFIG"):
        return Path(named).expanduser()
    base = env.get("XDG_CONFIG_HOME") or "~/.config"
    places = (Path("headway.toml"), Path(_at_home(base)) / "headway" / "headway.toml")
    return next((path for path in places if path.is_file()), None)


def _name_of(section: str, key: str, path: Path, text: str) -> str:
    """The setting a key of the file stands for."""
    keys = {(option.section, option.key or name): name for name, (_, option) in options().items()}
    if (section, key) in keys:
        return keys[section, key]
    where = f"{path}:{_line(text, section, key)}"
    home = next((home for home, known in keys if known == key), None)
    if home is not None:
        hint = f"it belongs into [{home}]" if home else "it belongs to the top of the file, before the first [section]"
    else:
        words = [known for home, known in keys if home == section]
        hint = _near(key, words if section else [*words, *(home for home, _ in keys if home)])
    inside = f" in [{section}]" if section else ""
    raise ConfigError(f"{where}: there is no setting {key!r}{inside}", hint=hint, where=where)


def _line(text: str, section: str, key: str) -> int:
    """The line of a key. TOML's parser keeps none; a dotted or quoted key is not found and gives its section's line."""
    at, best = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([\w.\-]+)\s*\]+", line):
            at = header[1]
            if at == section or at == f"{section}.{key}".strip("."):
                best = number
        elif at == section and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
    return best


def _near(word: str, words: Iterable[str]) -> str:
    found = _nearest(word, words)
    return f"did you mean {found!r}?" if found else "docs/settings.md lists all settings"


def _nearest(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    import difflib  # only for mistakes: every command loads this module

    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)), None)


def _read(name: str, value: Any, source: str) -> Any:
    """The value in its type and range."""
    kind, option = options()[name]
    read = _READERS.get(option.unit) or _READERS[_plain(kind)]
    try:
        found = read(value)
    except (ValueError, TypeError, InvalidInput):
        raise _wrong(name, value, source) from None
    if option.choices and found not in option.choices:
        near = _nearest(str(found), option.choices)
        raise _wrong(name, value, source, hint=f"did you mean {near!r}?" if near else None)
    outside = (option.low is not None and found < option.low) or (option.high is not None and found > option.high)
    if outside:
        raise _wrong(name, value, source)
    return found


def _wrong(name: str, value: Any, source: str, *, hint: str | None = None) -> ConfigError:
    shown = "a secret" if name == "token" else repr(value)
    return ConfigError(f"{source}: {name} is {shown}, expected {expectation(name)}", hint=hint, where=source)


def expectation(name: str) -> str:
    """What a setting accepts, in words."""
    kind, option = options()[name]
    if option.choices:
        return " or ".join((", ".join(option.choices[:-1]), option.choices[-1]))
    words = _EXPECTED.get(option.unit) or _EXPECTED[_plain(kind)]
    if option.high:
        return f"{words} from {option.low or 0:g} to {int(option.high)}"
    if option.low:
        least = units.size_text(option.low) if option.unit == "size" else f"{option.low:g}"
        return f"{words}, at least {least}"
    return words


def _plain(kind: Any) -> str:
    """int, float or str, also of an optional one."""
    return next(plain.__name__ for plain in (int, float, str) if plain is kind or plain in get_args(kind))


def _written(value: Any, unit: str = "") -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return ("," if unit == "words" else os.pathsep).join(value) if isinstance(value, list) else str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    return value


def _path(value: Any) -> str:
    if not _text(value):
        raise ValueError
    return os.path.abspath(os.path.expanduser(str(value)))


def _urls(value: Any) -> str:
    for part in _text(value).split(","):
        if part.strip() and not re.fullmatch(r"(https?://[^/\s]+\S*|unix:/\S+)", part.strip()):
            raise ValueError
    return str(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    found = float(value)
    if found != found or found in (float("inf"), float("-inf")):
        raise ValueError
    return found


def _paths(value: Any) -> list[str]:
    parts = value.split(os.pathsep) if isinstance(value, str) else list(value)
    return [_path(part) for part in parts if part]


def _labels(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = dict(part.split("=", 1) for part in value.split(",") if part.strip())
    return {_text(key).strip(): _text(item).strip() for key, item in dict(value).items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _integer,
    "float": _float,
    "duration": lambda value: units.seconds(value, "setting"),
    "size": lambda value: units.size(int(value) if isinstance(value, str) and value.isdigit() else value, "setting"),
    "urls": _urls,
    "path": _path,
    "paths": _paths,
    "labels": _labels,
    "words": lambda value: [_text(word).strip() for word in (value.split(",") if isinstance(value, str) else value) if word],
}
_EXPECTED = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "duration": 'a duration (seconds, or "90s", "10m")',
    "size": 'a size (bytes, or "512MiB")',
    "urls": "http://HOST:PORT or https://HOST:PORT",
    "path": "a path",
    "paths": f"folders separated by {os.pathsep!r}, or a list of them",
    "labels": "labels as k=v,k=v, or a table of them",
    "words": "words separated by commas, or a list of them",
}


def _check_together(settings: Settings) -> None:
    """What no setting shows alone."""
    if settings.heartbeat_s >= settings.fence_s:
        raise ConfigError(
            f"fence_s ({settings.fence_s:g}) must be longer than heartbeat_s ({settings.heartbeat_s:g})",
            hint="an agent that misses no heartbeat must not fence itself",
        )
    if settings.fence_s + KILL_AND_DRIFT_S > settings.lost_s:
        raise ConfigError(
            f"lost_s ({settings.lost_s:g}) must be at least fence_s + {KILL_AND_DRIFT_S:g} "
            f"({settings.fence_s + KILL_AND_DRIFT_S:g})",
            hint="a node cut off must have ended its tasks before they are given to another",
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigError("tls_cert and tls_key go together", hint="set both, or none to serve plain HTTP")
