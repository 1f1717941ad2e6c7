"""Orders that make no sense, given to an agent directly as no server would: each ends, and the supervisor lives on (I1).

A definition that is refused at submission today may be in the database from before; and whatever an agent did not foresee of one task must
not be the end of the others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.domain.content import Archive, Content, Requires
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from headway.domain.stages import Stage
from headway.domain.task import Definition
from headway.wire.exchange import Order, Resume
from tests.support.agents import AgentProcess, running_agent
from tests.support.scripted_server import SMALL, ScriptedServer

WORDS = (
    "", " ", "\t", "\0", "a\0b", "/", ".", "..",
    "/dev/null", "/proc/self/mem", "~", "-", "--", "%s", "{}", "{0}", "nobody-has-this", "x" * 300,
    "y" * 200_000, "€", "\n", "sh", "python", "upload:", "upload:x/y", "volume:", "volume:none/x", "http://", "://", ":", "a:b", ":b", "a:",
    "/none.js:f", "none.pl:f", "os:system", "a b:c", "sh -c", "python -c", "' '", '"', "perl '",
)  # fmt: skip
SEED = int(os.environ.get("HEADWAY_TEST_SEED", "7"))
KINDS = ("command", "executable", "function", "stages", "image", "nothing")


class Fuzz:
    def __init__(self, seed: int) -> None:
        self._luck = random.Random(seed)

    def word(self) -> str:
        return self._luck.choice(WORDS)

    def few(self, most: int = 3) -> tuple[str, ...]:
        return tuple(self.word() for _ in range(self._luck.randrange(most + 1)))

    def named(self) -> dict[str, str]:
        return {self.word(): self.word() for _ in range(self._luck.randrange(3))}

    def sometimes(self, value: Any, otherwise: Any) -> Any:
        return value if self._luck.random() < 0.3 else otherwise

    def definition(self) -> Definition:
        kind = self._luck.choice(KINDS)
        return Definition(
            name=self.word(),
            command=self.few() if kind == "command" else (),
            executable=self.word() if kind == "executable" else "",
            function=self.word() if kind == "function" else "",
            interpreter=self.sometimes(self.word(), ""),
            args=self.few(),
            env=self.named(),
            workdir=self.sometimes(self.word(), ""),
            codec=self.sometimes(self.word(), "json"),
            resources=self.sometimes(Resources(self._number(), self._number(), self._number(), ports=self._number()), SMALL),
            cap_ms=self.sometimes(self._number(), 20_000),
            content=self.sometimes(self.content(kind), Content(image=self.word() if kind == "image" else "")),
            isolation=self.sometimes(self.word(), ""),
            network=self.sometimes(self.few(), ()),
            stages=tuple(self.stage() for _ in range(self._luck.randrange(3))) if kind == "stages" else (),
        )

    def content(self, kind: str) -> Content:
        return Content(
            image=self.word() if kind == "image" else "",
            commands=self.few(),
            checksum=self.sometimes(self.word(), ""),
            requires=self.sometimes(Requires(lock=self.word()), Requires()),
            prepare=self.sometimes(self.few(), ()),
            archives=self.sometimes((Archive(self.word(), self.word(), self.word()),), ()),
            volumes=self.sometimes(self.few(), ()),
            secrets=self.sometimes(self.named(), {}),
            logger=self.sometimes(self.word(), ""),
        )

    def stage(self) -> Stage:
        return Stage(
            self.word(), self.sometimes(self.few(), ()), self.sometimes(self.word(), ""), self.few(), self.named(),
            self.sometimes(self.word(), ""), self.sometimes(self.word(), ""),
        )  # fmt: skip

    def order(self, task: int, definition: int) -> Order:
        return Order(
            task, 1, definition, self.sometimes(self.word().encode(), b"null"), self.word(), self.sometimes(self.word(), None),
            self.sometimes(self.word().encode(), None), self.sometimes(Resume(self._luck.choice((-1, 0, 99)), []), None),
        )  # fmt: skip

    def _number(self) -> int:
        return self._luck.choice((0, 0, -1, 1, 10**6, 2**62))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[ScriptedServer, AgentProcess]]:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, container_engine="none", cpus=8.0) as agent:
        yield server, agent


def test_whatever_is_ordered_each_task_ends_and_the_supervisor_lives_on(node: tuple[ScriptedServer, AgentProcess]) -> None:
    server, agent = node
    supervisor = agent.supervisor()
    fuzz = Fuzz(SEED)
    print(f"seed {SEED}")
    refs = []
    for _ in range(4):
        plain = server.order(server.define(command=("/bin/true",)))
        batch = [fuzz.order(1000 + len(refs) + at, server.add_definition(fuzz.definition())) for at in range(25)]
        refs += server.order_these(batch)
        # Not more at once than there is room for: what waits longer is given back, and says nothing.
        server.wait(lambda: not _missing(server, refs))  # noqa: B023
        server.wait(lambda: plain in server.finished)  # noqa: B023
        assert server.outcome(plain) is Outcome.SUCCEEDED
    assert agent.supervisor() == supervisor
    assert len(server.registered) == 1


def _missing(server: ScriptedServer, refs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of which the agent has said neither how they ended nor that it gives them back."""
    return [ref for ref in refs if ref not in server.finished and ref not in server.returned]


HOSTILE: dict[str, dict[str, Any]] = {
    "an empty interpreter": {"executable": "/bin/true", "interpreter": " "},
    "an interpreter of nothing in a stage": {"stages": (Stage("one", executable="/bin/true", interpreter="\t"),)},
    "a stage that runs nothing": {"stages": (Stage("one"),)},
    "a program without a name": {"command": ("",)},
    "nothing at all": {},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_definition_that_says_nothing_to_run_ends_its_task_with_a_reason(
    node: tuple[ScriptedServer, AgentProcess], what: str
) -> None:
    server, agent = node
    supervisor = agent.supervisor()
    ref = server.run(server.define(**HOSTILE[what]))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert server.error(ref)["message"]
    assert agent.supervisor() == supervisor


def test_functions_whose_secret_was_removed_do_not_keep_the_supervisor_busy(node: tuple[ScriptedServer, AgentProcess]) -> None:
    server, agent = node
    supervisor = agent.supervisor()
    number = server.define(function="time:sleep", content=Content(secrets={"KEY": "gone"}))
    refs = server.order_many(number, [b"0.2"] * 20)
    server.wait(lambda: not _missing(server, refs))
    assert agent.supervisor() == supervisor


def test_a_control_that_makes_no_sense_is_refused(node: tuple[ScriptedServer, AgentProcess]) -> None:
    server, agent = node
    supervisor = agent.supervisor()
    ref = server.order(server.define(command=("sleep", "600")))
    server.wait(lambda: any((started.id, started.attempt) == ref for started in server.started))
    assert server.control(ref, "yield", "soon").startswith("refused")
    server.control(ref, "signal", "NOTHING")
    server.cancel(ref)
    server.wait(lambda: ref in server.finished)
    assert agent.supervisor() == supervisor
