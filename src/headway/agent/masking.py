"""Secrets are hidden in what a task prints and in what its errors say (H11).

Each line of a secret is hidden by itself, a long one in parts of about equal length: then no more than a few bytes are held back at the end
of what was printed, and the time it takes follows from the length of the output, whatever secrets a tenant has. The supervisor's one
thread does it: a secret of 64 KiB, compared in full at every byte of a flood, would hold up everybody else on the node.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable
from functools import lru_cache

HIDDEN = b"***"
SHORTEST = 4  # a shorter secret is not hidden: it would hide half of every output
LONGEST = 32  # bytes of a part


class Words:
    """What is looked for, made once for the same secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {part for secret in secrets for line in secret.splitlines() for part in (line, line.strip())}
        words = {part for line in lines if len(line) >= SHORTEST for part in _parts(line.encode())}
        found: dict[bytes, set[bytes]] = {}
        for word in words:
            found.setdefault(word[:SHORTEST], set()).add(word)
        self._by_start = {
            start: (known, sorted({len(word) for word in known}, reverse=True)) for start, known in found.items()
        }
        self._sorted = sorted(words)
        classes = b"".join(b"[" + re.escape(bytes(sorted(set(column)))) + b"]" for column in zip(*found, strict=True))
        self._may_begin = re.compile(b"(?=" + classes + b")" if found else b"(?!)")

    def __bool__(self) -> bool:
        return bool(self._by_start)

    def hide(self, data: bytes, *, last: bool) -> tuple[bytes, bytes]:
        """What may be shown, and the end that could be the beginning of a secret; with the `last` piece there is none."""
        shown: list[bytes] = []
        done = at = 0
        hidden_to = -1
        while (found := self._may_begin.search(data, at)) is not None:
            at = found.start()
            if not last and len(data) - at < LONGEST and self._begins(data[at:]):
                return b"".join([*shown, data[done:at]]), data[at:]
            size = self._size(data, at)
            if not size:
                at += 1
                continue
            shown.append(data[done:at])
            if at != hidden_to:  # parts of one secret are hidden as one
                shown.append(HIDDEN)
            done = at = hidden_to = at + size
        end = len(data)
        if not last:
            end = next((at for at in range(max(done, end - SHORTEST + 1), end) if self._begins(data[at:])), end)
        return b"".join([*shown, data[done:end]]), data[end:]

    def _begins(self, rest: bytes) -> bool:
        """Whether a word begins so and goes on."""
        at = bisect.bisect_right(self._sorted, rest)
        return at < len(self._sorted) and self._sorted[at].startswith(rest)

    def _size(self, data: bytes, at: int) -> int:
        """Of the longest word that begins here; 0 for none."""
        known, sizes = self._by_start.get(data[at : at + SHORTEST], (frozenset[bytes](), ()))
        return next((size for size in sizes if data[at : at + size] in known), 0)

    def in_text(self, text: str) -> str:
        return self.hide(text.encode(errors="replace"), last=True)[0].decode(errors="replace")


@lru_cache(64)
def words_of(secrets: frozenset[str]) -> Words:
    return Words(secrets)


class Mask:
    """Hides secrets in streams of bytes, also when one is cut in two by a read."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._words = words_of(frozenset(secrets))
        self._held: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._words)

    def hide(self, stream: int, data: bytes) -> bytes:
        """What may be shown of it now. An end that could be the beginning of a secret is held back until more comes."""
        shown, self._held[stream] = self._words.hide(self._held.get(stream, b"") + data, last=False)
        return shown

    def rest(self, stream: int) -> bytes:
        """What was held back: nothing more comes."""
        return self._words.hide(self._held.pop(stream, b""), last=True)[0]


def _parts(word: bytes) -> list[bytes]:
    count = -(-len(word) // LONGEST)
    size, more = divmod(len(word), count)
    ends = [number * size + min(number, more) for number in range(count + 1)]
    return [word[begin:end] for begin, end in itertools.pairwise(ends)]
