"""A server for walks by chance over an agent: it says things twice, loses answers, is away, forgets what it heard, and notes what a server
must never hear.

It keeps a real server's rules: everything a boot held is lost when another one registers, what is not acknowledged is repeated, and a
call of another boot than the registered one is answered with `lost`.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import msgspec

from headway.wire.exchange import Cancel, Control, Exchange, Finished, Order, Orders, Output, Ref, Register, encode_msgpack
from tests.support.scripted_server import ScriptedServer

REPEAT_S = 0.5
TWICE = 0.1  # chance that an order comes once more though it was received
LOST = 0.03  # chance that a call is acted upon and not answered


@dataclass
class Steered:
    """A control, and what became of it."""

    control: Control
    asked_ns: int
    sent: float = 0.0
    answer: str = ""
    answered_ns: int = 0


class WalkServer(ScriptedServer):
    def __init__(self, seed: int, *, fence_s: float) -> None:
        super().__init__(fence_s=fence_s)
        self._luck = random.Random(seed)
        self.boots: list[str] = []
        self.open: dict[Ref, Order] = {}  # the agent has them, or shall get them
        self.gone: dict[Ref, str] = {}  # nobody waits for their ends any more, and why
        self.remembered: dict[Ref, Finished] = {}  # ends that it forgot, and shall hear once more
        self.pieces: dict[Ref, dict[int, Output]] = {}
        self.steered: dict[int, Steered] = {}
        self.wrong: list[str] = []  # what no server may hear
        self.away = False  # answers 503, as when its database is away
        self.unsteady = True  # says things twice and loses answers
        self._under: dict[Ref, str] = {}  # the boot that told an end
        self._wishes: dict[Ref, tuple[Cancel, float]] = {}  # cancels, and when they were last sent
        self.unavailable = lambda said: self.away

    # --- for the walk

    def new_task(self) -> int:
        self._number += 1
        return self._number

    def settled(self, ref: Ref) -> bool:
        return ref in self.finished or ref in self.returned or ref in self.gone

    def wish(self, ref: Ref, grace_s: float) -> None:
        """Cancel it, and say so until it is over."""
        self._loop.call_soon_threadsafe(self._wish, Cancel(*ref, grace_s))

    def steer(self, ref: Ref, word: str, argument: str = "") -> Steered:
        self._number += 1
        steered = Steered(Control(self._number, *ref, word, argument), time.monotonic_ns())
        self._loop.call_soon_threadsafe(self._steer, steered)
        return steered

    def forget(self, ref: Ref, order: Order) -> None:
        """A failover to a replica that was behind: the end of this attempt is not known any more, and it is ordered again. One that was so
        far behind that it knew another boot has lost the node's tasks."""
        self._loop.call_soon_threadsafe(self._forget, ref, order)

    def supersede(self, order: Order) -> None:
        """A higher attempt, while the agent may still have a lower one."""
        self._loop.call_soon_threadsafe(self._supersede, order)

    def repeat(self, ref: Ref) -> None:
        """An order that was received comes again."""
        self._loop.call_soon_threadsafe(self._repeat, ref)

    def hear_something(self, seconds: float) -> None:
        """Until the agent has said something, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    # --- in its own thread

    def _add(self, orders: list[Order]) -> None:
        self.open |= {(order.id, order.attempt): order for order in orders}
        super()._add(orders)

    def _wish(self, cancel: Cancel) -> None:
        self._wishes[cancel.id, cancel.attempt] = cancel, 0.0
        self._orders.set()

    def _steer(self, steered: Steered) -> None:
        self.steered[steered.control.number] = steered
        self._orders.set()

    def _forget(self, ref: Ref, order: Order) -> None:
        if ref in self.finished and ref not in self.gone and self._under.get(ref) == self.boots[-1]:
            self.remembered[ref] = self.finished.pop(ref)
            self._add([order])

    def _supersede(self, order: Order) -> None:
        for ref in [ref for ref in self.open if ref[0] == order.id]:
            self._drop(ref, "superseded")
        self._add([order])

    def _repeat(self, ref: Ref) -> None:
        if ref in self.open:
            self._waiting[ref] = self.open[ref]
            self._orders.set()

    def _drop(self, ref: Ref, why: str) -> None:
        with self._changed:
            self.gone[ref] = why
            self.open.pop(ref, None)
            self._waiting.pop(ref, None)
            self._wishes.pop(ref, None)

    def _register(self, body: bytes) -> bytes:
        boot = msgspec.json.decode(body, type=Register).boot
        if boot not in self.boots:
            self.boots.append(boot)
            for ref in list(self.open):
                self._drop(ref, "lost with its boot")
            self._wishes.clear()
            for steered in self.steered.values():
                steered.answer = steered.answer or "lost with its boot"
        return super()._register(body)

    async def _exchange(self, said: Exchange) -> bytes:
        if said.boot != self.boots[-1]:
            return encode_msgpack(Orders(said.sequence, lost=True))
        if not said.wait_s:
            said_nothing = not (said.finished or said.output or said.heartbeat)
            answer = await super()._exchange(said)
            if self.unsteady and not said_nothing and self._luck.random() < LOST:
                raise ConnectionError("the answer is lost")
            return self._with_wishes(answer)
        return self._with_wishes(await super()._exchange(said))

    def _with_wishes(self, answer: bytes) -> bytes:
        """Cancels and controls that are due go with every answer."""
        reply = msgspec.msgpack.decode(answer, type=Orders)
        now = time.monotonic()
        for ref, (cancel, sent) in list(self._wishes.items()):
            if sent <= now - REPEAT_S:
                reply.cancels.append(cancel)
                self._wishes[ref] = cancel, now
        for steered in self.steered.values():
            if not steered.answer and steered.sent <= now - REPEAT_S:
                steered.sent = now
                reply.controls.append(steered.control)
        return encode_msgpack(reply)

    def _note(self, said: Exchange) -> None:
        again = [ref for ref in said.received if self.unsteady and ref in self._waiting and self._luck.random() < TWICE]
        said.received = [ref for ref in said.received if ref not in again]
        for piece in said.output:
            self._note_piece(piece)
        for finished in said.finished:
            self._note_end(finished)
        for ref in said.returned:
            if ref in self.finished or ref in self.remembered:
                self.wrong.append(f"{ref} was given back after its end")
            self._over(ref)
        for notice in said.notices:
            steered = self.steered.get(notice.number)
            if steered is not None and not steered.answer:
                steered.answer, steered.answered_ns = notice.kind, time.monotonic_ns()
        super()._note(said)

    def _note_piece(self, piece: Output) -> None:
        ref = (piece.id, piece.attempt)
        known = self.pieces.setdefault(ref, {})
        if piece.sequence in known:
            if known[piece.sequence] != piece:
                self.wrong.append(f"{ref}: piece {piece.sequence} of its output came with two contents")
        elif ref in self.finished:
            self.wrong.append(f"{ref}: new output after its end: {piece.data[:80]!r}")
        known[piece.sequence] = piece

    def _note_end(self, finished: Finished) -> None:
        ref = (finished.id, finished.attempt)
        first = self.finished.get(ref) or self.remembered.get(ref)
        if first is not None and first != finished:
            self.wrong.append(f"{ref} ended twice: {first} and {finished}")
        self._under[ref] = self.boots[-1]
        if ref in self.returned:
            self.wrong.append(f"{ref} ended after it was given back: {finished}")
        self._over(ref)

    def _over(self, ref: Ref) -> None:
        self.open.pop(ref, None)
        self._waiting.pop(ref, None)
        self._wishes.pop(ref, None)
