"""A task from the command line: the options of `submit` and `run` have the names of TaskSpec's fields, with dashes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

Work = Annotated[
    str | None,
    typer.Argument(metavar="[FILE | -- CMD...]", help="Task file (YAML, JSON), NDJSON of tasks, or - for stdin."),
]
Params = Annotated[list[str] | None, typer.Option("--param", help="Value of a file's parameter.", metavar="K=V")]
Inputs = Annotated[str | None, typer.Option("--inputs", help="One task for each line of JSON in this file.", metavar="FILE.ndjson")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the task.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="A label; repeat for more.", metavar="K=V")]
Executable = Annotated[str | None, typer.Option("--executable", help="Script or program to run.", metavar="PATH")]
Function = Annotated[str | None, typer.Option("--function", help="Python function to call.", metavar="MODULE:NAME")]
Args = Annotated[list[str] | None, typer.Option("--arg", help="Argument of the executable; repeat for more.", metavar="TEXT")]
Env = Annotated[list[str] | None, typer.Option("--env", help="Environment variable; repeat for more.", metavar="K=V")]
Workdir = Annotated[str | None, typer.Option("--workdir", help="Folder to run in.", metavar="DIR")]
Input = Annotated[str | None, typer.Option("--input", help="Input: JSON, @FILE or @- for stdin.", metavar="JSON")]
Interpreter = Annotated[str | None, typer.Option("--interpreter", help="What runs the executable.")]
Resources = Annotated[
    str | None,
    typer.Option("--resources", help="A tier, or cpus=2,memory=1GiB,labels.gpu=a100.", metavar="TIER|K=V,..."),
]
Category = Annotated[str | None, typer.Option("--category", help="urgent, delayable or periodic.")]
Queue = Annotated[str | None, typer.Option("--queue", help="The queue it waits in.", metavar="NAME")]
OffPeak = Annotated[str | None, typer.Option("--off-peak", help="allowed, only or never.")]
Preemptible = Annotated[
    bool | None, typer.Option("--preemptible/--no-preemptible", help="Whether it may be paused for urgent tasks.")
]
Attempts = Annotated[int | None, typer.Option("--attempts", help="Runs in all, the first included.", metavar="N")]
Retry = Annotated[str | None, typer.Option("--retry", help="interval=10s,backoff=2,max=5m,jitter=0.1", metavar="K=V,...")]
ExecutionCap = Annotated[str | None, typer.Option("--execution-cap", help="Longest run, for example 10m.", metavar="DURATION")]
DelayTolerance = Annotated[str | None, typer.Option("--delay-tolerance", help="How long the start may wait.", metavar="DURATION")]
MaxWait = Annotated[str | None, typer.Option("--max-wait", help="Longest wait for its start.", metavar="DURATION")]
OnMaxWait = Annotated[str | None, typer.Option("--on-max-wait", help="expire, or keep waiting.", metavar="WORD")]
OnLate = Annotated[str | None, typer.Option("--on-late", help="warn or refuse if it cannot start in time.", metavar="WORD")]
After = Annotated[
    list[str] | None,
    typer.Option("--after", help="Run after this task; ID:failed or ID:done for other ends.", metavar="ID"),
]
At = Annotated[str | None, typer.Option("--at", help="Not before this moment (ISO 8601).", metavar="TIME")]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", help="The same key gives the first task back.", metavar="KEY")
]
Upload = Annotated[
    str | None, typer.Option("--upload", help="Script of this machine, sent along and run as the executable.", metavar="FILE")
]
Image = Annotated[str | None, typer.Option("--image", help="Container image; `-- CMD` runs inside it.")]
Checksum = Annotated[str | None, typer.Option("--checksum", help="Of an executable given as a URL.", metavar="sha256:HEX")]
Requires = Annotated[
    list[str] | None,
    typer.Option(
        "--requires", help="Python package, npm:PACKAGE, requirements.txt or package-lock.json; repeat.", metavar="PACKAGE"
    ),
]
Prepare = Annotated[str | None, typer.Option("--prepare", help="Command that prepares a node, once.", metavar="CMD")]
Archives = Annotated[
    list[str] | None, typer.Option("--archive", help="tar or zip to unpack before the task; repeat for more.", metavar="URL|FILE")
]
Volumes = Annotated[list[str] | None, typer.Option("--volume", help="Shared volume it needs; repeat for more.", metavar="NAME")]
Secrets = Annotated[
    list[str] | None, typer.Option("--secret", help="Secret it may see, as variable NAME or VAR=NAME.", metavar="NAME")
]
Logger = Annotated[
    str | None, typer.Option("--logger", help="Where its output also goes: syslog, journald, file:NAME, URL.", metavar="LOGGER")
]
Size = Annotated[float | None, typer.Option("--size", help="Hint of how much work it is.", metavar="N")]
Notify = Annotated[
    list[str] | None,
    typer.Option("--notify", help="Address or webhook to tell of its end; repeat for more.", metavar="URL|NAME[=EVENT,...]"),
]

Stages = Annotated[
    list[str] | None, typer.Option("--stage", help="A stage to run, after those before it; repeat for more.", metavar="NAME=CMD")
]
Isolation = Annotated[str | None, typer.Option("--isolation", help="none, sandbox or container.", metavar="LEVEL")]
Network = Annotated[
    list[str] | None, typer.Option("--network", help="A place it may reach; repeat for more; or all.", metavar="HOST:PORT")
]

ForEach = Annotated[
    str | None,
    typer.Option("--for-each", help="One task for each item: a JSON list, @FILE, or result-of=ID.", metavar="JSON|result-of=ID"),
]
WithResults = Annotated[
    bool | None, typer.Option("--with-results", help="It gets the results of the tasks it is run after.", show_default=False)
]

TASK_OPTIONS: dict[str, Any] = {
    "name": Name,
    "label": Labels,
    "executable": Executable,
    "function": Function,
    "arg": Args,
    "env": Env,
    "workdir": Workdir,
    "input": Input,
    "interpreter": Interpreter,
    "resources": Resources,
    "category": Category,
    "queue": Queue,
    "off_peak": OffPeak,
    "preemptible": Preemptible,
    "attempts": Attempts,
    "retry": Retry,
    "execution_cap": ExecutionCap,
    "delay_tolerance": DelayTolerance,
    "max_wait": MaxWait,
    "on_max_wait": OnMaxWait,
    "on_late": OnLate,
    "after": After,
    "at": At,
    "idempotency_key": IdempotencyKey,
    "size": Size,
    "upload": Upload,
    "image": Image,
    "checksum": Checksum,
    "requires": Requires,
    "prepare": Prepare,
    "archive": Archives,
    "volume": Volumes,
    "secret": Secrets,
    "logger": Logger,
    "isolation": Isolation,
    "network": Network,
    "notify": Notify,
    "stage": Stages,
    "for_each": ForEach,
    "with_results": WithResults,
}


def task(given: dict[str, Any]) -> dict[str, Any]:
    """The task described by these options: only the fields that were given."""
    spec: dict[str, Any] = {
        **given,
        "labels": pairs(given["label"], "--label"),
        "args": given["arg"],
        "env": pairs(given["env"], "--env"),
        "resources": _resources(given["resources"]),
        "retry": settings(given["retry"], "--retry"),
        "after": [_edge(text) for text in given["after"] or ()],
        "input": None,
        "requires": _requires(given["requires"] or ()),
        "archives": [_source(text) for text in given["archive"] or ()],
        "volumes": given["volume"],
        "secrets": _secrets(given["secret"] or ()),
        "notify": [_notify(text) for text in given["notify"] or ()],
        "stages": [_stage(text) for text in given["stage"] or ()],
        "for_each": None,
    }
    del spec["stage"], spec["label"], spec["arg"], spec["archive"], spec["volume"], spec["secret"], spec["upload"]
    if given["upload"] is not None:
        if given["executable"] is not None:
            raise typer.BadParameter("it is the executable: give one of both", param_hint="--upload")
        spec["executable"] = _source(f"upload:{given['upload']}")
    spec = {field: value for field, value in spec.items() if value not in (None, {}, [])}
    if given["input"] is not None:
        spec["input"] = value_or_file(given["input"], "--input")
    if given["for_each"] is not None:
        spec["for_each"] = _items(given["for_each"])
    return spec


def _items(text: str) -> Any:
    word, equals, source = text.partition("=")
    if equals and word.replace("-", "_") == "result_of":
        return {"result_of": source}
    items = value_or_file(text, "--for-each")
    if not isinstance(items, list):
        raise typer.BadParameter("it is no list", param_hint="--for-each")
    return items


def _stage(text: str) -> dict[str, str]:
    name, equals, command = text.partition("=")
    if not equals or not name.strip() or not command.strip():
        raise typer.BadParameter(f"{text!r} is not NAME=CMD", param_hint="--stage")
    return {"name": name.strip(), "command": command}


def _requires(given: Sequence[str]) -> dict[str, Any]:
    """Packages for pip, npm:PACKAGE for npm; a requirements.txt or package-lock.json is read here."""
    found: dict[str, Any] = {}
    for text in given:
        if text.endswith(".json"):
            found["lock"] = contents(text, "--requires")
        elif text.endswith(".txt"):
            found.setdefault("pip", []).extend(_requirements(contents(text, "--requires")))
        elif text.startswith("npm:"):
            found.setdefault("npm", []).append(text.removeprefix("npm:"))
        else:
            found.setdefault("pip", []).append(text)
    return found


def _requirements(text: str) -> list[str]:
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _source(text: str) -> str:
    """A local file by its whole path: the folder of this command is not the node's."""
    import os

    prefix = "upload:" if text.startswith("upload:") else ""
    path = text.removeprefix(prefix)
    return text if "://" in text or text.startswith("volume:") else prefix + os.path.abspath(path)


