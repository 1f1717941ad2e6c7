"""Reads the .sql files: `-- name: lease` opens a query, the comment lines after it say what it is for.

Queries are looked up by "file.name" once, at import of the module that uses them, so a missing one fails at start.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def load(file: str) -> dict[str, str]:
    """All queries of one file, by name."""
    text = (resources.files("headway.store") / "sql" / f"{file}.sql").read_text()
    parts = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


def every_file() -> list[str]:
    folder = resources.files("headway.store") / "sql"
    return sorted(item.name.removesuffix(".sql") for item in folder.iterdir() if item.name.endswith(".sql"))


def query(name: str) -> str:
    """The SQL of "file.name"."""
    file, _, key = name.partition(".")
    return load(file)[key]
