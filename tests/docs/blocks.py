"""The code blocks and links of the documentation, as data for tests.

A block behind `<!-- runs -->` is run against a real Headway; every other one is parsed. One behind `<!-- file: NAME -->` is
the file of that name for the commands of its page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"(?:<!-- (runs|file: (\S+)) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    runs: bool
    file: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str, runs: bool | None = None) -> list[Block]:
    """The blocks of these languages, page by page."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(3)) + 1
            found.append(Block(str(page.relative_to(ROOT)), line, match[3], match[4], match[1] == "runs", match[2]))
    return [block for block in found if block.language in languages and runs in (None, block.runs)]


def links(page: Path) -> list[str]:
    """Where a page points to, inside this repository."""
    targets = _LINK.findall(_CODE.sub("", page.read_text()))
    return [target for target in targets if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    text = _CODE.sub(lambda found: found[0].strip("`") if "\n" not in found[0] else "", page.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
