"""What an isolated runner says is believed only of its own tasks, and only what a runner can know (H3 H11)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.agent.guard import PIECES, Forged, checked
from headway.agent.reports import error_text
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import ErrorInfo, Finished, Order

BATCH = [Order(1, 1, 1, b""), Order(2, 3, 1, b"")]
encode = msgspec.msgpack.encode


def did(
    *ends: tuple[int, int, Outcome], count: int | None = None, said: list[Any] | None = None, ns: tuple[int, int] = (0, 0)
) -> bytes:
    items = b"".join(encode(Finished(task, attempt, outcome, 1, 2)) for task, attempt, outcome in ends)
    return encode(["did", len(ends) if count is None else count, items, *ns, False, said or []])


def said(*pieces: tuple[int, int, int, bytes], progress: tuple[int, int, float, float, str] | None = None) -> bytes:
    return encode(["said", list(pieces), progress])


HONEST = {
    "an end": did((1, 1, Outcome.SUCCEEDED)),
    "all ends, with output": did((1, 1, Outcome.ERROR), (2, 3, Outcome.TRY_LATER), said=[(2, 3, 2, b"oh")]),
    "output": said((1, 1, 1, b"a"), (2, 3, 2, b"b")),
    "progress": said(progress=(2, 3, 1.0, 2.0, "half")),
    "what it had goes back": encode(["back", 2]),
    "it is ready": encode(["ready"]),
}
FORGED = {
    "output of another task": said((9, 1, 1, b"a")),
    "output of another attempt": said((1, 2, 1, b"a")),
    "output of another task beside an end": did((1, 1, Outcome.SUCCEEDED), said=[(9, 1, 1, b"a")]),
    "output on a stream that is none": said((1, 1, 3, b"a")),
    "output in too many pieces": said(*[(1, 1, 1, b"")] * (PIECES + 1)),
    "progress of another task": said(progress=(9, 1, 1.0, 2.0, "")),
    "progress of another attempt": said(progress=(2, 2, 1.0, 2.0, "")),
    "more goes back than it had": encode(["back", 3]),
    "less than nothing goes back": encode(["back", -1]),
    "the end of another task": did((9, 1, Outcome.SUCCEEDED)),
    "the end of another attempt": did((1, 2, Outcome.SUCCEEDED)),
    "the end of the second before the first": did((2, 3, Outcome.SUCCEEDED)),
    "more ends than tasks": did((1, 1, Outcome.SUCCEEDED), (2, 3, Outcome.SUCCEEDED), (2, 3, Outcome.SUCCEEDED)),
    "a sign of life and no end": did(),
    "a call that ended before it began": did((1, 1, Outcome.SUCCEEDED), ns=(5, -(10**18))),
    "calls that took less than nothing": did((1, 1, Outcome.SUCCEEDED), ns=(-1, 0)),
    "more ends than it tells": did((1, 1, Outcome.SUCCEEDED), count=2),
    "an unknown word": encode(["finished", 1]),
    "too few parts": encode(["did", 1]),
    "a part of another kind": encode(["back", "two"]),
    "no list": encode({"back": 1}),
    "a list in a form for thousands": b"\xdc\x00\x02" + encode("back") + encode(1),
    "nothing": b"",
}
DEEP = "[" * 5_000 + "]" * 5_000
NO_ENDS: dict[str, dict[str, Any]] = {
    "an error that is no JSON": {"outcome": Outcome.ERROR, "error": "oh"},
    "an error of another form": {"outcome": Outcome.ERROR, "error": "[1]"},
    "an error too deep": {"outcome": Outcome.ERROR, "error": '{"type":"A","message":"b","x":' + DEEP + "}"},
    "a result that is no JSON": {"result": b"[1,"},
    "a result that is not UTF-8": {"result": b'["\xff"]'},
    "a result too deep": {"result": DEEP.encode()},
    "years of CPU time": {"cpu_ms": 2**62},
    "less CPU time than none": {"cpu_ms": -1},
    "more memory than there is": {"max_memory": 2**63},
    "an exit code that is none": {"exit_code": 2**31},
    "more read than can be": {"read_bytes": 2**64 - 1},
    "less written than nothing": {"written_bytes": -1},
}
NOT_A_RUNNERS = sorted(
    set(Outcome)
    - {Outcome.SUCCEEDED, Outcome.ERROR, Outcome.TRY_LATER, Outcome.REQUEUED, Outcome.SUSPENDED, Outcome.NOT_STARTABLE}
)


@pytest.mark.parametrize("what", HONEST)
def test_what_it_can_know_of_its_own_tasks_is_believed(what: str) -> None:
    assert encode(checked(HONEST[what], BATCH)) == HONEST[what]


@pytest.mark.parametrize("what", NO_ENDS)
def test_an_end_that_says_what_nobody_could_store_is_forged(what: str) -> None:
    end = Finished(1, 1, **{"outcome": Outcome.SUCCEEDED, "started_ms": 1, "ended_ms": 2, **NO_ENDS[what]})
    with pytest.raises(Forged):
        checked(encode(["did", 1, encode(end), 0, 0, False, []]), BATCH)


def test_an_end_with_all_that_a_runner_knows_is_believed() -> None:
    info = error_text(ErrorInfo("E", "\ud800 \0 é", "trace"))
    good = [
        Finished(1, 1, Outcome.ERROR, 1, 2, error=info, exit_code=-9, cpu_ms=2**33, max_memory=2**40),
        Finished(2, 3, Outcome.SUCCEEDED, 1, 2, '["é"]'.encode(), read_bytes=1, written_bytes=0),
    ]
    body = encode(["did", 2, b"".join(map(encode, good)), 0, 0, False, []])
    assert encode(checked(body, BATCH)) == body


@pytest.mark.parametrize("what", FORGED)
def test_anything_else_is_forged(what: str) -> None:
    with pytest.raises(Forged):
        checked(FORGED[what], BATCH)


@pytest.mark.parametrize("outcome", NOT_A_RUNNERS)
def test_an_end_that_only_the_node_can_tell_is_forged(outcome: Outcome) -> None:
    with pytest.raises(Forged, match="not a runner's to tell"):
        checked(did((1, 1, outcome)), BATCH)


@given(st.sampled_from(sorted(HONEST)), st.data())
def test_a_message_that_is_changed_anywhere_is_believed_or_forged_and_nothing_else(what: str, data: st.DataObject) -> None:
    body = bytearray(HONEST[what])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        parts = checked(bytes(body), BATCH)
    except Forged:
        return
    assert parts[0] in ("did", "said", "back", "token", "ready")
