"""Text to nodes: mappings, lists and scalars that know their line and column.

The nodes are built from the parser's events by a loop of our own, and not by the library's constructor, for four
reasons: a position for every value, duplicate keys refused with both lines, no recursion (a tree may be nested to any
depth), and nothing in a file can name a Python type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import yaml
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from headway.domain.spec import KEYWORDS
from headway.errors import InvalidInput
from headway.treefile import yaml_events

MERGE = "<<"
MAX_TEXT = 64 * 2**20
DEEPEST_BRACKETS = 3_000  # both readers take quadratic time for brackets inside brackets; indentation has no such bound
_STANDARD_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = (_STANDARD_TAG + "str", "!")
_PLAIN_TAGS = tuple(_STANDARD_TAG + word for word in ("int", "float", "bool", "null", "map", "seq"))
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_SPACE = re.compile(rf"^[ \t]*(?:- +)?((?:{'|'.join(sorted(KEYWORDS))}):)([^\s:].*)$")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; both count from 1, as editors do."""

    line: int
    column: int


@dataclass(slots=True)
class Scalar:
    """One word, number or text. `plain`: written without quotes, so that `3` is a number."""

    text: str
    plain: bool
    mark: Mark


@dataclass(slots=True)
class Listing:
    mark: Mark
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    mark: Mark
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(slots=True)
class Entry:
    key: Scalar
    value: Node


Node: TypeAlias = Scalar | Listing | Mapping


def fail(
    source: str,
    mark: Mark,
    text: str,
    *,
    kind: type[InvalidInput] = InvalidInput,
    hint: str | None = None,
    **extra: Any,
) -> NoReturn:
    """Refuse the file: every error of this package starts with where it is."""
    raise kind(
        f"{source}:{mark.line}:{mark.column}: {text}",
        hint=hint,
        line=mark.line,
        column=mark.column,
        source=source,
        **extra,
    )


def parse(text: str, source: str) -> list[Node]:
    """The documents of a file (YAML, or JSON, which is YAML too). An error says where, and what to write instead."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_TEXT:
        fail(source, Mark(1, 1), f"{len(text)} characters are too many for a task file", hint=f"at most {MAX_TEXT}")
    if quick := yaml_events.quick(text):
        composer = _Composer(text, source, quick)
        try:
            return list(composer.documents())
        except yaml.MarkedYAMLError as error:
            if yaml_events.is_final(error, text, composer.brackets):
                _explain(error, text, source)
        except (yaml.YAMLError, UnicodeEncodeError):
            pass  # a character that is not allowed: the other reader says which
    try:
        return list(_Composer(text, source, yaml_events.thorough(text)).documents())
    except MarkedYAMLError as error:
        _explain(error, text, source)
    except ReaderError as error:
        before = text[: error.position]
        mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
        fail(source, mark, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML", hint="remove it")
    except (YAMLError, ValueError, IndexError, AssertionError) as error:
        # The scanner trips over its own feet on some broken input; for the user it is one more way not to be YAML.
        fail(
            source,
            Mark(1, 1),
            f"this is not valid YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
        )


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet."""

    node: Listing | Mapping
    in_brackets: bool
    key: Scalar | None = None
    merges: list[tuple[Mark, Node]] = field(default_factory=list)


