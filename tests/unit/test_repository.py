"""What is committed works on any machine: no path of this one, no package registry's address, no secret."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIP = {"LICENSE"}
TEXT_LIMIT = 5_000_000

# Written in pieces, so that this file does not find itself.
REGISTRY_WORDS = ("arti" + "factory", "ne" + "xus", "py" + r"pi\.", "dev" + "pi")
REGISTRIES = re.compile(r"//[\w.-]*(?:" + "|".join(REGISTRY_WORDS) + r")[\w.-]*", re.IGNORECASE)
INDEX_OPTIONS = re.compile("(?:--" + "index-url|--extra-" + r"index-url|--trusted-" + r"host)[ =]\S")
HOMES = re.compile(r"(?<![\w./$}-])/(?:ro" + "ot|ho" + r"me/\w+|Us" + r"ers/\w+|wo" + r"rk)/[\w.-]+")
TOKENS = re.compile(r"hw_(?:admin|tenant|agent)_[A-Za-z0-9_-]{24,}")


def committed() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file() and name not in SKIP]


def findings(path: Path, *patterns: re.Pattern[str]) -> list[str]:
    if path.stat().st_size > TEXT_LIMIT:
        return []
    text = path.read_bytes().decode(errors="replace")
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return [
        f"{name}:{number}: {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in patterns
        if (match := pattern.search(line))
    ]


def test_no_committed_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    patterns = [HOMES]
    if len(ROOT.parts) > 3:  # a checkout at /src or /build/x would find words that mean something else
        patterns.append(re.compile(re.escape(str(ROOT)) + r"\b"))
    assert [found for path in committed() for found in findings(path, *patterns)] == []


def test_no_committed_file_names_a_registry_or_holds_a_token() -> None:
    assert [found for path in committed() for found in findings(path, REGISTRIES, INDEX_OPTIONS, TOKENS)] == []


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("--" + "index-url https://example.org/simple", INDEX_OPTIONS),
        ("see https://arti" + "factory.example.org/x", REGISTRIES),
        ("path = '/ho" + "me/someone/project'", HOMES),
        ("cd /wo" + "rk/tree", HOMES),
        ("hw_admin_" + "x" * 30, TOKENS),
    ],
)
def test_the_check_itself_finds_what_it_looks_for(tmp_path: Path, line: str, pattern: re.Pattern[str]) -> None:
    (tmp_path / "file").write_text(f"fine\n{line}\n")
    assert [found.split(":")[1] for found in findings(tmp_path / "file", pattern)] == ["2"]
