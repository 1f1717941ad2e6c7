"""Durations, sizes and moments as people write them: numbers, or "90s", "10m", "1h30m", "2d"; bytes, or "512MiB"; ISO 8601."""

from __future__ import annotations

import datetime
import math
import re

from headway.errors import InvalidInput

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_SIZES = {
    "": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")

LONGEST = 10 * 365 * 86400.0  # ten years: beyond it a duration is a mistake
LARGEST = 2**60


def seconds(value: float | str, field: str) -> float:
    """The duration in seconds, or an error that names the field and the accepted forms."""
    found = _seconds(value)
    if found is None:
        raise InvalidInput(
            f"{field}: {value!r} is not a duration", field=field, hint='write seconds, or "90s", "10m", "1h30m", "2d"'
        )
    if not 0 <= found <= LONGEST:
        raise InvalidInput(f"{field}: {value!r} is out of range", field=field, hint="from 0 to ten years")
    return found


def _seconds(value: float | str) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    text = value.strip().replace(" ", "")
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        return number if math.isfinite(number) else None
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def size(value: float | str, field: str) -> int:
    """The size in bytes, or an error that names the field and the accepted forms."""
    found: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if math.isfinite(value) else None
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)) and match[2].lower() in _SIZES:
        found = float(match[1]) * _SIZES[match[2].lower()]
    if found is None:
        raise InvalidInput(f"{field}: {value!r} is not a size", field=field, hint='write bytes, or "512MiB", "2GiB"')
    if not 0 <= found <= LARGEST:
        raise InvalidInput(f"{field}: {value!r} is out of range", field=field, hint="from 0 to 1 EiB")
    return int(found)


def duration_text(value: float) -> str:
    """Seconds as a person would write them: 90 -> "1m30s", 0.0031 -> "3.1ms"."""
    if value < 1:
        return f"{value * 1000:.1f}ms"
    if value < 60:
        return f"{value:.1f}s" if value < 10 else f"{value:.0f}s"
    parts, rest = [], round(value)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def size_text(value: float) -> str:
    """Bytes as a person would write them: 268435456 -> "256MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f}{unit}" if value == int(value) else f"{value:.1f}{unit}"
        value /= 1024
    raise AssertionError("unreachable")


def at_seconds(at: str | float, field: str = "at") -> float:
    """A moment as Unix seconds: a number, or ISO 8601 with a time zone."""
    if isinstance(at, str):
        try:
            moment = datetime.datetime.fromisoformat(at)
        except ValueError:
            raise InvalidInput(
                f"{field}: {at[:40]!r} is not a moment", field=field, hint='write ISO 8601: "2026-11-15T03:00:00+00:00"'
            ) from None
        if moment.tzinfo is None:
            raise InvalidInput(f"{field}: {at!r} has no time zone", field=field, hint='end it with "Z" or "+01:00"')
        at = moment.timestamp()
    if not 0 <= at < 4_102_444_800:  # the year 2100; also refuses NaN
        raise InvalidInput(f"{field}: {at} is out of range", field=field, hint="Unix seconds before the year 2100")
    return at
