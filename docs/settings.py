"""Writes docs/settings.md from the settings' declaration: `python docs/settings.py`."""

from __future__ import annotations

from pathlib import Path

from headway.config import Settings, expectation, options, variable_of
from headway.domain import units

PAGE = Path(__file__).with_suffix(".md")
TITLES = {"": "Top of the file", "database": "[database]", "server": "[server]", "agent": "[agent]"}
COMPUTED = {"data_dir": "`~/.local/share/headway` (`XDG_DATA_HOME`)", "node_name": "the host's name"}
INTRODUCTION = """\
# Settings

Generated from `src/headway/config.py`: change it there, then run `python docs/settings.py`.

A flag wins over an environment variable, that over the settings file, that over the default. The file is TOML: the one
named by `--config` or `HEADWAY_CONFIG`, else `./headway.toml`, else `~/.config/headway/headway.toml`
(`XDG_CONFIG_HOME`). Every command checks all settings when it starts; an error names the flag, the variable, or the
file and line. Not every command has a flag for every setting: `--help` lists those it has.
"""


def document() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(f"\n## {title}\n\n{table(section)}" for section, title in TITLES.items())


def table(section: str) -> str:
    lines = ["| in the file | variable | default | accepts | what it is |", "|---|---|---|---|---|"]
    for name, (_, option) in options().items():
        if option.section == section:
            cells = (f"`{option.key or name}`", f"`{variable_of(name)}`", default(name), expectation(name), option.help)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def default(name: str) -> str:
    value = getattr(Settings(), name)
    if name in COMPUTED:
        return COMPUTED[name]
    if value is None or value in ({}, []):
        return "none"
    if options()[name][1].unit == "size":
        value = units.size_text(value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(document())
