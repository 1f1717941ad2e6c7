"""What the HTTP server has to tell, in lines like all others: a stream that broke off for a reason we know needs no traceback (J1)."""

from __future__ import annotations

import logging

from headway.errors import HeadwayError
from headway.logs import log

_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))


class OurLines(logging.Handler):
    """Takes the place of a handler that writes to stderr as it likes."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        known = reason_of(error) if error is not None else None
        if known is not None:
            log("stream.broken_off", level="warning", code=known.code, reason=known.detail)
            return
        level = next((word for least, word in _LEVELS if record.levelno >= least), "debug")
        log("http.failed" if error is not None else "http.said", level=level, exc_info=error, text=record.getMessage())


def tell_in_our_lines() -> None:
    logger = logging.getLogger("uvicorn.error")
    logger.handlers, logger.propagate = [OurLines()], False


def reason_of(error: BaseException) -> HeadwayError | None:
    """The error of ours that is the reason of this one: what is raised in a stream comes wrapped."""
    if isinstance(error, HeadwayError):
        return error
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    if error.__cause__ is not None:
        inner.append(error.__cause__)
    return next((found for one in inner if (found := reason_of(one)) is not None), None)
