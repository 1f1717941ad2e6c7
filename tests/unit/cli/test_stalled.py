"""Why work does not begin is asked now and then, and no answer is no reason to leave (E8)."""

from __future__ import annotations

from typing import Any

import pytest

from headway.cli import stalled
from headway.cli.stalled import Doubt
from headway.errors import HeadwayError, NotFound
from headway.wire.views.explanations import Explanation


class Explains:
    """A server that is asked why."""

    inside = None

    def __init__(self, *answers: Explanation | HeadwayError) -> None:
        self.answers = list(answers)

    async def get(self, path: str, kind: Any) -> Explanation:
        answer = self.answers.pop(0)
        if isinstance(answer, HeadwayError):
            raise answer
        return answer


@pytest.fixture
def time_now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(stalled.time, "monotonic", lambda: now[0])
    return now


async def test_no_answer_is_no_reason_to_leave(time_now: list[float]) -> None:
    said: list[str] = []
    doubt = Doubt(Explains(NotFound("it is gone")), said.append)  # type: ignore[arg-type]
    time_now[0] = stalled.FIRST_S
    await doubt.about("7")
    assert said == []
    assert doubt.patience_s


async def test_a_task_that_runs_for_hours_is_asked_about_less_and_less(time_now: list[float]) -> None:
    server = Explains(*(Explanation("7", "running", "") for _ in range(100)))
    doubt = Doubt(server, lambda text: None)  # type: ignore[arg-type]
    while time_now[0] < 3600:
        assert doubt.patience_s is not None
        time_now[0] += doubt.patience_s
        await doubt.about("7")
    assert 30 < len(server.answers) < 60
