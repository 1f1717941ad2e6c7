"""`Tree`: tasks that wait for each other, put together by plain calls (C1 C3).

    photos = Tree("photos")
    sizes = photos.add(resize, "a.png", name="resize", for_each=[64, 256, 1024])
    check = photos.add(command=["./check.sh"], name="check")
    photos.add(publish, after=[sizes, check])
    photos.add(command=["./complain.sh"], after=[check.failed])

    run = photos.submit()
    run.wait()                       # levels empty one after another
    run.result("publish")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headway.client import face
from headway.client.core import AsyncClient
from headway.client.decorator import Task, checked
from headway.client.face import Client, Handle
from headway.domain.spec import TaskSpec
from headway.domain.tree import EAGER, check_levels
from headway.domain.wrong_kind import decode_error
from headway.errors import InvalidInput
from headway.wire.views.trees import TreeView

STREAMED = 20_000  # trees of more tasks go as a stream


class Edge:
    """A dependency of another kind than success: `node.done`, `node.failed`."""

    def __init__(self, task: str, when: str) -> None:
        self.task, self.when = task, when


class Node:
    """A task of a tree that is being put together."""

    def __init__(self, name: str, spec: dict[str, Any]) -> None:
        self.name = name
        self.spec = spec

    def __repr__(self) -> str:
        return f"<task {self.name} of a tree>"

    @property
    def done(self) -> Edge:
        """Wait for it however it ends."""
        return Edge(self.name, "done")

    @property
    def failed(self) -> Edge:
        """Run only when it has failed."""
        return Edge(self.name, "failed")


class Tree:
    """Tasks by name. `defaults` are fields of every task that does not say them itself."""

    def __init__(self, name: str, *, levels: str = EAGER, **defaults: Any) -> None:
        check_levels(levels)
        self.name = name
        self.levels = levels
        self._defaults = dict(checked(defaults))
        self._nodes: dict[str, Node] = {}
        self._numbers: dict[str, int] = {}  # the last one given to a task that is called like others

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def add(
        self,
        what: Callable[..., Any] | None = None,
        /,
        *args: Any,
        name: str | None = None,
        after: Iterable[Node | Edge | str | int] | Node | Edge | str | int = (),
        for_each: Iterable[Any] | Node | None = None,
        **more: Any,
    ) -> Node:
        """A call of a function, `add(f, 1, 2, k=3)`, or any task by its fields, `add(command=[...])`. Returns it, for `after`.

        With `for_each` there is one for each item of a list, or of the result of another task.
        """
        spec = self._call(what, args, more, alone=for_each is None) if what is not None else self._fields(args, more)
        spec = {**self._defaults, **spec}
        spec["name"] = self._free(name or spec.get("name") or _called(spec), given=name is not None)
        edges = [self._edge(one) for one in ([after] if isinstance(after, Node | Edge | str | int) else after)]
        if edges:
            spec["after"] = edges
        if for_each is not None:
            spec["for_each"] = {"result_of": self._edge(for_each)} if isinstance(for_each, Node) else list(for_each)
        _check(spec)
        node = self._nodes[spec["name"]] = Node(spec["name"], spec)
        return node

    def submit(self, client: Client | None = None, *, key: str | None = None) -> TreeHandle:
        """Store all of it. It is durable when this returns. The same key again gives the first tree back."""
        client = client or face.active()
        return TreeHandle(client, client.thread.run(self.submit_to(client.aio, key=key)))

    async def submit_to(self, client: AsyncClient, *, key: str | None = None) -> str:
        """Store all of it with an AsyncClient; the id of the tree."""
        specs = [node.spec for node in self]
        if key is None and len(specs) > STREAMED and not any("for_each" in spec or "idempotency_key" in spec for spec in specs):
            accepted = await client.stream_tree(self.name, specs, levels=self.levels)
        else:
            accepted = await client.submit_tree(self.name, specs, levels=self.levels, key=key)
        if accepted.tree is None:
            raise AssertionError("the server answers a tree with its id")
        return accepted.tree

    def _call(self, what: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
        task: Task[Any, Any, Any] = what if isinstance(what, Task) else Task(what, {})
        if not alone:  # each item is the input
            if args or kwargs:
                raise InvalidInput("arguments and for_each exclude each other", field="for_each", hint="put them into the items")
            return task.spec("json")
        codec, (encoded,) = task.encode([(args, kwargs)])
        return task.spec(codec, input=encoded)

    def _fields(self, args: tuple[Any, ...], fields: dict[str, Any]) -> dict[str, Any]:
        if args:
            raise TypeError("arguments go with a function: add(f, 1, 2); a task is given by its fields: add(command=[...])")
        return fields

    def _edge(self, one: Node | Edge | str | int) -> str | int | dict[str, str]:
        if isinstance(one, Node):
            if self._nodes.get(one.name) is not one:
                raise InvalidInput(f"after: {one!r} is not of the tree {self.name!r}", field="after", hint="add it to this tree")
            return one.name
        return {"task": one.task, "when": one.when} if isinstance(one, Edge) else one

    def _free(self, name: str, *, given: bool) -> str:
        if name not in self._nodes:
            return name
        if given:
            raise InvalidInput(f"two tasks of the tree are called {name!r}", field="name", hint="rename one of them")
        number = self._numbers.get(name, 1) + 1
        while f"{name}-{number}" in self._nodes:
            number += 1
        self._numbers[name] = number
        return f"{name}-{number}"


class TreeHandle:
    """A submitted tree."""

    def __init__(self, client: Client, tree_id: str) -> None:
        self.id = tree_id
        self._client = client

    def __repr__(self) -> str:
        return f"<tree {self.id}>"

    def view(self) -> TreeView:
        """The tree now: its state, its levels, its tasks."""
        return self._client.tree(self.id)

    def watch(self) -> Iterator[TreeView]:
        """The tree after each change, until all of it has ended."""
        return self._client.watch_tree(self.id)

    def wait(self, timeout: float | None = None) -> TreeView:
        """Until all of it has ended; says how. TimeoutError when it has not within `timeout` seconds."""
        return self._client.wait_tree(self.id, timeout)

    def handle(self, name: str) -> Handle[Any]:
        """One of its tasks."""
        page = self._client.page(tree=self.id, name=name, limit=1)
        if not page.tasks:
            raise InvalidInput(f"there is no task {name!r} in tree {self.id}", field="name")
        return self._client.handle(page.tasks[0].id)

    def result(self, name: str, timeout: float | None = None) -> Any:
        """The result of one of its tasks, waited for."""
        return self.handle(name).result(timeout)

    def cancel(self) -> TreeView:
        """End all of it."""
        return self._client.cancel_tree(self.id)

    def retry(self) -> TreeView:
        """Run what failed again, and what was skipped behind it."""
        return self._client.retry_tree(self.id)


def _called(spec: Mapping[str, Any]) -> str:
    """What a task without a name is called: after what it runs."""
    what = spec.get("function") or spec.get("command") or spec.get("executable") or spec.get("image") or "task"
    first = what if isinstance(what, str) else str(what[0])
    return first.split()[0].rpartition(":")[2].rpartition("/")[2] or "task"


def _check(spec: Mapping[str, Any]) -> None:
    """What the server would say, said here; which tiers there are, only it knows."""
    plain = {key: value for key, value in spec.items() if key != "input"}
    try:
        msgspec.convert(plain, TaskSpec)
    except msgspec.ValidationError as error:
        raise decode_error(error, given=plain) from None


