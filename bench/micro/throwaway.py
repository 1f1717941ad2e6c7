"""A durable embedded PostgreSQL for one measurement, gone after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.embedded.postgres import Postgres


@contextmanager
def database() -> Iterator[str]:
    """Its address."""
    with tempfile.TemporaryDirectory(prefix="headway-micro-") as folder:
        os.chmod(folder, 0o755)  # the database may run as another user
        server = Postgres(Path(folder) / "data")
        try:
            yield server.start()
        finally:
            server.stop()
