"""Structured log lines: one event each on stderr, key=value for people, JSON for programs.

Written by hand because every part of an agent imports it: structlog cost 100 ms of an exchange side's start, and that start is time a
restarted agent must not lose before its lease runs out (docs/decisions/0006-own-log-lines.md).
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_threshold = 20
_as_json = False


def configure(*, log_format: str, log_level: str) -> None:
    global _threshold, _as_json
    _threshold, _as_json = _LEVELS[log_level], log_format == "json"


def log(event: str, *, level: str = "info", exc_info: BaseException | None = None, **fields: Any) -> None:
    """One line; an exception adds its traceback as a field."""
    if _LEVELS[level] < _threshold:
        return
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line: dict[str, Any] = {"timestamp": stamp, "level": level, "event": event, **fields}
    if exc_info is not None:
        line["traceback"] = "".join(traceback.format_exception(exc_info))
    text = json.dumps(line, default=str) if _as_json else " ".join(f"{key}={_plain(value)}" for key, value in line.items())
    _write(text)


def _write(text: str) -> None:
    """A log that cannot be written must not end the work that it tells of."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # a closed terminal, a dead pipe, a full disk: there is nobody to tell


def _plain(value: object) -> str:
    text = str(value)
    return text if text and not any(c in text for c in ' "=\n') else json.dumps(text)
