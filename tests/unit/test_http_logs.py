"""What the HTTP server tells comes as one line, and with a traceback only when nobody knows the reason (J1)."""

from __future__ import annotations

import logging

import pytest

from headway.api.http_logs import OurLines, reason_of
from headway.errors import Unavailable
from headway.logs import configure


@pytest.fixture
def logger() -> logging.Logger:
    configure(log_format="text", log_level="info")
    made = logging.Logger("of.a.test")
    made.addHandler(OurLines())
    return made


def wrapped(reason: Exception) -> Exception:
    """As the framework gives it on: in a group, as the cause of another."""
    found = RuntimeError("exception caught after response started")
    found.__cause__ = ExceptionGroup("unhandled errors in a group", [ValueError("another"), reason])
    return found


def test_a_stream_that_broke_off_for_a_known_reason_is_one_line(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logger.error("Exception in ASGI application\n", exc_info=wrapped(Unavailable("the database is away")))
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith('level=warning event=stream.broken_off code=unavailable reason="the database is away"')


def test_what_nobody_expected_is_told_with_its_traceback(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logger.error("Exception in ASGI application\n", exc_info=wrapped(KeyError("row")))
    [line] = capsys.readouterr().err.splitlines()
    assert "level=error event=http.failed" in line
    assert "KeyError: 'row'" in line


def test_other_words_keep_their_level(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logger.warning("Invalid HTTP request received.")
    assert 'level=warning event=http.said text="Invalid HTTP request received."' in capsys.readouterr().err


def test_an_error_without_ours_in_it_has_no_reason() -> None:
    assert reason_of(wrapped(KeyError("row"))) is None
