"""A tenant's subscription: what it pays for, and therefore how much, how fast and under which defaults it may use the fleet.

`Subscription` is what is kept and what every server reads; `SubscriptionSpec` is what people write, with durations and sizes as
text. `Terms` are the part that decides what a task becomes: they are handed to `define()`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from headway.domain import units
from headway.domain.checks import check_name
from headway.domain.resources import DEFAULT_TIER, TIERS, Resources
from headway.errors import InvalidInput

DEFAULT_TENANT = 1
ISOLATION = ("none", "sandbox", "container")
_WORD_LIMIT = 60


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """None means no limit. The default tenant of `up` differs in its isolation, which is `none` (see the migration)."""

    cost_class: str = "standard"
    weight: float = 1.0  # share of its class against other classes
    rate_per_hour: float | None = None  # tasks accepted in an hour
    burst: int | None = None  # tasks accepted at once after a quiet time; None: a minute's worth
    max_running: int | None = None
    max_waiting: int | None = None
    max_cpus: float | None = None  # of all its running tasks together
    max_memory: int | None = None
    default_cap_s: float = 600.0
    max_cap_s: float = 86_400.0
    default_tier: str = DEFAULT_TIER
    delay_tolerance_s: float | None = None  # of tasks that say neither tolerance nor category
    max_wait_s: float | None = None  # of tasks that say none
    isolation: str = "sandbox"
    network: tuple[str, ...] = ()  # what its tasks may be allowed to reach; "*" is everything
    suspended: bool = False  # nothing new is accepted

    @property
    def burst_size(self) -> int:
        """How many tasks may come at once."""
        if self.burst is not None:
            return self.burst
        return max(1, math.ceil((self.rate_per_hour or 0.0) / 60))


class SubscriptionSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Changes to a subscription as people write them; what is left out stays, null takes a limit away."""

    cost_class: str | msgspec.UnsetType = msgspec.UNSET
    weight: float | msgspec.UnsetType = msgspec.UNSET
    rate_per_hour: float | msgspec.UnsetType | None = msgspec.UNSET
    burst: int | msgspec.UnsetType | None = msgspec.UNSET
    max_running: int | msgspec.UnsetType | None = msgspec.UNSET
    max_waiting: int | msgspec.UnsetType | None = msgspec.UNSET
    max_cpus: float | msgspec.UnsetType | None = msgspec.UNSET
    max_memory: int | float | str | msgspec.UnsetType | None = msgspec.UNSET
    default_cap: float | str | msgspec.UnsetType = msgspec.UNSET
    max_cap: float | str | msgspec.UnsetType = msgspec.UNSET
    default_tier: str | msgspec.UnsetType = msgspec.UNSET
    delay_tolerance: float | str | msgspec.UnsetType | None = msgspec.UNSET
    max_wait: float | str | msgspec.UnsetType | None = msgspec.UNSET
    isolation: str | msgspec.UnsetType = msgspec.UNSET
    network: list[str] | msgspec.UnsetType = msgspec.UNSET
    suspended: bool | msgspec.UnsetType = msgspec.UNSET


class Terms(msgspec.Struct, frozen=True):
    """What a subscription means for one task. `tiers` is None where they are not known (in a client): any name is then fine."""

    tiers: Mapping[str, Resources] | None = None
    default_tier: str = DEFAULT_TIER
    default_cap_s: float = 600.0
    max_cap_s: float = 86_400.0
    delay_tolerance_s: float | None = None
    max_wait_s: float | None = None
    max_cpus: float | None = None
    max_memory: int | None = None


ANYWHERE = Terms(max_cap_s=366 * 86_400.0)  # of a client, which does not know its subscription
STANDARD = Terms(tiers=TIERS)


def terms_of(subscription: Subscription, tiers: Mapping[str, Resources]) -> Terms:
    return Terms(
        tiers,
        subscription.default_tier,
        subscription.default_cap_s,
        subscription.max_cap_s,
        subscription.delay_tolerance_s,
        subscription.max_wait_s,
        subscription.max_cpus,
        subscription.max_memory,
    )


def changed(old: Subscription, spec: SubscriptionSpec) -> Subscription:
    """The subscription after these changes, checked as a whole."""
    said: dict[str, Any] = {name: value for name in spec.__struct_fields__ if (value := getattr(spec, name)) is not msgspec.UNSET}
    for name in ("default_cap", "max_cap", "delay_tolerance", "max_wait"):
        if name in said:
            value = said.pop(name)
            said[f"{name}_s"] = None if value is None else units.seconds(value, name)
    if said.get("max_memory") is not None:
        said["max_memory"] = units.size(said["max_memory"], "max_memory")
    if "network" in said:
        said["network"] = tuple(said["network"])
    new = msgspec.structs.replace(old, **said)
    _check(new)
    return new


def check_tenant(name: str) -> None:
    """A tenant is named in addresses, where `self` is the caller's own."""
    check_name(name)
    if name in ("self", ".", "..") or "/" in name:
        raise InvalidInput(f"name: a tenant cannot be called {name[:40]!r}", field="name", hint="without /, and not self")


def spec_of(subscription: Subscription) -> dict[str, Any]:
    """The subscription in the words of its spec: what was given, gives the same again."""
    said = {name: getattr(subscription, name) for name in subscription.__struct_fields__}
    for name in ("default_cap", "max_cap", "delay_tolerance", "max_wait"):
        said[name] = said.pop(f"{name}_s")
    said["network"] = list(subscription.network)
    return {name: said[name] for name in SubscriptionSpec.__struct_fields__}


def _check(new: Subscription) -> None:
    for name in ("cost_class", "default_tier"):
        word = getattr(new, name)
        if not 0 < len(word) <= _WORD_LIMIT or not word.isprintable():
            raise InvalidInput(f"{name}: {word[:40]!r} is not a name", field=name, hint=f"1 to {_WORD_LIMIT} characters")
    _range("weight", new.weight, 0.001, 1_000_000)
    _range("rate_per_hour", new.rate_per_hour, 0.001, 1e13)
    _range("burst", new.burst, 1, 1_000_000_000)
    _range("max_running", new.max_running, 0, 1_000_000_000)
    _range("max_waiting", new.max_waiting, 0, 10_000_000_000)
    _range("max_cpus", new.max_cpus, 0, 1e9)
    _range("max_memory", new.max_memory, 0, 2**62)
    _range("max_cap", new.max_cap_s, 0.001, 366 * 86_400)
    _range("default_cap", new.default_cap_s, 0.001, new.max_cap_s, hint="above 0, at most max_cap")
    _range("delay_tolerance", new.delay_tolerance_s, 0, 366 * 86_400)
    _range("max_wait", new.max_wait_s, 0.001, 366 * 86_400)
    if new.burst is not None and new.rate_per_hour is None:
        raise InvalidInput("burst: there is no rate_per_hour it could belong to", field="burst", hint="give both, or neither")
    if new.isolation not in ISOLATION:
        raise InvalidInput(
            f"isolation: {new.isolation[:40]!r} is unknown", field="isolation", hint=f"one of {', '.join(ISOLATION)}"
        )


def _range(name: str, value: float | None, low: float, high: float, *, hint: str | None = None) -> None:
    if value is not None and not low <= value <= high:  # also refuses NaN
        raise InvalidInput(f"{name}: {value:g} is out of range", field=name, hint=hint or f"{low:g} to {high:g}")
