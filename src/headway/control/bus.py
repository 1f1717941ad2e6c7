"""What the parts of one server tell each other, and the other servers.

Facts are told once, after their commit; who cares subscribes. The notifier carries the same facts to other servers over NOTIFY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headway.policy.order import Group, Key

Freed = dict[tuple[int, int, int], int]  # (node, tenant, shape) -> attempts that no longer hold room


@dataclass
class Bus:
    """One list of subscribers for each fact."""

    on_ready: list[Callable[[dict[Group, list[Key]]], None]] = field(default_factory=list)
    on_freed: list[Callable[[Freed], None]] = field(default_factory=list)
    on_returned: list[Callable[[Freed], None]] = field(default_factory=list)
    on_ended: list[Callable[[list[int]], None]] = field(default_factory=list)
    on_cancel: list[Callable[[list[tuple[int, int, int]]], None]] = field(default_factory=list)  # (node, id, attempt)
    on_control: list[Callable[[list[int]], None]] = field(default_factory=list)  # nodes that must be told to do something
    on_answered: list[Callable[[list[int]], None]] = field(default_factory=list)  # numbers of controls
    on_answered_elsewhere: list[Callable[[], None]] = field(default_factory=list)  # another server wrote answers
    on_told: list[Callable[[], None]] = field(default_factory=list)  # events were written
    on_scheduled: list[Callable[[], None]] = field(default_factory=list)  # a task waits for a time that may be soon
    on_scheduled_elsewhere: list[Callable[[], None]] = field(default_factory=list)  # the same, stored by another server
    on_remote: list[Callable[[], None]] = field(default_factory=list)  # another server ended tasks
    on_fleet: list[Callable[[], None]] = field(default_factory=list)  # a node came, left, or changed
    on_queues: list[Callable[[], None]] = field(default_factory=list)  # a queue was paused, resumed, changed
    on_changed: list[Callable[[list[Group]], None]] = field(default_factory=list)  # waiting tasks of these groups were changed in place
    on_tenants: list[Callable[[], None]] = field(default_factory=list)  # a subscription or a tier changed
    on_vacant: list[Callable[[], None]] = field(default_factory=list)  # another server handed its duties on

    def ready(self, tasks: dict[Group, list[Key]]) -> None:
        """Tasks are ready to run: keys by group, each list in order."""
        if tasks:
            for tell in self.on_ready:
                tell(tasks)

    def freed(self, room: Freed) -> None:
        """Nodes have room again, because attempts ended."""
        if room:
            for tell in self.on_freed:
                tell(room)

    def returned(self, room: Freed) -> None:
        """Nodes gave back what they had not begun: they were given too much."""
        if room:
            for tell in self.on_returned:
                tell(room)

    def ended(self, ids: list[int]) -> None:
        if ids:
            for tell in self.on_ended:
                tell(ids)

    def cancel(self, attempts: list[tuple[int, int, int]]) -> None:
        if attempts:
            for tell in self.on_cancel:
                tell(attempts)

    def control(self, nodes: list[int]) -> None:
        """Nodes shall pause, resume or signal something."""
        if nodes:
            for tell in self.on_control:
                tell(nodes)

    def answered(self, numbers: list[int]) -> None:
        if numbers:
            for tell in self.on_answered:
                tell(numbers)

    def answered_elsewhere(self) -> None:
        for tell in self.on_answered_elsewhere:
            tell()

    def told(self) -> None:
        for tell in self.on_told:
            tell()

    def scheduled(self) -> None:
        for tell in self.on_scheduled:
            tell()

    def scheduled_elsewhere(self) -> None:
        for tell in self.on_scheduled_elsewhere:
            tell()

    def fleet(self) -> None:
        for tell in self.on_fleet:
            tell()

    def queues(self) -> None:
        for tell in self.on_queues:
            tell()

    def changed(self, groups: list[Group]) -> None:
        if groups:
            for tell in self.on_changed:
                tell(groups)

    def tenants(self) -> None:
        for tell in self.on_tenants:
            tell()

    def vacant(self) -> None:
        for tell in self.on_vacant:
            tell()


def by_group(rows: Iterable[tuple[int, int, Key]]) -> dict[Group, list[Key]]:
    """(tenant, shape, key) rows as sorted keys by group."""
    groups: dict[Group, list[Key]] = {}
    for tenant, shape, key in rows:
        groups.setdefault((tenant, shape), []).append(key)
    for keys in groups.values():
        keys.sort()
    return groups
