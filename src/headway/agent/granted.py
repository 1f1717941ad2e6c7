"""What a task gets beyond its own words: prepared places, volumes, secrets, a container (H1 H2 H5 H11).

The one object that starting a program or a runner asks about these things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headway.agent.containers import Containers
from headway.agent.interpreters import NotStartable, command_of, in_volume
from headway.agent.loggers import Loggers, Tee
from headway.agent.output import Capture
from headway.agent.prepare import Answer
from headway.agent.spools import Spools
from headway.domain.content import on_volume
from headway.domain.task import Definition
from headway.wire.exchange import Order

_PLAIN = Answer()  # of a definition that needed no preparation


class SecretGone(NotStartable):
    """A definition names a secret that the server did not give."""

    def __init__(self, definition: int, name: str) -> None:
        super().__init__(f"the secret {name!r} is not to be had: it was removed, or the server cannot open it")
        self.definition = definition


class Granted:
    def __init__(
        self, ready: Mapping[int, Answer], volumes: Mapping[str, str], containers: Containers, loggers: Loggers, spools: Spools
    ) -> None:
        self._ready, self._volumes, self.containers, self._loggers, self.spools = ready, volumes, containers, loggers, spools
        self._secrets: dict[int, dict[str, str]] = {}  # by definition; in memory only

    def tell_secrets(self, secrets: Mapping[int, dict[str, str]]) -> None:
        """The values that came with orders: the newest count."""
        self._secrets.update(secrets)

    def capture(self, order: Order, definition: Definition, limit: int) -> Capture:
        """For the output of an attempt: without its secrets, and to its logger too."""
        tee = self._loggers.tee(order, definition) if definition.content.logger else None
        return Capture(
            order.id,
            order.attempt,
            limit,
            self._secrets.get(order.definition, {}).values(),
            tee,
            self.spools.open(order.id, order.attempt),
        )

    def tee(self, order: Order, definition: Definition) -> Tee | None:
        return self._loggers.tee(order, definition)

    def contained(self, definition: int) -> bool:
        """Whether its tasks are containers."""
        return self._ready.get(definition, _PLAIN).image

    def changing(self, definition: int) -> bool:
        """Whether its command line may be another next time."""
        return definition in self._ready

    def environment(self, number: int, definition: Definition) -> dict[str, str]:
        """Variables on top of its own; NotStartable when a secret or a volume is gone."""
        content = definition.content
        env = dict(self._ready.get(number, _PLAIN).env)
        for name in content.volumes:
            if name not in self._volumes:
                raise NotStartable(f"this node has no volume {name!r}")
            env[f"HEADWAY_VOLUME_{name.upper().replace('-', '_').replace('.', '_')}"] = self._volumes[name]
        return env | self.secret_variables(number, definition) if content.secrets else env

    def command(self, order: Order, definition: Definition, env: dict[str, str], work_dir: str, scratch: str) -> list[str]:
        """The argument vector that runs it."""
        if definition.content.image:
            return self.containers.command(
                order, definition, env, scratch, [self._volumes[name] for name in definition.content.volumes]
            )
        ready = self._ready.get(order.definition, _PLAIN)
        return command_of(definition, env, work_dir, executable=ready.executable, program_of=ready.program, volumes=self._volumes)

    def shown(self, number: int, definition: Definition) -> list[str]:
        """Folders and files of the node that an isolated task must see: what was prepared for it, and its volumes."""
        ready = self._ready.get(number, _PLAIN)
        made = [ready.program or ready.executable, ready.env.get("HEADWAY_PREPARED", "")]
        named = [in_volume(definition.executable, self._volumes)] if on_volume(definition.executable) and not ready.program else []
        return [path for path in (*made, *named, *(self._volumes.get(name, "") for name in definition.content.volumes)) if path]

    def secret_variables(self, number: int, definition: Definition) -> dict[str, str]:
        """Its variables with their values; SecretGone when there is none for one of them."""
        values = self._secrets.get(number, {})
        for variable, name in definition.content.secrets.items():
            if variable not in values:
                raise SecretGone(number, name)
        return values

    def secrets(self, number: int) -> Iterable[str]:
        """The values that its output must not show."""
        return self._secrets.get(number, {}).values()
