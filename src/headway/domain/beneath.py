"""What an isolated task may submit (C4 H11): its subtasks are isolated too, and are granted nothing that it was not granted itself."""

from __future__ import annotations

from headway.domain.content import VOLUME
from headway.domain.isolation import confine
from headway.domain.task import Definition
from headway.errors import InvalidInput


def beneath(child: Definition, parent: Definition, tenant: int) -> Definition:
    """The child as a subtask of this parent may run it, or an error that says what it asked for in vain."""
    if parent.isolation in ("", "none"):
        return child
    _within("secrets", set(child.content.secrets.values()), set(parent.content.secrets.values()))
    wanted = set(child.content.volumes)
    if child.executable.startswith(VOLUME):
        wanted.add(child.executable.removeprefix(VOLUME).partition("/")[0])
    _within("volumes", wanted, set(parent.content.volumes))
    return confine(child, tenant, least="sandbox", allowed=parent.network)


def _within(field: str, wanted: set[str], granted: set[str]) -> None:
    if more := sorted(wanted - granted):
        raise InvalidInput(
            f"{field}: {more[0]!r} is not granted to the task that submits this one",
            field=field,
            hint=f"it has {', '.join(sorted(granted)) or 'none'}",
        )
