"""Which warm runners a node has: ours for Node, Java and Perl, and those an operator added (H4)."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from headway.domain.languages import BY_NAME, LANGUAGES


def runners_folder() -> Path:
    """Where our runners are: inside the installed package, or beside its sources."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "runners"
    return installed if installed.is_dir() else package.parent.parent / "runners"


def runner_command(kind: str, added: Mapping[str, str]) -> list[str] | None:
    """The command line of a runner, by its kind ("node", or "node+..." with packages of its own); None for Python's own."""
    name = kind.partition("+")[0]
    if name in added:
        return shlex.split(added[name])
    language = BY_NAME.get(name)
    if language is None or not language.runner:
        return None
    return [word.format(runners=runners_folder()) for word in language.runner]


def runner_labels(added: Mapping[str, str]) -> dict[str, str]:
    """A label for each language whose functions this node can call in a warm process."""
    names = [language.name for language in LANGUAGES if language.runner and shutil.which(language.program)]
    there = [name for name, words in added.items() if words.strip() and shutil.which(shlex.split(words)[0])]
    return {f"runner/{name}": "yes" for name in (*names, *there)}
