"""The definitions an agent knows: how each is run here, which must be prepared first, and which nobody can run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from headway.agent.local_queue import Estimate, Recipe
from headway.agent.unforeseen import unforeseen
from headway.domain import isolation
from headway.domain.content import needs_preparation, runner_kind
from headway.domain.languages import PYTHON
from headway.domain.task import Definition

MOST = 10_000


class Recipes(dict[int, Recipe]):
    def __init__(self, held: Callable[[], Collection[int]]) -> None:
        super().__init__()
        self._held = held  # definitions of everything that waits or runs here
        self._estimates: dict[tuple[str, str], Estimate] = {}  # by kind of runner: others may mean something else by the same name
        self.to_prepare: set[int] = set()
        self.unusable: dict[int, str] = {}  # and why: whoever has such a definition cannot be started, and is told

    def learn(self, definitions: Mapping[int, Definition]) -> None:
        for number, definition in definitions.items():
            if number not in self:
                self._learn(number, definition)

    def _learn(self, number: int, definition: Definition) -> None:
        if len(self) + len(self.unusable) >= MOST:
            self._forget()
        self.unusable.pop(number, None)
        try:
            kind = isolation.runner_kind(runner_kind(definition), definition)
            if definition.content.secrets and kind.partition("+")[0] != PYTHON.name:
                kind = kind and f"{kind}#{number}"  # started with secrets: for nobody else, whatever their names
            what = definition.function
            estimate = self._estimates.setdefault((kind, what), Estimate()) if what else Estimate()
            recipe = Recipe(definition, definition.resources.amounts(), definition.cap_ms / 1000, kind, estimate)
            prepared_first = needs_preparation(definition)
        except Exception as error:
            self.unusable[number] = unforeseen(error, "reading its definition", definition=number)
            return
        self[number] = recipe
        if prepared_first:
            self.to_prepare.add(number)

    def _forget(self) -> None:
        held = set(self._held())
        for number in [number for number in self if number not in held]:
            del self[number]
        self.unusable.clear()
        self._estimates = {(recipe.kind, recipe.definition.function): recipe.estimate for recipe in self.values() if recipe.kind}
        self.to_prepare &= self.keys()
