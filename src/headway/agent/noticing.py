"""What can be run here changes while the agent runs: a language or bubblewrap is installed or removed, a volume mounted, Docker's daemon
started (H1 H2 H11).

It is seen at the next look and told to the servers, which place tasks by it; nothing that runs is touched. The engine of containers, which
the supervisor sets up when it starts, is offered later only if it was there by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from headway.errors import HeadwayError
from headway.logs import log

Labels = dict[str, str]


async def notice(every_s: float, labels: Mapping[str, str], look: Callable[[], Labels], tell: Callable[[Labels], Awaitable[None]]) -> None:
    """Look for ever, beginning with what the servers know. What cannot be seen or told now is looked at again."""
    known = dict(labels)
    while True:
        await asyncio.sleep(every_s)
        try:
            found = await asyncio.to_thread(look)
            if found != known:
                log("agent.labels_changed", new=_new(known, found), gone=", ".join(sorted(known.keys() - found.keys())))
                await tell(found)
        except (OSError, HeadwayError) as error:  # a program that goes while it is looked at, a server that wants another version
            log("agent.labels_unknown", level="warning", reason=str(error))
        else:
            known = found


def _new(known: Labels, found: Labels) -> str:
    return ", ".join(sorted(f"{name}={value}" for name, value in found.items() if known.get(name) != value))
