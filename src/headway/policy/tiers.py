"""Which tier comes next for a task that ran out of memory (K2)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headway.domain.resources import Resources
from headway.domain.task import Definition


def larger(definition: Definition, tiers: Mapping[str, Resources], *, most_memory: int | None = None) -> Definition | None:
    """The same task in the smallest tier with more memory, or None. What it had more of than that tier, it keeps."""
    need = definition.resources
    above = sorted((tier.memory, name) for name, tier in tiers.items() if tier.memory > need.memory)
    for memory, name in above:
        if most_memory is not None and memory > most_memory:
            return None
        tier = tiers[name]
        resources = msgspec.structs.replace(
            need,
            cpus_milli=max(need.cpus_milli, tier.cpus_milli),
            memory=memory,
            disk=max(need.disk, tier.disk),
            labels=tuple(sorted({**dict(tier.labels), **dict(need.labels)}.items())),
        )
        return msgspec.structs.replace(definition, resources=resources, tier=name if definition.tier else "")
    return None
