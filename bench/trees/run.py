"""Trees: three levels of 10,000 nodes beside the same tasks without edges, beside Celery's chord, Ray and Dask; a million nodes; a chain.

    python bench/trees/run.py                    rounds of everything, in turn
    python bench/trees/run.py --only headway     without peers
    python bench/trees/run.py --million          a tree of a million nodes, and what the server's memory does meanwhile
    python bench/trees/run.py --chain            100,000 tasks, each after the one before; memory of server and agent meanwhile

The tree: 9,900 leaves, 99 tasks that each wait for 100 of them, one root. All run the same function that does nothing. A clock
runs from before the first byte of the request until SQL says that the last task is final; peers, until their root has a result.
The speed of a shared machine drifts by up to two times within seconds, so only ratios inside one round compare; the CPU time that all
processes of Headway took for a node (without PostgreSQL's waits for the disk) does not depend on who else uses the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))

import install  # noqa: E402  (the folders are no packages: their programs run in two environments)
import services  # noqa: E402

from headway.bench import bodies, processes  # noqa: E402
from headway.bench.instance import Instance, throw_away  # noqa: E402

MIDDLE, EACH = 99, 100
NODES = MIDDLE * EACH + MIDDLE + 1
PEER_NODES = {"celery": 1_000, "ray": 2_000, "dask": 2_000}  # a few seconds each
MILLION = 1_000_000
LINKS = 100_000
MEMORY_BAR_MB = 400
_PARTS = {"agent": "headway.cli.main agent", "supervisor": "headway.agent.supervisor", "runner": "headway.agent.runner"}
_LEFT = "select exists (select 1 from headway.task where id between $1 and $2)"
_GOING = "select exists (select 1 from headway.tree_going where tree = $1)"
_DONE = "select sum(succeeded) from headway.tree_level where tree = $1"


def main() -> int:
    options = _options()
    if options.million:
        return asyncio.run(_large("million", _nodes(max(options.nodes // 1000, 1), 999)))
    if options.chain:
        return asyncio.run(_large("chain", _links(options.links)))
    wanted = options.only.split(",") if options.only else ["headway", *PEER_NODES]
    return asyncio.run(_race(wanted, options.rounds))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="some of headway, celery, ray, dask")
    parser.add_argument("--million", action="store_true", help="the large tree instead")
    parser.add_argument("--nodes", type=int, default=MILLION, help="of the large tree")
    parser.add_argument("--chain", action="store_true", help="the chain instead")
    parser.add_argument("--links", type=int, default=LINKS, help="of the chain")
    return parser.parse_args()


async def _race(wanted: list[str], rounds: int) -> int:
    rates: dict[str, list[float]] = {name: [] for name in ("flat", "tree", *wanted) if name != "headway"}
    spent: dict[str, list[float]] = {"flat": [], "tree": []}
    with tempfile.TemporaryDirectory(prefix="headway-trees-") as folder:
        peers = [name for name in wanted if name in PEER_NODES]
        python = install.environment(HERE / "requirements.txt") if peers else None
        async with throw_away() as instance:
            await instance.first_task()
            for warm in (_flat, _tree):
                await warm(instance)
            for number in range(rounds):
                for name, work in (("flat", _flat), ("tree", _tree)):
                    before = processes.cpu_seconds(instance.roots)
                    rates[name].append(await work(instance))
                    spent[name].append((processes.cpu_seconds(instance.roots) - before) / NODES * 1e6)
                for name in peers:
                    rates[name].append(_peer(str(python), name, Path(folder)))
                print(f"round {number + 1}: {_line({name: found[-1] for name, found in rates.items()})}", file=sys.stderr)
    ratios = {name: statistics.median(t / f for t, f in zip(rates["tree"], found, strict=True)) for name, found in rates.items()}
    found = {
        "nodes_per_s": {n: [round(r) for r in f] for n, f in rates.items()},
        "tree_to": _rounded(ratios),
        "cpu_us_a_node": {n: [round(us) for us in f] for n, f in spent.items()},
        "cpu_flat_to_tree": round(statistics.median(f / t for f, t in zip(spent["flat"], spent["tree"], strict=True)), 2),
    }
    print(json.dumps(found))
    return 0


async def _flat(instance: Instance) -> float:
    """The same tasks, one by one as in the tree, without the edges."""
    body = [{key: value for key, value in node.items() if key != "after"} for node in _nodes(MIDDLE, EACH)]
    began = time.monotonic()
    ids = [int(one) for one in (await instance.call("POST", "/v1/tasks", body))["ids"]]
    await _until(instance, _LEFT, min(ids), max(ids))
    return len(ids) / (time.monotonic() - began)


async def _tree(instance: Instance) -> float:
    tasks = list(_nodes(MIDDLE, EACH))
    body = {"name": "bench", "tasks": tasks}
    began = time.monotonic()
    answer = await instance.call("POST", "/v1/trees", body)
    ids = [int(one) for one in answer["ids"]]
    await _until(instance, _LEFT, min(ids), max(ids))
    spent = time.monotonic() - began
    if await instance.connection.fetchval(_DONE, int(answer["tree"])) != len(tasks):
        raise SystemExit("not every task of the tree succeeded, no figures")
    return len(tasks) / spent


def _nodes(middle: int, each: int) -> Iterator[dict[str, Any]]:
    """Leaves, what joins them, and the root."""
    for group in range(middle):
        for leaf in range(each):
            yield {"name": f"l{group}.{leaf}", "function": bodies.NOOP, "input": [f"{group:04d}{leaf:04d}"]}
    for group in range(middle):
        after = [f"l{group}.{leaf}" for leaf in range(each)]
        yield {"name": f"m{group}", "function": bodies.NOOP, "input": [f"{group:08d}"], "after": after}
    yield {"name": "root", "function": bodies.NOOP, "input": ["root0000"], "after": [f"m{group}" for group in range(middle)]}


async def _until(instance: Instance, left: str, *values: int) -> None:
    while await instance.connection.fetchval(left, *values):
        await asyncio.sleep(0.01)


def _peer(python: str, name: str, folder: Path) -> float:
    """One round of a peer, in nodes a second."""
    nodes = PEER_NODES[name]
    command = [python, str(HERE / f"with_{name}.py"), str(nodes)]
    if name != "celery":
        return _rate(command)
    program = install.redis_server()
    if program is None:
        raise SystemExit("Celery needs redis-server")
    with services.redis(program, folder) as where:
        return _rate([*command, where])


def _rate(command: list[str]) -> float:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"{command[1]}: the round failed with {done.returncode}, no figures")
    found = json.loads(done.stdout.decode().strip().splitlines()[-1])
    return float(found["nodes"] / found["seconds"])


async def _large(name: str, nodes: Iterator[dict[str, Any]]) -> int:
    """Stream a tree, drain it, and look at the memory of server and agent all the while."""
    async with throw_away() as instance:
        await instance.first_task()
        before = _memory(instance)
        body = b"\n".join(json.dumps(node).encode() for node in nodes)
        began, spent = time.monotonic(), processes.cpu_seconds(instance.roots)
        kind = "application/x-ndjson"
        path = f"/v1/trees/stream?name={name}"
        answer = await instance.http.request("POST", path, body=body, content_type=kind, timeout=900)
        if answer.status != 201:
            raise SystemExit(f"the stream was answered with {answer.status}: {answer.body[:300]!r}")
        accepted = json.loads(answer.body)
        submitted = time.monotonic() - began
        stored = _memory(instance)
        tree, count = int(accepted["tree"]), accepted["count"]
        print(f"stored after {submitted:.1f} s, MB at most: {stored}", file=sys.stderr)
        await _drained(instance, tree, count)
        drained = time.monotonic() - began - submitted
        spent = processes.cpu_seconds(instance.roots) - spent
        done = await instance.connection.fetchval(_DONE, tree)
        peak = _memory(instance)
    found = {
        "nodes": count, "succeeded": done, "submit_s": round(submitted, 1), "drain_s": round(drained, 1),
        "nodes_per_s": round(count / (submitted + drained)), "cpu_us_a_node": round(spent / count * 1e6),
        "mb_before": before, "mb_stored": stored, "mb_peak": peak, "bar_mb": MEMORY_BAR_MB,
    }  # fmt: skip
    print(json.dumps(found))
    return 0 if done == count and peak["server"] < MEMORY_BAR_MB else 1


async def _drained(instance: Instance, tree: int, count: int) -> None:
    """Until the tree is done, with a word every ten seconds: a run that is cut short still says something."""
    told = time.monotonic()
    while (done := await instance.connection.fetchval(_DONE, tree)) < count and await instance.connection.fetchval(_GOING, tree):
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{done:,} of {count:,} done, MB at most: {_memory(instance)}", file=sys.stderr)
        await asyncio.sleep(0.2)


def _links(count: int) -> Iterator[dict[str, Any]]:
    """Each after the one before."""
    yield {"name": "0", "function": bodies.NOOP, "input": ["00000000"]}
    for link in range(1, count):
        yield {"name": str(link), "function": bodies.NOOP, "input": [f"{link:08d}"], "after": [str(link - 1)]}


def _memory(instance: Instance) -> dict[str, int]:
    """The most that each process of ours ever had (VmHWM), in MB; `headway up` is the server itself."""
    found: dict[str, int] = {}
    for stat in processes.tree(instance.roots):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{stat.pid}/cmdline").read_text().replace("\0", " ")
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{stat.pid}/status").read_text())
            what = "server" if stat.pid in instance.roots else next((name for name in _PARTS if _PARTS[name] in command), None)
            if what and peak:
                found[what] = max(found.get(what, 0), int(peak[1]) // 1024)
    return found


def _line(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items())


def _rounded(ratios: dict[str, float]) -> dict[str, float]:
    return {name: round(ratio, 2) for name, ratio in ratios.items() if name != "tree"}


if __name__ == "__main__":
    raise SystemExit(main())
