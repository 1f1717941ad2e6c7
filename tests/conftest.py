"""What every test may ask for: a database of its own, an engine for containers.

postgres      one real PostgreSQL for this test process, started when the first test needs it
dsn           a fresh database with Headway's tables and the lifecycle's trigger, dropped after the test
empty_dsn     a fresh database with nothing in it
engine        the command line of a container engine, each that is there: tests/support/images.py

Each has a limit of time: tests/support/time_limit.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from headway.agent import cgroups_v1
from tests.support.databases import Databases

pytest_plugins = ["tests.support.time_limit", "tests.support.images"]

# Properties say what holds, not how fast: a loaded machine takes many times as long for one example. Under CI the examples are the same
# each time, so that no change is refused for what another one broke; everywhere else they are new ones.
hypothesis.settings.register_profile(
    "headway",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("headway")


@pytest.fixture(scope="session", autouse=True)
def _no_groups_left() -> Iterator[None]:
    """Tests kill agents the hard way, and nobody starts those again to clean up after them."""
    yield
    cgroups_v1.sweep()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    databases = Databases(tmp_path_factory.mktemp("postgres", numbered=True))
    databases.start()
    yield databases
    databases.stop()


@pytest.fixture
def dsn(postgres: Databases) -> Iterator[str]:
    made = postgres.clone()
    yield made
    postgres.drop(made)


@pytest.fixture
def empty_dsn(postgres: Databases) -> Iterator[str]:
    made = postgres.empty()
    yield made
    postgres.drop(made)
