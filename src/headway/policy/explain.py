"""Why a task does not run, what would start it, and when it will probably start (E8).

The reasons are the planner's own: policy.peak.judge, policy.fairness.over_quota and policy.room.refuse say the same words to both.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headway.domain.lifecycle import Outcome, State
from headway.domain.resources import Resources, describe
from headway.policy.forecast import Luck, Scene, Start, foresee
from headway.policy.peak import OPEN, Verdict
from headway.policy.placement import Gate
from headway.policy.room import Refusal

PROMPT_S = 1.0  # with room and nothing in front: a round of planning and the way to the agent
SPREAD = 2.0  # ends of tasks come in clumps: the interval is that of half as many independent ones
FARTHEST_S = 366 * 86_400.0  # nothing is foretold beyond: the rate of a fleet that ends nothing dies away, and never reaches 0
OVERTAKEN = 3.0  # how much longer it may take when tasks still to come go before it, as long as it is not due


@dataclass(frozen=True)
class Ended:
    """How the last attempt of a task that runs again ended."""

    attempt: int
    outcome: Outcome
    node: str = ""
    error: str = ""  # in few words


@dataclass(frozen=True)
class Listed:
    """A list that is to become tasks: why it could not at the last look, as the limiter said it, and when it may."""

    waits: str = ""
    until: datetime.datetime | None = None


@dataclass(frozen=True)
class Facts:
    """What is known about a task that waits."""

    state: State
    now: datetime.datetime
    eligible_at: datetime.datetime
    start_by: datetime.datetime
    asked: Resources
    verdict: Verdict = OPEN
    quota: Sequence[str] = ()
    refusals: Sequence[Refusal] = ()  # one of each node that does not take it
    nodes: int = 0
    kept: str | None = None  # the node that is kept free for it
    ahead: int = 0  # tasks of its tenant that go before it
    due: bool = False
    entitled: bool = True
    tenants_before: int = 0
    rate_per_s: float = 0.0  # how fast tasks of its tenant are handed out
    scene: Scene | None = None  # what runs and waits, when that is little enough to be looked at one by one
    luck: Luck | None = None  # to draw its futures with
    task: int = 0
    queue: str = ""
    lead_s: float = 2.0
    blockers: Sequence[tuple[int, str, str]] = ()  # (id, name, state) of what it waits for
    held: bool = False  # somebody paused it
    beneficiary: int | None = None  # the task it was stopped for; 0: one that whoever asks may not know of
    listed: Listed | None = None  # its `for_each` is to be carried out
    cancelling: bool = False
    last: Ended | None = None
    used: int = 0  # of its attempts
    attempts: int = 1

    @property
    def finds_room(self) -> bool:
        """Whether a node would take it now."""
        return not self.quota and not self.ahead and len(self.refusals) < self.nodes


@dataclass(frozen=True)
class Cause:
    code: str
    text: str
    remedy: str = ""
    until: datetime.datetime | None = None


@dataclass(frozen=True)
class Answer:
    summary: str
    causes: list[Cause] = field(default_factory=list)
    start: Start | None = None


def explain(facts: Facts) -> Answer:
    """Every reason that keeps a waiting task from running now, the deciding one first."""
    causes = _causes(facts)
    start = estimate(facts, causes)
    if not causes:
        return Answer("nothing keeps it: the next round of planning hands it out", [], start)
    return Answer(causes[0].text, causes, start)


def _causes(facts: Facts) -> list[Cause]:
    if facts.cancelling:
        return [Cause("cancelling", "it is being cancelled")]
    if facts.beneficiary is not None and not facts.held:
        other = f"task {facts.beneficiary}" if facts.beneficiary else "a more urgent task"
        return [Cause("paused", f"it was stopped to make room for {other}", f"{other} ends")]
    if facts.held or facts.state is State.PAUSED:
        return [Cause("paused", "somebody paused it", f"headway resume {facts.task}")]
    if facts.state is State.BLOCKED:
        return _blocked(facts)
    if facts.state is State.SCHEDULED:
        return _scheduled(facts)
    found = []
    if facts.verdict.gate is Gate.CLOSED:
        found.append(Cause("queue", facts.verdict.reason, _other_queue(facts), facts.verdict.until))
    elif facts.verdict.gate is Gate.DUE and not facts.due:
        promoted = facts.start_by - datetime.timedelta(seconds=facts.lead_s)
        found.append(Cause("peak", facts.verdict.reason, "a shorter delay_tolerance, or `off_peak: never`", promoted))
    if facts.quota:
        text = f"its tenant is at its quota: {', '.join(facts.quota)}"
        found.append(Cause("quota", text, "enough of its tenant's tasks end, or the subscription is raised"))
    if cause := _room(facts):
        found.append(cause)
        if facts.ahead or facts.tenants_before:
            found.append(_order(facts))
    elif facts.ahead and not found:
        found.append(_order(facts))
    return found


def _scheduled(facts: Facts) -> list[Cause]:
    """Its time, and what would keep it from running then too."""
    now = f"headway change {facts.task} --set at=now"
    if facts.last is None:
        found = [Cause("scheduled", "its time has not come", now, facts.eligible_at)]
    elif facts.last.outcome is Outcome.TRY_LATER:
        found = [Cause("retry", f"{earlier(facts.last)}: it runs again after its retry's interval", now, facts.eligible_at)]
    else:
        left = f"{facts.used} of {facts.attempts} attempts are used"
        found = [Cause("retry", f"{earlier(facts.last)}, and the next attempt waits for its time: {left}", now, facts.eligible_at)]
    if facts.verdict.gate is Gate.CLOSED:
        then = "" if facts.verdict.until is None else " then"
        found.append(Cause("queue", facts.verdict.reason + then, _other_queue(facts), facts.verdict.until))
    if (cause := _room(facts)) is not None and cause.code != "room":
        found.append(cause)
    return found


_ENDS = {
    Outcome.NODE_LOST: "was lost with its node",
    Outcome.PRE_EMPTED: "made room for a more urgent task",
    Outcome.REQUEUED: "saved its state and asked to go on (exit 85)",
    Outcome.TRY_LATER: "asked to be tried again later (exit 75)",
    Outcome.SUSPENDED: "ended to wait for its subtasks",
}


def earlier(last: Ended) -> str:
    """How the last attempt ended, in words."""
    where = f" on node {last.node}" if last.node else ""
    if (words := _ENDS.get(last.outcome)) is not None:
        return f"attempt {last.attempt} {words}{f' {last.node}' if last.outcome is Outcome.NODE_LOST else where}".rstrip()
    return f"attempt {last.attempt} failed{where} ({last.error or last.outcome.word})"


def _other_queue(facts: Facts) -> str:
    if "paused" in facts.verdict.reason:
        return f"an administrator says headway queue resume {facts.queue}"
    if "asked for off-peak" in facts.verdict.reason or facts.queue == "off-peak":
        return f"the peak ends, or headway change {facts.task} --set off_peak=allowed"
    return f"another queue: headway change {facts.task} --set queue=QUEUE"


def _blocked(facts: Facts) -> list[Cause]:
    return [
        Cause("dependency", f"waits for task {task} ({name}), which is {state}", f"task {task} ends")
        for task, name, state in facts.blockers
    ] or [_without_blockers(facts)]


def _without_blockers(facts: Facts) -> Cause:
    if facts.listed is not None and facts.listed.waits:
        text = f"its list does not become tasks yet: {facts.listed.waits}"
        return Cause("limit", text, "headway limits tells what is left; a larger subscription", facts.listed.until)
    if facts.listed is not None:
        return Cause("list", "its list becomes tasks at the timekeeper's next look")
    return Cause("dependency", "waits for what must end before it")


def _room(facts: Facts) -> Cause | None:
    """Why no node takes it, or None when one would."""
    if facts.nodes == 0:
        return Cause("no_node", "there is no node", "headway agent starts one")
    if len(facts.refusals) < facts.nodes:
        return None
    possible = [refusal for refusal in facts.refusals if not refusal.ever]
    counted = Counter(refusal.reason for refusal in (possible or facts.refusals))
    words = "; ".join(_named(facts.refusals, reason, count) for reason, count in counted.most_common(5))
    if not possible:
        return Cause("impossible", f"no node could ever run it: {words}", f"a node with {describe(facts.asked)}")
    open_nodes = [refusal for refusal in possible if not refusal.closed]
    if not open_nodes:
        return Cause("closed", f"no node takes it: {words}", _reopened(possible))
    if facts.kept is not None:
        words += f"; node {facts.kept} is being kept free for it"
    return Cause("room", f"no node has room: {words}", f"{describe(facts.asked)} become free on one of {len(open_nodes)} nodes")


def _reopened(closed: Sequence[Refusal]) -> str:
    draining = sorted(refusal.node for refusal in closed if refusal.reason.endswith("it is draining"))
    if draining:
        return f"headway node undrain {draining[0]}, or another node"
    return f"{'it' if len(closed) == 1 else 'one of them'} takes tasks again, or another node"


_PLURAL = {"is": "are", "has": "have", "takes": "take"}


def _named(refusals: Sequence[Refusal], reason: str, count: int) -> str:
    """Who refuses, and why."""
    names = [refusal.node for refusal in refusals if refusal.reason == reason]
    if count == 1:
        return f"node {names[0]} {reason}"
    verb, _, rest = reason.partition(" ")
    listed = ", ".join(sorted(names)[:3]) + (", ..." if count > 3 else "")
    return f"{count} nodes ({listed}) {_PLURAL.get(verb, verb)} {rest.replace(': it ', ': each ')}"


def _order(facts: Facts) -> Cause:
    parts = []
    if facts.ahead:
        parts.append(f"{facts.ahead} of its tenant's tasks go before it")
    if facts.tenants_before:
        who = "1 waiting tenant holds" if facts.tenants_before == 1 else f"{facts.tenants_before} waiting tenants hold"
        parts.append(f"{who} a smaller share of the fleet")
    return Cause("order", " and ".join(parts), f"an earlier start_by: headway change {facts.task} --set delay_tolerance=0")


def estimate(facts: Facts, causes: Sequence[Cause]) -> Start | None:
    """When it will probably start. What waits for a queue meets what is there when that opens; what waits for its time, what is left then
    of what it would meet now."""
    if any(cause.code in ("paused", "cancelling", "impossible", "no_node", "closed", "dependency", "limit", "list") for cause in causes):
        return None
    wait = put_off = 0.0
    for cause in causes:
        if cause.code in ("queue", "scheduled", "retry", "peak"):
            if cause.until is None:
                return None
            until = (cause.until - facts.now).total_seconds()
            if cause.code == "peak":  # at the latest: it may find room before
                put_off = max(until, 0.0)
            else:
                wait = max(wait, until)
    later = facts.state is State.SCHEDULED
    if facts.finds_room if later else not any(cause.code in ("room", "order", "quota", "peak") for cause in causes):
        return Start(wait + PROMPT_S / 2, wait, wait + PROMPT_S)
    start = _start(facts, put_off)
    if start is None:
        return None
    if later:
        return Start(max(wait, start.middle), max(wait, start.low), max(wait, start.high) + PROMPT_S)
    return Start(wait + start.middle, wait + start.low, wait + start.high + PROMPT_S)


def _start(facts: Facts, put_off: float) -> Start | None:
    """When there is room for it: in many futures of what runs and waits, or where that is too much, by rates.

    Then tasks of its tenant are handed out at some rate, and it is the (ahead + 1)-th of them.
    """
    if facts.scene is not None and facts.luck is not None and facts.scene.small:
        return foresee(facts.scene, facts.luck)
    if facts.rate_per_s <= 0:
        return Start(put_off / 2, 0.0, put_off) if put_off else None
    low, middle, high = (gamma(facts.ahead + 1, z, SPREAD) / facts.rate_per_s for z in (-1.645, 0.0, 1.645))
    # Whatever comes with an earlier start_by goes before it, until it is due itself.
    promoted = (facts.start_by - facts.now).total_seconds() - facts.lead_s
    high = max(high, min(promoted, OVERTAKEN * high), put_off)
    return None if high > FARTHEST_S else Start(middle, low, high)


def gamma(count: int, z: float, spread: float = 1.0) -> float:
    """How many mean gaps pass until the `count`-th of events that come by chance, at `z` standard deviations (Wilson and Hilferty)."""
    shape = max(count / spread, 0.3)
    root = 1 - 1 / (9 * shape) + z * math.sqrt(1 / (9 * shape))
    return count * max(root, 0.0) ** 3


def spent(
    created: datetime.datetime,
    eligible: datetime.datetime | None,
    leased: datetime.datetime | None,
    started: datetime.datetime | None,
    ended: datetime.datetime | None,
    now: datetime.datetime,
    *,
    paused_s: float = 0.0,
    earlier_s: float = 0.0,
) -> dict[str, float]:
    """Where the time of a task went until now, in seconds, by what it did: only what has happened. One that waits for others is not
    eligible yet (None). `paused_s` of the time since it started it stood still; `earlier_s` of the time before it could run it ran, in
    earlier attempts."""
    found: dict[str, float] = {}
    steps = (
        ("before it could run", created, eligible),
        ("waiting for room", eligible, leased),
        ("starting", leased, started),
        ("running", started, ended),
    )
    for word, since, until in steps:
        if since is None or since > now or (ended is not None and until is None):
            continue
        found[word] = max((min(until or now, now) - since).total_seconds(), 0.0)
        if until is None:
            break
    if earlier_s > 0:
        found["before it could run"] = max(found.get("before it could run", 0.0) - earlier_s, 0.0)
        found["in earlier attempts"] = earlier_s
    if paused_s > 0 and "running" in found:
        found["paused"] = min(paused_s, found["running"])
        found["running"] -= found["paused"]
    return found


def stood_still(turns: Iterable[tuple[bool, datetime.datetime]], until: datetime.datetime) -> float:
    """For how many seconds an attempt was paused. `turns`: in order, whether it was stopped or went on, and when."""
    total, since = 0.0, None
    for stopped, at in turns:
        if stopped and since is None:
            since = at
        elif not stopped and since is not None:
            total += (at - since).total_seconds()
            since = None
    return max(total + ((until - since).total_seconds() if since is not None else 0.0), 0.0)
