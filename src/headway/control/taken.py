"""What a transaction takes of tenants' allowances (A3): once, however often PostgreSQL wants it tried again."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType

from headway.control.allowances import Allowance, Allowances
from headway.errors import Unavailable


@dataclass
class Taken:
    """`with` it around the transaction, which begins every try with `anew`."""

    allowances: Allowances
    _parts: list[tuple[Allowance, int, float]] = field(default_factory=list)  # how many tasks, and when

    async def take(self, tenant: int, count: int) -> None:
        """Room for `count` tasks, or LimitExceeded."""
        began = self.allowances.monotonic()
        allowance = await self.allowances.take(tenant, count)
        if allowance is not None:
            self._parts.append((allowance, count, began))

    def anew(self) -> None:
        """What was taken so far was for nothing: it was rolled back."""
        now = self.allowances.monotonic()
        for allowance, count, began in self._parts:
            allowance.stored(count)
            allowance.took_for_nothing(count, began, now)
        self._parts.clear()

    def __enter__(self) -> Taken:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """What was stored, or may have been, is paid for."""
        if isinstance(error, Exception) and not isinstance(error, Unavailable):
            self.anew()
        for allowance, count, _ in self._parts:
            allowance.stored(count)
        self._parts.clear()
