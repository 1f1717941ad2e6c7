"""The shape of a tree: tasks and groups, each with the blocks of things that run before it.

A mapping under a task that is no keyword is a subtask. `subtasks:` and `parallel:` list what may run in tandem,
`sequence:` what runs one after another. A mapping with such a list and nothing to run of its own is a group: it orders
others and is no task. The walk keeps its own stack, so a tree may be nested as deeply as its author likes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.domain.schedule import ScheduleSpec
from headway.domain.spec import KEYWORDS, NOT_YET, TaskSpec
from headway.domain.task import Edge
from headway.domain.tree import EAGER, STRICT
from headway.errors import UnknownField
from headway.treefile import schedules
from headway.treefile.document import Entry, Listing, Mapping, Mark, Node, Scalar, missing_space
from headway.treefile.fields import DEFAULTABLE, FIELDS, RUNS, read_after, read_spec, with_defaults
from headway.treefile.values import Reader, describe, did_you_mean, is_nothing

LISTS = ("subtasks", "sequence", "parallel")
OF_TREE = frozenset({*LISTS, *schedules.KEYS, "defaults", "parameters", "levels", "logger", "name"})  # may stand beside the root
MOST_TASKS = 200_000
_HOLDS_MAPPING = ("retry", "resources", "env", "labels", "input", "subtasks", "defaults", "parameters")


@dataclass
class Ref:
    """An item of a list that names a task standing elsewhere in the tree."""

    name: str
    mark: Mark


@dataclass
class Block:
    """Things that run before their parent: in order, or in tandem."""

    ordered: bool
    items: list[Element | Ref] = field(default_factory=list)


@dataclass
class Element:
    """A task, or a group (spec is None)."""

    name: str | None
    key: str | None
    mark: Mark
    spec: TaskSpec | None = None
    each: Mark | None = None  # where its `for_each` stands
    after: list[tuple[Edge, Mark]] = field(default_factory=list)
    schedule: tuple[ScheduleSpec, Mark] | None = None  # a subtask's own
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Shape:
    """A tree before its tasks are joined."""

    top: Element
    elements: list[Element] = field(default_factory=list)
    schedule: ScheduleSpec | None = None
    scheduled_at: Mark | None = None
    strict: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Job:
    element: Element
    node: Mapping
    defaults: dict[str, Entry]
    depth: int  # 0: the tree itself, 1: a root task
    is_tree: bool = False


def is_tree(node: Mapping) -> bool:
    """Whether a mapping holds tasks without being one: none of its keywords says anything about running."""
    return not any(key in KEYWORDS and key not in OF_TREE for key in node.entries)


def read_shape(reader: Reader, name: str | None, key: Scalar | None, node: Mapping, defaults: dict[str, Entry]) -> Shape:
    """Everything a tree's mapping says, without edges between names yet."""
    return _Walk(reader, name, key.mark if key else node.mark).run(node, defaults)


def check_defaults(reader: Reader, node: Node) -> dict[str, Entry]:
    """The entries of a `defaults:`."""
    mapping = reader.mapping(node, "defaults")
    for name, entry in mapping.entries.items():
        if name in NOT_YET and name not in OF_TREE:
            _not_yet(reader, entry.key)
        if name not in DEFAULTABLE:
            known = (
                f"{name!r} cannot be a default"
                if name in KEYWORDS
                else f"unknown keyword {name!r} in defaults{did_you_mean(name, DEFAULTABLE)}"
            )
            reader.fail(entry.key.mark, known, kind=UnknownField, hint="an anchor and `<<: *anchor` can share anything")
    return mapping.entries


