"""`simulate`: the planner's own policy on generated or recorded load, against simpler ones, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, group, table

if TYPE_CHECKING:
    from headway.simulate.outcome import Outcome

app = group("What would happen.")


@command(
    app,
    "simulate",
    examples=[
        "headway simulate --tasks 100000 --nodes 10",
        "headway simulate --nodes 10000 --tenants 100000 --tasks 10000000 --mean 600 --policy headway",
        "headway simulate --smallest-fleet 0.01 --tasks 50000 --nodes 10",
        "headway ls --state succeeded --limit 1000 --json > history.json && headway simulate --history history.json --nodes 4",
    ],
)
def simulate(
    terminal: Terminal,
    tasks: Annotated[int, typer.Option("--tasks", help="Tasks in a day.", min=1)] = 50_000,
    tenants: Annotated[int, typer.Option("--tenants", help="Tenants; the n-th submits 1/n of the first.", min=1)] = 200,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of the fleet.", min=1)] = 6,
    cpus: Annotated[float, typer.Option("--cpus", help="Cpus of each node.")] = 8.0,
    memory: Annotated[float, typer.Option("--memory", help="Memory of each node in GiB.")] = 32.0,
    mean: Annotated[float, typer.Option("--mean", help="Mean run time of a task in seconds.")] = 60.0,
    tolerance: Annotated[
        str, typer.Option("--tolerance", help="Longest delay tolerance of delayable tasks.", metavar="TIME")
    ] = "4h",
    urgent: Annotated[float, typer.Option("--urgent", help="Part of the tasks that are urgent.", min=0.0, max=1.0)] = 0.2,
    tick: Annotated[float, typer.Option("--tick", help="Seconds between rounds of planning.")] = 1.0,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="headway, fifo, priority; all by default.")] = None,
    history: Annotated[str | None, typer.Option("--history", help="Replay these tasks instead.", metavar="FILE")] = None,
    smallest_fleet: Annotated[
        float | None, typer.Option("--smallest-fleet", help="Find the smallest fleet with so many misses.", metavar="PART")
    ] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Write plots over time, as SVG or PNG.", metavar="FILE.svg|FILE.png")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Another number, another day.")] = 1,
) -> None:
    """Simulate a day: waiting, misses, fairness, fleet."""
    from headway.cli.options import contents
    from headway.domain.units import seconds
    from headway.errors import InvalidInput
    from headway.simulate.drawing import SUFFIXES
    from headway.simulate.load import Load, generate, recorded
    from headway.simulate.outcome import Fleet
    from headway.simulate.report import drawing, rows
    from headway.simulate.search import smallest
    from headway.simulate.world import POLICIES, World

    wanted = policy or list(POLICIES)
    for one in wanted:
        if one not in POLICIES:
            raise InvalidInput(f"policy: {one[:40]!r} is unknown", field="policy", hint=f"one of {', '.join(POLICIES)}")
    if plot is not None and not plot.endswith(SUFFIXES):
        raise InvalidInput(f"plot: {plot[:200]!r} does not say how to draw", field="plot", hint=f"a name with {' or '.join(SUFFIXES)}")
    longest = seconds(tolerance, "tolerance")
    if tick <= 0 or cpus <= 0 or memory <= 0 or mean <= 0:
        raise InvalidInput("tick, cpus, memory and mean are above 0")
    fleet = Fleet(nodes, cpus, memory, tick)
    asked = Load(
        tasks=tasks, tenants=tenants, mean_s=mean, urgent=urgent, periodic=min(0.2, 1.0 - urgent), tolerance_s=longest, seed=seed
    )
    kept = recorded(contents(history, "--history").splitlines()) if history is not None else None

    def load() -> Any:
        return iter(kept) if kept is not None else generate(asked)

    outcomes = [
        smallest(one, fleet, load, missed=smallest_fleet) if smallest_fleet is not None else World(one, fleet).run(load())
        for one in wanted
    ]
    if plot is not None:
        drawn = drawing(outcomes)
        Path(plot).write_bytes(drawn.png() if plot.endswith(".png") else drawn.svg())
    found = rows(outcomes)
    terminal.answer([_numbers(one) for one in outcomes], table=lambda: table(found[0], found[1:], right=found[0][1:]))


def _numbers(one: Outcome) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "nodes": one.fleet.nodes,
        "missed": one.missed,
        "jain": one.jain,
        "utilisation": one.mean_utilisation,
        "peak_s": one.peak_s,
        "put_off_cpus": one.put_off_cpus,
        "stopped": one.stopped,
        "waits": {
            kind: {
                "count": waits.count,
                "missed": waits.missed,
                "mean_s": waits.total / max(waits.count, 1),
                **{f"p{round(100 * part)}_s": waits.quantile(part) for part in (0.5, 0.9, 0.99)},
            }
            for kind, waits in one.waits.items()
        },
    }
