"""Who is served next: weighted dominant-resource fairness between tenants (E5), and quotas (E6).

A tenant's share is the largest part of any one resource of the fleet that it holds, divided by its weight. Everything here is counted
from what tenants hold (leased rows), so it is the same on every server and after every restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

from headway.policy.room import Need


class Claim(NamedTuple):
    """What a tenant may claim: a weight against the others, and quotas over everything it holds."""

    weight: float = 1.0
    max_running: int | None = None
    limits: tuple[tuple[int, int], ...] = ()  # (dimension, most)
    cost_class: str = "standard"


EQUAL = Claim()


class _Held:
    """What one tenant holds now."""

    __slots__ = ("amounts", "claim", "count", "groups", "limited", "share", "stretch")

    def __init__(self, claim: Claim, dimensions: int) -> None:
        self.renew(claim)
        self.amounts = [0] * dimensions
        self.count = 0
        self.groups = 0  # groups of it that wait
        self.share = 0.0

    def renew(self, claim: Claim) -> None:
        self.claim = claim
        self.stretch = 1.0 / claim.weight
        self.limited = claim.max_running is not None or bool(claim.limits)


@dataclass
class Usage:
    """What every tenant holds of a fleet, and the shares that follow."""

    claim_of: Callable[[int], Claim] = lambda _: EQUAL
    capacity: Sequence[int] = ()
    tenants: dict[int, _Held] = field(default_factory=dict)
    weight: float = 0.0  # of all tenants that hold or wait
    level: float = 1.0  # what a tenant is entitled to in the order: at least what all of them could have at the same time
    asked: float = 0.0  # what all could have, given that some ask for less: see `divide`
    evenly: bool = False  # the order goes by equal parts, whatever they ask for
    _inverse: list[float] = field(default_factory=list)

    def resize(self, capacity: Sequence[int]) -> None:
        """The fleet is another one: every share is."""
        self.capacity = capacity
        self._inverse = [1.0 / amount if amount > 0 else 0.0 for amount in capacity]
        for held in self.tenants.values():
            held.share = self._share(held)

    def reclaim(self) -> None:
        """Subscriptions changed."""
        for tenant, held in self.tenants.items():
            held.renew(self.claim_of(tenant))
            held.share = self._share(held)
        self._weigh(sum(held.claim.weight for held in self.tenants.values()))

    def add(self, tenant: int, need: Need, count: int) -> None:
        """The tenant holds `count` more of this need (fewer, if negative)."""
        held = self.tenants.get(tenant) or self._enter(tenant)
        amounts, inverse, share = held.amounts, self._inverse, held.share
        held.count += count
        if 0 < count <= held.count and inverse:
            for i, amount in need:
                amounts[i] = more = amounts[i] + amount * count
                if (part := more * inverse[i] * held.stretch) > share:
                    share = part
            held.share = share
            return
        for i, amount in need:
            amounts[i] += amount * count
        held.share = self._share(held)
        if not held.count and held.groups <= 0:  # below nothing, when an end is told before its start was counted: the count sets it right
            self._leave(tenant)

    def waits(self, tenant: int, groups: int) -> None:
        """So many more of its groups wait (fewer, if negative)."""
        held = self.tenants.get(tenant) or self._enter(tenant)
        held.groups += groups
        if not held.count and held.groups <= 0:
            self._leave(tenant)

    def share(self, tenant: int) -> float:
        held = self.tenants.get(tenant)
        return held.share if held is not None else 0.0

    def part(self, tenant: int) -> float:
        """Its part of everything, by weight, among all who hold or wait."""
        held = self.tenants.get(tenant)
        weight = held.claim.weight if held is not None else 1.0
        return weight / self.weight if self.weight > 0 else 1.0

    def is_under_part(self, tenant: int) -> bool:
        """Whether it holds less than an equal part, or has nobody to share with."""
        return self.share(tenant) * self.weight < 1.0 or len(self.tenants) <= 1

    def may_stop_others(self, tenant: int) -> bool:
        """Whether it holds less than what the others leave to it, or has nobody to share with.

        Also while the order goes by equal parts: one of a thousand may be less than one task, and what the others hold and have due is
        counted, so nobody comes to more than them by stopping their tasks.
        """
        return self.share(tenant) < max(self.level, self.asked) or len(self.tenants) <= 1

    def divide(self, due: Mapping[int, float], utilisation: float, *, evenly: bool = False) -> None:
        """Raise the level to what everyone can have when nobody takes more than it holds and has `due`, both as parts of the fleet;
        with `evenly` only for who may stop others: the order goes by equal parts.

        Shares of several resources do not add up to one: what is held now stands for `utilisation`.
        """
        found = {tenant: held.share for tenant, held in self.tenants.items()}
        weights = {tenant: held.claim.weight for tenant, held in self.tenants.items()}
        whole = sum(share * weights[tenant] for tenant, share in found.items()) / max(utilisation, 0.01)
        for tenant, part in due.items():
            if tenant in found:
                found[tenant] += part / weights[tenant]
        self.asked = water_level([(share, weights[tenant]) for tenant, share in found.items()], whole)
        self.evenly = evenly
        self._weigh(self.weight)

    def order_evenly(self) -> None:
        """In the order everyone is entitled to an equal part; who may stop others is as it was last counted."""
        self.evenly = True
        self._weigh(self.weight)

    def until(self, tenant: int, need: Need, share: float, most: int) -> int:
        """How many more tasks it may get before its share is above `share`: at least one."""
        held = self.tenants.get(tenant) or self._enter(tenant)
        bound = share / held.stretch
        fits = most
        for i, amount in need:
            inverse = self._inverse[i]
            if inverse:
                fits = min(fits, int((bound / inverse - held.amounts[i]) / amount) + 1)
        return max(fits, 1)

    def allowance(self, tenant: int, need: Need, most: int) -> int:
        """How many more tasks of this need its quotas allow, at most `most`."""
        held = self.tenants.get(tenant)
        claim = held.claim if held is not None else self.claim_of(tenant)
        if not claim.limits and claim.max_running is None:
            return most
        if claim.max_running is not None:
            most = min(most, claim.max_running - (held.count if held is not None else 0))
        asked = dict(need)
        for i, limit in claim.limits:
            if amount := asked.get(i, 0):
                most = min(most, (limit - (held.amounts[i] if held is not None else 0)) // amount)
        return max(most, 0)

    def reset(self) -> None:
        """Nobody holds anything; who waits still waits."""
        for tenant, held in list(self.tenants.items()):
            held.amounts, held.count, held.share = [0] * len(held.amounts), 0, 0.0
            if held.groups <= 0:
                self._leave(tenant)

    def _share(self, held: _Held) -> float:
        return max(map(mul, held.amounts, self._inverse), default=0.0) * held.stretch

    def _enter(self, tenant: int) -> _Held:
        held = self.tenants[tenant] = _Held(self.claim_of(tenant), max(len(self.capacity), 6))
        self._weigh(self.weight + held.claim.weight)
        return held

    def _leave(self, tenant: int) -> None:
        held = self.tenants.pop(tenant)
        self._weigh(self.weight - held.claim.weight if self.tenants else 0.0)

    def _weigh(self, weight: float) -> None:
        self.weight = weight
        self.level = max(1.0 / weight if weight > 0 else 1.0, 0.0 if self.evenly else self.asked)


def water_level(asked: Iterable[tuple[float, float]], whole: float) -> float:
    """The share that everyone who asks for more can have, when all who ask for less get that. `asked`: (share, weight) of each."""
    ordered = sorted(asked)
    weight = sum(one for _, one in ordered)
    for share, own in ordered:
        if share * weight > whole:
            return min(max(whole, 0.0) / weight, 1.0)
        whole -= share * own
        weight -= own
    return 1.0


def jain(values: Iterable[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    found = list(values)
    squares = sum(value * value for value in found)
    return sum(found) ** 2 / (len(found) * squares) if squares > 0 else 1.0


def over_quota(claim: Claim, running: int, amounts: Sequence[int], need: Need) -> list[str]:
    """Which quotas one more task of this need would break, in words; empty when none."""
    words = []
    if claim.max_running is not None and running >= claim.max_running:
        words.append(f"{running} of {claim.max_running} running tasks")
    asked = dict(need)
    for i, limit in claim.limits:
        if asked.get(i, 0) and amounts[i] + asked[i] > limit:
            used, most = (amounts[i] / 1000, limit / 1000) if i == 0 else (amounts[i] / 2**20, limit / 2**20)
            words.append(f"{used:g} of {most:g} {('cpus', 'MiB memory', 'MiB disk')[i] if i < 3 else 'of a resource'}")
    return words
