"""The variables of an isolated task, on their way past bubblewrap (H11)."""

from __future__ import annotations

import os

import pytest

from headway.agent.interpreters import NotStartable
from headway.agent.variables import for_bubblewrap


def test_each_variable_is_three_words() -> None:
    descriptor = for_bubblewrap({"A": "--bind", "B": ""})
    try:
        assert os.read(descriptor, 1000) == b"--clearenv\0--setenv\0A\0--bind\0--setenv\0B\0\0"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("env", [{"A": "x\0--bind\0/\0/host"}, {"A\0x\0--share-net\0--setenv\0B": ""}])
def test_no_variable_adds_words_of_its_own(env: dict[str, str]) -> None:
    """Servers refuse such a value; an agent does not count on it, because it would be a way out of the sandbox."""
    with pytest.raises(NotStartable, match="NUL"):
        for_bubblewrap(env)
