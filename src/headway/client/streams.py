"""Server-sent events, as far as Headway sends them: `id`, `data`, and comments that keep the connection alive."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from headway.wire.views.events import EventView

_decode = msgspec.json.Decoder(EventView).decode


async def events_of(lines: AsyncIterator[bytes]) -> AsyncIterator[EventView]:
    """The events of a stream of lines. An event cut off by a lost connection is not an event: it comes again."""
    data: list[bytes] = []
    async for line in lines:
        line = line.rstrip(b"\r")
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield _decode(b"\n".join(data))
            data = []
