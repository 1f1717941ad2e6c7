"""`node`, `stats`: what there is to run on, and how busy it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from headway.cli.queue import queues_table
from headway.cli.terminal import Terminal, command, fields, group, paint, table

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.views.fleet import NodeView, PeakView, Stats

node = group("Nodes: the machines that run tasks.", examples=["headway node ls", "headway node drain big-1"])
app = group("Numbers of now.")

HIDDEN = "a tenant sees no nodes: they are the operator's"
CLOCK_S = 5.0  # an answer that was sent again, or a busy server, looks like this much
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name or id of the node.")]


@command(node, "ls", examples=["headway node ls", "headway node ls --json"])
def node_ls(terminal: Terminal) -> None:
    """List nodes: what they have, what is taken."""
    from headway.cli.session import talk
    from headway.wire.views.fleet import NodeView, Stats

    async def look(server: Server) -> None:
        nodes = await server.get("/v1/nodes", list[NodeView])
        hidden = not nodes and of_a_tenant(await server.get("/v1/stats", Stats))
        terminal.answer(nodes, ids=[one.name for one in nodes], table=lambda: nodes_table(nodes, hidden=hidden))

    talk(terminal, look)


@command(node, "show", examples=["headway node show big-1"])
def node_show(terminal: Terminal, name: NodeName) -> None:
    """Show one node."""
    from headway.cli.session import talk
    from headway.wire.views.fleet import NodeView

    async def look(server: Server) -> None:
        found = await server.get(f"/v1/nodes/{quote(name, safe='')}", NodeView)
        terminal.answer(found, ids=[found.name], table=lambda: _node(found))

    talk(terminal, look)


@command(node, "drain", examples=["headway node drain big-1"])
def node_drain(terminal: Terminal, name: NodeName) -> None:
    """Let a node finish what it runs and take nothing new."""
    _turn(terminal, name, "drain")


@command(node, "undrain", examples=["headway node undrain big-1"])
def node_undrain(terminal: Terminal, name: NodeName) -> None:
    """Let a drained node take tasks again."""
    _turn(terminal, name, "undrain")


@command(node, "rm", examples=["headway node rm big-1"])
def node_rm(terminal: Terminal, name: NodeName) -> None:
    """Forget a node that is lost or gone: no task waits for it any more.

    Without this it is forgotten after a day. An agent that comes back is a new node.
    """
    from headway.cli.session import talk
    from headway.wire.views.answers import Changed

    async def ask(server: Server) -> None:
        done = await server.send("DELETE", f"/v1/nodes/{quote(name, safe='')}", Changed)
        terminal.answer(done, ids=[name], table=lambda: f"{name} is forgotten")

    talk(terminal, ask)


@command(
    app, "stats", examples=["headway stats", "headway stats --shifted", "headway stats --json | jq .finished_per_s"]
)
def stats(
    terminal: Terminal,
    shifted: Annotated[bool, typer.Option("--shifted", help="What was put off at peak, and what that saved.")] = False,
) -> None:
    """Print the numbers of now: states, rates, queues, nodes."""
    from headway.cli.session import talk
    from headway.wire.views.fleet import PeakView, Stats

    async def look(server: Server) -> None:
        if shifted:
            peaks = await server.get("/v1/peaks", list[PeakView])
            terminal.answer(peaks, table=lambda: peaks_text(peaks))
            return
        found = await server.get("/v1/stats", Stats)
        terminal.answer(found, table=lambda: stats_text(found))

    talk(terminal, look)


def of_a_tenant(stats: Stats) -> bool:
    """Whether these are numbers without the machines: there is no server without one."""
    return stats.servers == 0


def nodes_table(nodes: list[NodeView], *, hidden: bool = False) -> str:
    from headway.cli.moments import ago
    from headway.domain.units import size_text

    if hidden:
        return HIDDEN
    if not nodes:
        return "no nodes (`headway agent` starts one)"
    rows = [
        (
            one.name,
            one.state,
            one.running,
            f"{one.allocated.cpus:g}/{one.cpus:g}",
            f"{size_text(one.allocated.memory)}/{size_text(one.memory)}",
            ago(one.seen_at),
        )
        for one in nodes
    ]
    header = ("NODE", "STATE", "TASKS", "CPUS", "MEMORY", "SEEN")
    return table(header, rows, right=("TASKS", "CPUS", "MEMORY", "SEEN"))


def clock_text(ahead_s: float) -> str:
    from headway.domain.units import duration_text

    return f"{duration_text(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} the database's"


def _turn(terminal: Terminal, name: str, verb: str) -> None:
    from headway.cli.session import talk
    from headway.wire.views.fleet import NodeView

    async def ask(server: Server) -> None:
        found = await server.post(f"/v1/nodes/{quote(name, safe='')}/{verb}", NodeView)
        terminal.answer(found, ids=[found.name], table=lambda: f"{found.name} is {paint(found.state)}")

    talk(terminal, ask)


def _node(one: NodeView) -> str:
    from headway.cli.moments import when
    from headway.domain.units import size_text

    return fields(
        [
            ("node", one.name),
            ("id", one.id),
            ("state", paint(one.state)),
            ("trouble", one.trouble),
            ("cpus", f"{one.allocated.cpus:g} of {one.cpus:g} taken"),
            ("memory", f"{size_text(one.allocated.memory)} of {size_text(one.memory)} taken"),
            ("disk", f"{size_text(one.allocated.disk)} of {size_text(one.disk)} taken"),
            ("tasks", one.running),
            ("clock", None if abs(one.clock_s) < CLOCK_S else clock_text(one.clock_s)),
            ("labels", "\n".join(f"{key}={value}" for key, value in sorted(one.labels.items()))),
            ("region", one.region),
            ("version", one.version),
            ("seen", when(one.seen_at)),
        ]
    )


def stats_text(found: Stats) -> str:
    states = "  ".join(f"{paint(state)} {count:,}" for state, count in found.states.items() if count)
    nodes = "  ".join(f"{paint(state)} {count}" for state, count in found.nodes.items() if count)
    leaders = "\n".join(f"{duty} on {server}" for duty, server in sorted(found.leaders.items()))
    fleet = [
        ("submitted", f"{found.submitted_per_s:,.1f}/s"),
        ("finished", f"{found.finished_per_s:,.1f}/s"),
        ("nodes", nodes or "none"),
        ("cpus", f"{found.free_cpus:g} of {found.total_cpus:g} free"),
        ("taken", f"{found.utilisation:.0%} of the fleet, {'peak' if found.peak else 'off-peak'}"),
        ("handed out", f"at most {found.top_k:,} tasks at once"),
        ("servers", found.servers),
        ("duties", leaders),
    ]
    head = fields(
        [
            ("trouble", paint("fail", found.trouble) if found.trouble else None),
            ("tasks", states or "none"),
            *([("nodes", HIDDEN)] if of_a_tenant(found) else fleet),
            ("shares", "  ".join(f"{one.tenant} {one.share:.3f}" for one in found.shares[:5]) or None),
            ("fairness", "  ".join(f"{name} {index:.3f}" for name, index in found.jain.items()) or None),
            ("version", found.version),
        ]
    )
    return f"{head}\n\n{queues_table(found.queues)}"


def peaks_text(peaks: list[PeakView]) -> str:
    from headway.cli.moments import now, took, when

    if not peaks:
        return "no peak in the last 30 days"
    rows = [
        (
            when(one.began_at),
            took(one.began_at, one.ended_at) if one.ended_at else "goes on",
            f"{one.utilisation:.0%}",
            one.held_tasks,
            f"{one.held_cpus:g}",
            f"{one.held_cpu_seconds / max(((one.ended_at or now()) - one.began_at).total_seconds(), 1.0):.1f}",
            f"{one.capacity_cpus:g} cpus",
        )
        for one in peaks
    ]
    header = ("PEAK", "LASTED", "HIGHEST", "TASKS PUT OFF", "CPUS SAVED", "ON AVERAGE", "FLEET")
    return table(header, rows, right=header[1:])
