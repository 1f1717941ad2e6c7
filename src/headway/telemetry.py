"""Facts of a server, told once: every metric of Headway is listed in this file. Names carry the prefix `headway_`; no ids in labels."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Total

from headway.logs import log

registry = CollectorRegistry()

_SUBMITTED = Total("headway_tasks_submitted", "Tasks stored by this server", registry=registry)
_ENDED = Total("headway_tasks_finished", "Tasks that reached a final state", ["state"], registry=registry)
_REJECTED = Total("headway_admission_rejected", "Requests refused", ["reason"], registry=registry)
_LEASED = Total("headway_tasks_leased", "Attempts handed to nodes", registry=registry)
_LOST = Total("headway_nodes_lost", "Nodes declared lost", registry=registry)
_EXCHANGES = Total("headway_exchange_requests", "Exchanges answered", registry=registry)
_PLAN_SECONDS = Histogram(
    "headway_scheduler_loop_seconds",
    "One planning round",
    registry=registry,
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1),
)
_WAIT_SECONDS = Histogram(
    "headway_schedule_to_start_seconds",
    "From eligible to leased",
    registry=registry,
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 1, 10, 60, 600),
)
_ANSWERED = Total("headway_http_requests", "Requests answered", ["method", "route", "status"], registry=registry)
_ANSWER_SECONDS = Histogram(
    "headway_http_request_seconds",
    "From the request to the beginning of its answer",
    ["method", "route"],
    registry=registry,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10),
)
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_PREEMPTED = Total("headway_tasks_preempted", "Tasks that made room for others", ["mode"], registry=registry)
_DELIVERED = Total("headway_webhook_deliveries", "Tries to deliver a message", ["result"], registry=registry)
_TOP_K = Gauge("headway_top_k", "Most tasks handed out in one round", registry=registry)
_SHARE = Gauge("headway_fair_share_dominant", "Weighted dominant share of the largest tenants", ["tenant"], registry=registry)
_JAIN = Gauge("headway_fairness_jain", "Jain's index over tenants that wait", ["class"], registry=registry)
_UTILISATION = Gauge("headway_fleet_utilisation", "Part of the fleet that is taken, in its scarcest resource", registry=registry)
_PEAK = Gauge("headway_peak", "1 at peak", registry=registry)
_MISSED = Total("headway_deadline_missed", "Tasks handed out more than a second after their start_by", ["queue"], registry=registry)
_KEPT = Total("headway_nodes_kept", "Times a node was kept free for a large task", registry=registry)
_PROMOTED = Total("headway_promotions", "Tasks that could wait and became urgent", registry=registry)
_LEADS = Gauge("headway_leader", "1 when this server leads the duty", ["duty"], registry=registry)
QUEUE_DEPTH = Gauge("headway_queue_depth", "Waiting tasks", ["queue", "state"], registry=registry)
QUEUE_OLDEST = Gauge("headway_queue_oldest_age_seconds", "Age of the oldest ready task", ["queue"], registry=registry)
DEAD_LETTERS = Gauge("headway_dlq_size", "Dead letters", registry=registry)
NODES = Gauge("headway_nodes", "Nodes", ["state"], registry=registry)
NODE_CAPACITY = Gauge("headway_node_resource_capacity", "Capacity of the fleet", ["resource"], registry=registry)
NODE_ALLOCATED = Gauge("headway_node_resource_allocated", "Allocated on the fleet", ["resource"], registry=registry)

totals: Counter[str] = Counter()  # the same totals for /v1/stats, without reaching into the metrics library

_tasks: set[asyncio.Task[None]] = set()


def background(work: Coroutine[Any, Any, None]) -> None:
    """Run something nobody waits for; a failure is logged, never lost."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_finished)


def _finished(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log("background.failed", level="error", error=repr(error))


def submitted(count: int) -> None:
    _SUBMITTED.inc(count)
    totals["submitted"] += count


def ended(tasks: Iterable[tuple[int, Any]]) -> None:
    for state, same in groupby(tasks, key=itemgetter(1)):  # enums are slow to hash
        count = sum(1 for _ in same)
        _ENDED.labels(state=state.word).inc(count)
        totals["finished"] += count


def rejected(reason: str) -> None:
    _REJECTED.labels(reason=reason).inc()


def leased(count: int) -> None:
    _LEASED.inc(count)
    totals["leased"] += count


def planned(seconds: float, top_k: int) -> None:
    _PLAN_SECONDS.observe(seconds)
    _TOP_K.set(top_k)


def kept() -> None:
    _KEPT.inc()


def preempted(modes: Iterable[str]) -> None:
    for mode in modes:
        _PREEMPTED.labels(mode=mode).inc()
SHARES_SHOWN = 20  # a label for each tenant would grow without bound


def fairness(shares: list[tuple[float, str]], jain: dict[str, float], utilisation: float, peak: bool) -> None:
    _SHARE.clear()
    for share, tenant in shares[:SHARES_SHOWN]:
        _SHARE.labels(tenant=tenant).set(share)
    _JAIN.clear()
    for name, index in list(jain.items())[:SHARES_SHOWN]:
        _JAIN.labels(name).set(index)
    _UTILISATION.set(utilisation)
    _PEAK.set(int(peak))


def missed(queue: str, count: int) -> None:
    _MISSED.labels(queue=queue).inc(count)


def promoted(count: int) -> None:
    _PROMOTED.inc(count)


def delivered(result: str) -> None:
    _DELIVERED.labels(result=result).inc()


def waited(seconds: float) -> None:
    _WAIT_SECONDS.observe(seconds)


def node_lost(name: str, tasks: int) -> None:
    _LOST.inc()
    log("node.lost", level="warning", node=name, tasks=tasks)


def exchanged() -> None:
    _EXCHANGES.inc()


def answered(method: str, route: str | None, status: int, seconds: float) -> None:
    """A request to a route, by its pattern: paths hold ids. What no route is for counts together, whatever it asked for."""
    found = _answers.get((method, route, status // 100)) or _new_answer(method, route, status // 100)
    found[0].inc()
    found[1].observe(seconds)


_answers: dict[tuple[str, str | None, int], tuple[Total, Histogram]] = {}  # looked up for each request: `labels` takes 2 µs


def _new_answer(method: str, route: str | None, hundreds: int) -> tuple[Total, Histogram]:
    known = {"method": method if method in _METHODS else "other", "route": route or "none"}
    found = (_ANSWERED.labels(**known, status=f"{hundreds}xx"), _ANSWER_SECONDS.labels(**known))
    _answers[method, route, hundreds] = found
    return found


def leads(duty: str, yes: bool) -> None:
    _LEADS.labels(duty=duty).set(int(yes))