def _secrets(given: Sequence[str]) -> dict[str, str]:
    """NAME is seen as the variable NAME."""
    named = [text if "=" in text else f"{text.upper().replace('-', '_').replace('.', '_')}={text}" for text in given]
    return pairs(named, "--secret")


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """["k=v", ...] as a mapping."""
    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint=option)
        found[key] = value
    return found


def value_or_file(text: str, option: str) -> Any:
    """A JSON value given as text, as @FILE, or as @- on stdin."""
    import json

    content = contents(text[1:], option) if text.startswith("@") else text
    try:
        return json.loads(content)
    except ValueError as error:
        hint = "write JSON: 42, '\"text\"', '[1, 2]', '{\"key\": 1}'; or @FILE"
        raise typer.BadParameter(f"{content[:60]!r} is not JSON ({error}): {hint}", param_hint=option) from None


def contents(path: str, option: str) -> str:
    """What a file holds; "-" is stdin."""
    import sys

    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {getattr(error, 'strerror', None) or error}", param_hint=option) from None


def edits(given: Sequence[str] | None, whole: str | None) -> dict[str, Any]:
    """The changes of `--set FIELD=VALUE` (JSON, else text) on top of `--edit JSON`."""
    import json

    changes: dict[str, Any] = value_or_file(whole, "--edit") if whole else {}
    if not isinstance(changes, dict):
        raise typer.BadParameter("an edit is a JSON object of task fields", param_hint="--edit")
    for field, text in pairs(given, "--set").items():
        try:
            changes[field] = json.loads(text)
        except ValueError:
            changes[field] = text
    return changes


def _resources(text: str | None) -> str | dict[str, Any] | None:
    return text if text is None or "=" not in text else settings(text, "--resources")


def settings(text: str | None, option: str) -> dict[str, Any]:
    """ "cpus=2,memory=1GiB,labels.gpu=a100" as a mapping; numbers become numbers."""
    found: dict[str, Any] = {}
    for key, value in pairs(text.split(",") if text else (), option).items():
        outer, dot, inner = key.partition(".")
        if dot:
            found.setdefault(outer, {})[inner] = value
        else:
            found[key] = _number(value)
    return found


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text  # JSON has no nan: it would arrive as nothing said
    return text


def _notify(text: str) -> str | dict[str, Any]:
    """ "ops=failed,killed" as a target with its events; an address may have `=` of its own, so the last one counts."""
    to, equals, events = text.rpartition("=")
    known = equals and all(word.replace(".", "").replace("_", "").isalpha() for word in events.split(","))
    if not known or ("://" in to and ("?" in to)):
        return text
    return {"to": to, "events": events.split(",")}


def _edge(text: str) -> str | dict[str, str]:
    task_id, colon, when = text.partition(":")
    return {"task": task_id, "when": when} if colon else text
