"""`headway bench`: measures, checks what it measured, and refuses to report when it was not durable.

headway bench                 everything, on a throw-away Headway (some minutes)
headway bench --quick --json  within a minute; the last line is one JSON object
HEADWAY_TOKEN=T headway bench --only latency --url http://host:8470 --database DSN
headway bench --sustained     ten minutes of full load
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from headway.bench import durability, floor, processes, scenarios
from headway.bench.figures import table
from headway.bench.instance import Instance, running, throw_away
from headway.bench.sustained import sustained
from headway.errors import ConfigError, HeadwayError
from headway.version import VERSION

KEYS: dict[str, Any] = {
    "end_to_end_per_s": None,
    "submit_single_per_s": None,
    "submit_bulk_per_s": None,
    "latency_ms": {"p50": None, "p95": None, "p99": None},
    "drain_per_s": {"10000": None, "1000000": None},
    "executables_per_s": None,
    "spawn_floor_per_s": None,
    "idle_cpu_percent": None,
    "idle_pss_mb": None,
}
SUSTAINED_S = 600.0


def run(argv: Sequence[str] | None = None) -> int:
    """The command; returns an exit code."""
    options = _options(argv)
    report = asyncio.run(_until_told(options))
    print(render(report), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(msgspec.json.encode(report).decode())
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, hint="headway bench --help")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="headway bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within 60 s; leaves the backlog of a million out")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--only", choices=list(scenarios.SCENARIOS), action="append", help="one scenario; repeatable")
    parser.add_argument("--sustained", action="store_true", help="ten minutes of full load instead of the scenarios")
    parser.add_argument("--seconds", type=float, default=SUSTAINED_S, help="of the sustained run")
    parser.add_argument("--url", help="a Headway that runs already; needs --database")
    parser.add_argument("--token", default=os.environ.get("HEADWAY_TOKEN"), help="an administrator's (HEADWAY_TOKEN)")
    parser.add_argument("--database", help="its database: final states are counted in SQL")
    parser.add_argument("--pid", type=int, action="append", default=[], help="its processes, for CPU and memory")
    options = parser.parse_args(argv)
    if options.url and not options.database:
        raise ConfigError("--url needs --database", hint="final states are counted in SQL")
    if options.url and not options.token:
        raise ConfigError(f"no token of {options.url} is known", hint="HEADWAY_TOKEN is an administrator's")
    return options


async def _until_told(options: argparse.Namespace) -> dict[str, Any]:
    """SIGTERM ends it as Ctrl-C does: the throw-away Headway is ended and its folder removed."""
    measuring = asyncio.create_task(_measure(options))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
    try:
        return await measuring
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    target = running(options.url, options.token, options.database, options.pid) if options.url else throw_away()
    began = time.monotonic()
    async with target as instance:
        await durability.require(instance.connection)
        report: dict[str, Any] = {**KEYS, "version": VERSION, "machine": {}}
        report["first_task_s"] = round(await instance.first_task(), 2)
        await instance.make_tenants()
        await scenarios.warm_up(instance)
        if options.sustained:
            report |= await sustained(instance, options.seconds)
        else:
            await _scenarios(instance, options, report)
        if instance.roots:
            report["pss_after_load_mb"] = round(processes.pss_bytes(instance.roots) / 1e6, 1)
        await durability.require(instance.connection)  # still: a setting can be changed while it runs
    report["seconds"] = round(time.monotonic() - began, 1)
    return report


async def _scenarios(instance: Instance, options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Run them with the machine's own speed before and after each; 1 is the first of these moments."""
    size = scenarios.QUICK if options.quick else scenarios.FULL
    first = before = await floor.measure(instance.connection)
    for name, scenario in scenarios.SCENARIOS.items():
        if name not in (options.only or set(scenarios.SCENARIOS) - set(scenarios.ASKED_FOR)):
            continue
        _tell(f"{name} ...")
        report |= await scenario(instance, size)
        after = await floor.measure(instance.connection)
        report["machine"][name] = round((before.against(first) + after.against(first)) / 2, 2)
        before = after


def render(report: dict[str, Any]) -> str:
    """The report for people."""
    rows = [["", "measured", ""]]
    for key, value in report.items():
        if isinstance(value, dict):
            rows += [[f"{key} {part}", _text(inner), ""] for part, inner in value.items()]
        else:
            rows.append([key, _text(value), ""])
    if (spawned := report["executables_per_s"]) and (least := report["spawn_floor_per_s"]):
        rows.append(["executables / spawn floor", f"{spawned / least:.0%}", ""])
    return table(rows)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    return str(value)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.exit(run())
        except HeadwayError as error:
            sys.exit(f"headway bench: {error}")