class _Composer:
    def __init__(self, text: str, source: str, events: Iterator[Any]) -> None:
        self.lines = text.splitlines()
        self.source = source
        self.events = events
        self.anchors: dict[str, Node] = {}
        self.open: list[_Open] = []
        self.brackets = 0  # of those that are open
        self.root: Node | None = None

    def documents(self) -> Iterator[Node]:
        for event in self.events:
            match type(event).__name__:  # the readers have classes of the same names
                case "ScalarEvent":
                    self.scalar(event)
                case "AliasEvent":
                    self.alias(event)
                case "SequenceStartEvent" | "MappingStartEvent":
                    self.begin(event)
                case "SequenceEndEvent" | "MappingEndEvent":
                    self.end()
                case "DocumentEndEvent":
                    if self.root is not None:
                        yield self.root
                    self.anchors, self.root = {}, None

    def scalar(self, event: Any) -> None:
        mark, text = _mark(event), str(event.value)
        self.check_tag(event, mark)
        if "\x00" in text:
            fail(self.source, mark, "a NUL character is not allowed")
        if _SURROGATE.search(text):
            text = self.joined(text, mark)
        plain = not event.style and event.tag not in _TEXT_TAGS
        if plain and event.end_mark.line > event.start_mark.line:
            self.check_continuation(event)
        node = Scalar(text, plain, mark)
        if event.anchor:
            self.anchors[str(event.anchor)] = node
        self.place(node, mark)

    def joined(self, text: str, mark: Mark) -> str:
        """JSON writes a character beyond the first 65,536 as two escapes."""
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            fail(self.source, mark, "half a surrogate pair is not a character")

    def check_continuation(self, event: Any) -> None:
        """`executable: ./a.sh` over `attempts:3` is one long text to YAML, and never what was meant."""
        for number in range(event.start_mark.line + 1, min(event.end_mark.line + 1, len(self.lines))):
            if found := _NO_SPACE.match(self.lines[number]):
                _missing_space(self.source, number, found)

    def check_tag(self, event: Any, mark: Mark) -> None:
        tag = str(event.tag) if event.tag else None
        if tag and tag not in _TEXT_TAGS and tag not in _PLAIN_TAGS:
            fail(
                self.source,
                mark,
                f"the tag {tag.replace(_STANDARD_TAG, '!!')!r} is not allowed",
                hint="write plain values",
            )

    def alias(self, event: Any) -> None:
        name, mark = str(event.anchor), _mark(event)
        if name not in self.anchors:
            fail(self.source, mark, f"there is no anchor '&{name}' above this line")
        node = self.anchors[name]
        if any(opened.node is node for opened in self.open):
            fail(self.source, mark, f"the anchor '&{name}' contains itself")
        self.place(node, mark)

    def begin(self, event: Any) -> None:
        mark = _mark(event)
        self.check_tag(event, mark)
        if self.open and isinstance(self.open[-1].node, Mapping) and self.open[-1].key is None:
            fail(self.source, mark, "a key must be one word or text, not a list or mapping")
        node: Listing | Mapping = Mapping(mark) if type(event).__name__ == "MappingStartEvent" else Listing(mark)
        if event.anchor:
            self.anchors[str(event.anchor)] = node
        self.open.append(_Open(node, in_brackets=bool(event.flow_style)))
        self.brackets += self.open[-1].in_brackets
        if self.brackets > DEEPEST_BRACKETS:
            hint = "inside a tree write the subtasks on lines of their own, indented"
            fail(self.source, mark, f"brackets are nested too deeply, at most {DEEPEST_BRACKETS} levels", hint=hint)

    def end(self) -> None:
        done = self.open.pop()
        self.brackets -= done.in_brackets
        if isinstance(done.node, Mapping):
            for mark, merged in done.merges:
                self.merge(done.node, mark, merged)
        self.place(done.node, done.node.mark)

    def place(self, node: Node, mark: Mark) -> None:
        """Put a finished node where it belongs: the document, a list, a key or a value."""
        if not self.open:
            self.root = node
            return
        inside = self.open[-1]
        if isinstance(inside.node, Listing):
            inside.node.items.append(node)
        elif inside.key is None:
            if not isinstance(node, Scalar):
                fail(self.source, mark, "a key must be one word or text, not a list or mapping")
            inside.key = Scalar(node.text, node.plain, mark)
        else:
            key, inside.key = inside.key, None
            if key.text == MERGE and key.plain:
                inside.merges.append((key.mark, node))
                return
            if not key.text:
                fail(self.source, key.mark, "a key is missing before the ':'")
            if key.text in inside.node.entries:
                first = inside.node.entries[key.text].key.mark.line
                fail(
                    self.source,
                    key.mark,
                    f"{key.text!r} is given twice, first in line {first}",
                    hint="remove one of them",
                )
            inside.node.entries[key.text] = Entry(key, node)

    def merge(self, into: Mapping, mark: Mark, merged: Node) -> None:
        """`<<: *base`: what the mapping says itself wins, then the earlier of several."""
        for base in merged.items if isinstance(merged, Listing) else [merged]:
            if not isinstance(base, Mapping):
                fail(self.source, mark, "'<<' merges a mapping, or a list of mappings", hint="write '<<: *anchor'")
            for name, entry in base.entries.items():
                into.entries.setdefault(name, entry)


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _explain(error: MarkedYAMLError | yaml.MarkedYAMLError, text: str, source: str) -> NoReturn:
    """What people do most: tabs, and a colon without a space. Everything else in the parser's own words."""
    lines = text.splitlines()
    at = error.problem_mark or error.context_mark
    here = at.line if at else 0
    first = min(error.context_mark.line if error.context_mark else here, here)
    for number in range(max(first - 1, 0), min(here + 1, len(lines))):
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        if "\t" in indent:
            fail(source, Mark(number + 1, indent.index("\t") + 1), "a tab is not allowed here", hint="indent with spaces")
    problem = error.problem or error.context or "it ends too early"
    if at and "'\\t'" in problem:
        fail(source, Mark(at.line + 1, at.column + 1), "a tab is not allowed here", hint="write a space")
    for number in range(max(first - 1, 0), min(here + 1, len(lines))):
        if found := _NO_SPACE.match(lines[number]):
            _missing_space(source, number, found)
    words = f"{problem} {error.context}" if error.context and error.problem else problem
    fail(
        source,
        Mark(here + 1, (at.column if at else 0) + 1),
        f"this is not valid YAML: {words}",
        hint=_advice(problem, lines[here] if here < len(lines) else ""),
    )


def _advice(problem: str, line: str) -> str | None:
    if "${" in line and "expected ','" in problem:
        return "inside brackets put ${...} in quotes"
    if "mapping values are not allowed" in problem:
        return "put a text that holds ': ' in quotes, or check the indentation"
    if "expected <block end>" in problem or "expected key" in problem or "expected '-' indicator" in problem:
        return "check the indentation: keys of one mapping start in the same column"
    if "cannot start any token" in problem:
        return "put the text in quotes"
    if "end of stream" in problem or "stream end" in problem or not line:
        return "something is not closed: a quote or a bracket"
    return None


def _missing_space(source: str, number: int, found: re.Match[str]) -> NoReturn:
    written, rest = found[1], found[2].strip()
    fail(
        source,
        Mark(number + 1, found.start(1) + 1),
        f"{written + rest!r} lacks a space after the colon, write '{written} {rest}'",
    )


def missing_space(node: Scalar) -> str | None:
    """The fix, when a text stands where a mapping should and only a space is missing."""
    found = _NO_SPACE.match(node.text)
    return f"{node.text!r} lacks a space after the colon, write '{found[1]} {found[2]}'" if found and node.plain else None
