"""Text to YAML events, by one of two readers that agree on what they both take.

libyaml (inside PyYAML) reads a task in 7 µs, ruamel.yaml in 250: libyaml is asked first. What it refuses, ruamel reads again: it knows a
few things more (pairs of escapes in JSON) and says better what is wrong. Both differ on tabs and on the rare line breaks of Unicode, so a
text that holds one is ruamel's, unless it is so large that nobody would wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from ruamel.yaml import YAML

LARGE = 2**20  # characters; ruamel takes about ten seconds for so many
DEEP = 300  # brackets inside brackets; ruamel takes 0.3 s for a thousand that stay open, and 4 s for two thousand
_DISPUTED = re.compile("[\t\x85\u2028\u2029]")
_QUICK = getattr(yaml, "CSafeLoader", None)  # missing where PyYAML was built without libyaml


def quick(text: str) -> Iterator[Any] | None:
    """The events as libyaml sees them, or None when ruamel should read this text."""
    is_short = len(text) <= LARGE and text.count("[") + text.count("{") <= DEEP
    if _QUICK is None or (is_short and _DISPUTED.search(text)):
        return None
    events: Iterator[Any] = yaml.parse(text, Loader=_QUICK)
    return events


def thorough(text: str) -> Iterator[Any]:
    events: Iterator[Any] = YAML(typ="safe", pure=True).parse(text)
    return events


def is_final(error: yaml.MarkedYAMLError, text: str, brackets: int) -> bool:
    """Whether libyaml's refusal stands: ruamel would take too long over a text so large, or with so many brackets open."""
    return (len(text) > LARGE or brackets > DEEP) and "escape" not in (error.problem or "")