class _Walk:
    def __init__(self, reader: Reader, name: str | None, mark: Mark) -> None:
        self.reader = reader
        self.shape = Shape(Element(name, None, mark))
        self.stack: list[_Job] = []
        self.found = 0  # of the tasks below the top

    def run(self, node: Mapping, defaults: dict[str, Entry]) -> Shape:
        self.stack.append(_Job(self.shape.top, node, defaults, depth=0 if is_tree(node) else 1, is_tree=is_tree(node)))
        while self.stack:
            job = self.stack.pop()
            begun = len(self.stack)
            self.read(job)
            self.stack[begun:] = reversed(self.stack[begun:])  # the first child is read first: the order of the file
        return self.shape

    def read(self, job: _Job) -> None:
        """One mapping: its fields, its lists, its subtasks."""
        if job.depth > 0 or not job.is_tree:
            self.shape.elements.append(job.element)
        runs = any(run in job.node.entries for run in RUNS)
        is_group = job.is_tree or (not runs and ("sequence" in job.node.entries or "parallel" in job.node.entries))
        if not runs and not is_group:
            self.nothing_to_run(job.element, job.node)
        defaults = job.defaults
        if "defaults" in job.node.entries:
            defaults = with_defaults(check_defaults(self.reader, job.node.entries["defaults"].value), defaults)
        if is_group and "logger" in job.node.entries:  # of the tree: every task that says none itself has it
            defaults = {"logger": job.node.entries["logger"], **defaults}
        fields: dict[str, Entry] = {}
        when: dict[str, Entry] = {}
        nested = Block(ordered=False)
        for name, entry in job.node.entries.items():
            if name in FIELDS:
                fields[name] = entry
            elif name in schedules.KEYS:
                when[name] = entry
            elif name in KEYWORDS:
                self.keyword(job, name, entry, defaults)
            else:
                self.subtask(nested, entry, defaults, job.depth + 1)
        if nested.items:
            job.element.blocks.insert(0, nested)
        self.schedule(job, when)
        if "name" in fields:
            job.element.name = self.reader.text(fields["name"].value, "name")
        if "for_each" in fields:
            job.element.each = fields["for_each"].value.mark
        if is_group:
            self.group(job, fields)
        else:
            job.element.spec = read_spec(self.reader, with_defaults(fields, defaults), job.element.mark)

    def group(self, job: _Job, fields: dict[str, Entry]) -> None:
        for name, entry in fields.items():
            if name not in ("name", "logger"):
                self.reader.fail(
                    entry.key.mark,
                    f"{name} belongs to a task, and this is a list of tasks",
                    hint="put it under `defaults:`",
                )
        if not any(block.items for block in job.element.blocks):
            what = f"the tree {job.element.name!r}" if job.is_tree and job.element.name else "this list"
            self.reader.fail(job.element.mark, f"{what} has no task", hint="give it a command, executable, function or image")

    def keyword(self, job: _Job, name: str, entry: Entry, defaults: dict[str, Entry]) -> None:
        """The words that say something about the tree around a task."""
        if name in LISTS:
            job.element.blocks.append(self.block(name, entry, defaults, job.depth + 1))
        elif name == "after":
            job.element.after = read_after(self.reader, entry.value)
        elif name == "levels":
            self.levels(job, entry)
        elif name == "parameters":
            if job.element is not self.shape.top:
                self.reader.fail(entry.key.mark, "parameters belong to the file or the tree, not to one task")
        elif name != "defaults":
            if isinstance(entry.value, Mapping) and any(run in entry.value.entries for run in RUNS):
                self.reader.fail(entry.key.mark, f"{name!r} is a keyword and cannot name a subtask", hint="choose another name")
            _not_yet(self.reader, entry.key)

    def levels(self, job: _Job, entry: Entry) -> None:
        word = self.reader.text(entry.value, "levels")
        if job.depth > 1:
            self.reader.fail(entry.key.mark, "levels belongs to the tree or its root task")
        if word not in (EAGER, STRICT):
            self.reader.fail(
                entry.value.mark, f"levels: {word!r} is unknown{did_you_mean(word, (EAGER, STRICT))}", hint=f"{EAGER} or {STRICT}"
            )
        self.shape.strict = word == STRICT

    def schedule(self, job: _Job, when: dict[str, Entry]) -> None:
        if not when:
            return
        mark = next(iter(when.values())).key.mark
        spec = schedules.read_schedule(self.reader, when)
        if job.depth > 1:
            if not schedules.is_once(spec):
                job.element.schedule = spec, mark
            return
        if self.shape.scheduled_at:
            self.reader.fail(
                mark,
                f"the tree has a schedule already, in line {self.shape.scheduled_at.line}",
                hint="remove one of them",
            )
        self.shape.schedule, self.shape.scheduled_at = spec, mark

    def subtask(self, into: Block, entry: Entry, defaults: dict[str, Entry], depth: int) -> None:
        """A key that is no keyword: a subtask if its value is a mapping, a slip if not."""
        name, value = entry.key.text, entry.value
        if isinstance(value, Mapping):
            self.push(into, name, entry.key.mark, value, defaults, depth)
            return
        if isinstance(value, Scalar) and (fix := missing_space(value)):
            self.reader.fail(value.mark, fix)
        if near := did_you_mean(name, KEYWORDS, cutoff=0.7):
            self.reader.fail(entry.key.mark, f"unknown keyword {name!r}{near}", kind=UnknownField, field=name)
        if is_nothing(value):
            self.reader.fail(
                entry.key.mark, f"{name!r} has nothing to run", hint="give it a command, executable, function or image"
            )
        if isinstance(value, Scalar):
            hint = f"as a subtask it would be `{name}: {{executable: {value.text[:60]}}}`"
            self.reader.fail(entry.key.mark, f"unknown keyword {name!r}", kind=UnknownField, hint=hint, field=name)
        self.reader.fail(entry.key.mark, f"unknown keyword {name!r}, and a subtask is a mapping", kind=UnknownField, field=name)

    def push(self, into: Block, name: str | None, mark: Mark, node: Mapping, defaults: dict[str, Entry], depth: int) -> None:
        element = Element(name, name, mark)
        self.found += 1
        if self.found > MOST_TASKS:
            hint = "submit so many as a stream: `Tree` in Python, or POST /v1/trees/stream"
            self.reader.fail(mark, f"more than {MOST_TASKS:,} tasks in one tree", hint=hint)
        into.items.append(element)
        self.stack.append(_Job(element, node, defaults, depth))

    def block(self, word: str, entry: Entry, defaults: dict[str, Entry], depth: int) -> Block:
        """`subtasks: {a: ..., b: ...}`, or a list of tasks inline or by name."""
        block = Block(ordered=word == "sequence")
        if word == "subtasks" and isinstance(entry.value, Mapping):
            for child in entry.value.entries.values():
                if child.key.text in KEYWORDS:
                    self.reader.fail(
                        child.key.mark,
                        f"{child.key.text!r} is a keyword and cannot name a subtask",
                        hint="subtasks: {NAME: {...}}",
                    )
                self.subtask(block, child, defaults, depth)
            return block
        for item in self.reader.listing(entry.value, word).items:
            self.item(block, word, item, defaults, depth)
        return block

    def item(self, block: Block, word: str, item: Node, defaults: dict[str, Entry], depth: int) -> None:
        if isinstance(item, Mapping):
            if any(key in KEYWORDS for key in item.entries):
                self.push(block, None, item.mark, item, defaults, depth)
            elif len(item.entries) == 1:
                self.subtask(block, next(iter(item.entries.values())), defaults, depth)
            else:
                self.reader.fail(
                    item.mark, f"{word}: an item is one task, here are {len(item.entries)}", hint="begin each with '- '"
                )
        elif isinstance(item, Listing) or is_nothing(item):
            self.reader.fail(item.mark, f"{word}: expected a task or the name of one, here is {describe(item)}")
        elif "/" in (text := self.reader.text(item, word)):
            path = Scalar("executable", True, item.mark)
            self.push(block, None, item.mark, Mapping(item.mark, {"executable": Entry(path, item)}), defaults, depth)
        else:
            block.items.append(Ref(text, item.mark))

    def nothing_to_run(self, element: Element, node: Mapping) -> None:
        """The error for a subtask without work: most often a keyword misspelt, outside or inside."""
        for name, entry in node.entries.items():
            if name in ("image", "commands"):
                _not_yet(self.reader, entry.key)
            if name not in KEYWORDS and (near := did_you_mean(name, RUNS)):
                self.reader.fail(entry.key.mark, f"unknown keyword {name!r}{near}", kind=UnknownField, field=name)
        near = did_you_mean(element.key or "", _HOLDS_MAPPING)
        if near:
            self.reader.fail(
                element.mark,
                f"{element.key!r} is no keyword{near} As a subtask it has nothing to run",
                kind=UnknownField,
            )
        name = repr(element.name) if element.name else "this task"
        self.reader.fail(
            element.mark, f"{name} has nothing to run", hint="give exactly one of command, executable, function, image"
        )


def _not_yet(reader: Reader, key: Scalar) -> None:
    reader.fail(key.mark, f"this version of Headway does not support `{key.text}` yet", kind=UnknownField, field=key.text)
