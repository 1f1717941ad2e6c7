"""Nodes to values: numbers, texts, parameters put in, everything refused with its place.

`${name}` is a parameter. A name in capitals that is no parameter is left for the shell (`${HOME}`), and `$${name}`
always is.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from headway.errors import InvalidInput
from headway.treefile.document import Listing, Mapping, Mark, Node, Scalar, fail, missing_space

DEEPEST = 100  # of an input; the encoder behind us is recursive
LONGEST_NUMBER = 40  # of digits that an error repeats
MOST_VALUES = 1_000_000  # aliases of aliases grow without end: a file of ten lines can mean a billion values

_PARAMETER = re.compile(r"\$(\$)?\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_OTHER_INT = re.compile(r"0o[0-7]{1,30}|0x[0-9a-fA-F]{1,30}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """ ", did you mean 'x'?" or nothing."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=cutoff)
    return f", did you mean {near[0]!r}?" if near else ""


@dataclass
class Reader:
    """Reads the values of one file with one set of parameters."""

    source: str
    parameters: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    count: int = 0
    in_each: bool = False  # inside a `for_each`, ${item} and ${index} are filled for each item, later

    def fail(
        self, mark: Mark, text: str, *, kind: type[InvalidInput] = InvalidInput, hint: str | None = None, **extra: Any
    ) -> NoReturn:
        fail(self.source, mark, text, kind=kind, hint=hint, **extra)

    def mapping(self, node: Node, what: str) -> Mapping:
        if isinstance(node, Mapping):
            return node
        if isinstance(node, Scalar) and (fix := missing_space(node)):
            self.fail(node.mark, fix)
        return self.fail(node.mark, f"{what}: expected a mapping of names and values, here is {describe(node)}")

    def listing(self, node: Node, what: str) -> Listing:
        if isinstance(node, Listing):
            return node
        return self.fail(node.mark, f"{what}: expected a list, here is {describe(node)}")

    def text(self, node: Node, what: str) -> str:
        """The text as it was written: `1.10` stays `1.10`."""
        if isinstance(node, Scalar) and not is_nothing(node):
            return self.fill(node)
        return self.fail(node.mark, f"{what}: expected a text, here is {describe(node)}")

    def value(self, node: Node, depth: int = 0) -> Any:
        """The JSON value a node stands for."""
        self.count += 1
        if depth > DEEPEST:
            self.fail(node.mark, f"values are nested too deeply, at most {DEEPEST} levels")
        if self.count > MOST_VALUES:
            self.fail(node.mark, f"the file stands for more than {MOST_VALUES} values", hint="aliases inside aliases?")
        if isinstance(node, Mapping):
            return {name: self.value(entry.value, depth + 1) for name, entry in node.entries.items()}
        if isinstance(node, Listing):
            return [self.value(item, depth + 1) for item in node.items]
        return self.scalar(node)

    def scalar(self, node: Scalar) -> Any:
        if not node.plain:
            return self.fill(node)
        whole = _PARAMETER.fullmatch(node.text)
        text = self.fill(node)
        if text != node.text and not whole:
            return text
        found = resolve(text)
        if isinstance(found, float) and not math.isfinite(found):
            self.fail(node.mark, f"{_cut(text)} is not a finite number")
        if isinstance(found, int) and not -(2**63) <= found < 2**64:
            self.fail(node.mark, f"the number {_cut(text)} is too large", hint="put it in quotes to make it a text")
        return found

    def fill(self, node: Scalar) -> str:
        """The text with its parameters put in."""
        if "${" not in node.text:
            return node.text

        def replace(found: re.Match[str]) -> str:
            escaped, name = found[1], found[2]
            if escaped:
                return f"${{{name}}}"
            if self.in_each and name in ("item", "index"):
                return found[0]
            if name in self.parameters:
                self.used.add(name)
                return self.parameters[name]
            if name.isupper() or name == "firing":  # the moment a schedule fires for: known when it does
                return found[0]
            near = did_you_mean(name, self.parameters)
            return self.fail(
                node.mark,
                f"there is no parameter {name!r}{near}",
                hint=f"declare it under `parameters:`, or write $${{{name}}} to leave it to the shell",
            )

        return _PARAMETER.sub(replace, node.text)


def resolve(text: str) -> Any:
    """What an unquoted word means (the core rules of YAML 1.2: `yes` and `2026-01-01` are texts)."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OTHER_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def is_nothing(node: Node) -> bool:
    return isinstance(node, Scalar) and node.plain and resolve(node.text) is None


def describe(node: Node) -> str:
    """A node in an error message: what stands there instead."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Listing):
        return "a list"
    if is_nothing(node):
        return "nothing"
    short = node.text if len(node.text) <= 40 else node.text[:37] + "..."
    if node.plain and isinstance(resolve(node.text), bool | int | float):
        return short
    return f"the text {short!r}"


def _cut(number: str) -> str:
    return number if len(number) <= LONGEST_NUMBER else f"{number[:LONGEST_NUMBER]}… ({len(number)} characters)"


def parameters_in(node: Node) -> set[str]:
    """The parameters that a text is made of."""
    return {name for escaped, name in _PARAMETER.findall(node.text) if not escaped} if isinstance(node, Scalar) else set()
