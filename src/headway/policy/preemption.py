"""Who makes room for a task that should have begun and finds every node full (E9).

A victim is frozen when what the other asks for in memory, disk and ports is free beside it, and loses nothing; else it is ended and
queued again, and loses its work since its last checkpoint. The least work lost goes first. A task that made room before is left alone
until it has run on for as long as it was away, and at least REST_S: nobody is stopped twice in a row. Nobody stops others' tasks for more
than its part of the fleet; its own may always make room for a more urgent one. A frozen task goes on when the one it stopped for has
ended, or as soon as others on its node have left room enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headway.domain.resources import Capacity, Resources, fits

LOOK_S = 0.25  # how often late tasks are looked for
PATIENCE_S = 0.2  # the planner has had its chance
BREATH_S = 0.3  # before a victim goes on: the planner may not have read on to the next urgent task yet
LONGEST_LOAN_S = 60.0  # for so long one pause serves one late task after another
MOST_LATE = 20  # looked at in one round
MOST_NODES = 200
REST_S = 10.0
LONG_S = 2.0  # a victim has at least this much of its cap before it: what ends soon makes room by itself
SHORT = 0.1  # a task that is merely late may stop only one that may run ten times as long
STAYING = (1, 2, 5)  # memory, disk, ports: a frozen task keeps them
MOST_VICTIMS = 8

Amounts = tuple[int, ...]


class Mode(StrEnum):
    FREEZE = "freeze"
    REQUEUE = "requeue"


@dataclass(frozen=True)
class Late:
    """A waiting task whose start is overdue."""

    id: int
    asked: Resources
    urgent: bool
    cap_s: float
    tenant: int = 0
    entitled: bool = True  # its tenant holds less than its part; else only its own tasks may stop for it


@dataclass(frozen=True)
class Candidate:
    """A running task that allows to be stopped."""

    id: int
    node: int
    need: Amounts
    cap_s: float
    ran_s: float
    unsaved_s: float  # work since its last checkpoint, or its start
    times: int = 0  # how often it made room already
    away_s: float = 0.0  # for how long the last time
    back_s: float = 0.0  # since when it runs on
    tenant: int = 0


@dataclass(frozen=True)
class Space:
    """A node: what it has, and what of it is free (less than nothing when tasks wait there)."""

    node: int
    free: Amounts
    capacity: Capacity
    accepting: bool = True


@dataclass(frozen=True)
class Choice:
    """Who makes room where, and how."""

    late: int
    node: int
    victims: Mapping[int, Mode] = field(default_factory=dict)
    lost_s: float = 0.0


def choose(late: Late, spaces: Iterable[Space], candidates: Iterable[Candidate]) -> Choice | None:
    """The least costly way to make room for `late` on one node; None when there is none, or when there is room already."""
    on: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        if may_stop(late, candidate):
            on.setdefault(candidate.node, []).append(candidate)
    best: tuple[tuple[float, int, int, int], Choice] | None = None
    for space in spaces:
        if not space.accepting or not fits(late.asked, space.capacity):
            continue
        if not _missing(late.asked.amounts(), space.free):
            return None
        found = _on_one(late, space, on.get(space.node, []))
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best[1] if best else None


def room_for_all(free: Iterable[int]) -> bool:
    """Whether all that a node holds fits there at once, by what is free in its books: who is frozen there can go on."""
    return all(amount >= 0 for i, amount in enumerate(free) if i not in STAYING)


def may_stop(late: Late, candidate: Candidate) -> bool:
    """Whether it is right that this task stops for that one."""
    if not late.entitled and candidate.tenant != late.tenant:
        return False
    left_s = candidate.cap_s - candidate.ran_s
    if left_s < LONG_S or not (late.urgent or late.cap_s <= SHORT * left_s):
        return False
    return candidate.times == 0 or candidate.back_s >= max(REST_S, candidate.away_s)


def _on_one(late: Late, space: Space, candidates: list[Candidate]) -> tuple[tuple[float, int, int, int], Choice] | None:
    """Take the cheapest until there is room, then let those go again that are not needed."""
    need = late.asked.amounts()
    frozen = not any(i in STAYING for i in _missing(need, space.free))
    costs = {c.id: _cost(c, frozen=frozen) for c in candidates}
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: costs[c.id]):
        if not _missing(need, _free_with(space, chosen, frozen=frozen)):
            break
        if _helps(candidate, _missing(need, _free_with(space, chosen, frozen=frozen)), frozen=frozen):
            chosen.append(candidate)
    if _missing(need, _free_with(space, chosen, frozen=frozen)):
        return None
    for candidate in sorted(chosen, key=lambda c: costs[c.id], reverse=True):
        rest = [c for c in chosen if c is not candidate]
        if not _missing(need, _free_with(space, rest, frozen=frozen)):
            chosen = rest
    if len(chosen) > MOST_VICTIMS:
        return None
    victims = {c.id: Mode.FREEZE if frozen else Mode.REQUEUE for c in chosen}
    lost = sum(costs[c.id][0] for c in chosen)
    return (lost, len(chosen), sum(c.times for c in chosen), space.node), Choice(late.id, space.node, victims, lost)


def _cost(candidate: Candidate, *, frozen: bool) -> tuple[float, int, float, int]:
    """Work lost; then who made room less often; then who may run longest."""
    lost = 0.0 if frozen else candidate.unsaved_s
    return (lost, candidate.times, candidate.ran_s - candidate.cap_s, candidate.id)


def _free_with(space: Space, stopped: list[Candidate], *, frozen: bool) -> Amounts:
    """What is free once these have stopped."""
    free = list(space.free)
    for candidate in stopped:
        for i, amount in enumerate(candidate.need):
            if i not in STAYING or not frozen:
                free[i] += amount
    return tuple(free)


def _missing(need: Amounts, free: Amounts) -> set[int]:
    """The dimensions in which there is not enough."""
    return {i for i, (asked, there) in enumerate(zip(need, free, strict=True)) if asked > there}


def _helps(candidate: Candidate, missing: set[int], *, frozen: bool) -> bool:
    stays = STAYING if frozen else ()
    return any(candidate.need[i] for i in missing if i not in stays)
