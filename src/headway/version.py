"""The version, in one place that costs nothing to import; a test compares it with pyproject.toml."""

VERSION = "0.1.0"
