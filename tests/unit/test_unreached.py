"""What keeps us from a database is told without its URL (J1)."""

from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.store.migrate import status


@pytest.mark.parametrize("password", ["sec/ret", "sec#ret", "sec?ret", "sec[ret"])
async def test_a_password_that_spoils_the_url_is_not_repeated_by_half(password: str) -> None:
    with pytest.raises(ConfigError) as error:
        await status(f"postgresql://user:{password}@localhost/db")
    told = f"{error.value} {error.value.hint}"
    assert "sec" not in told
    assert "ret" not in told
    assert "%2F" in told


async def test_what_the_driver_says_of_words_it_knows_is_told() -> None:
    with pytest.raises(ConfigError, match="got 'mysql'"):
        await status("mysql://localhost/db")
