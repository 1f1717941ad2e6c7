"""The address of a server, as it is told and as its own machine calls it."""

from __future__ import annotations

import pytest

from headway.api.serve import url_of
from headway.config import Settings
from headway.embedded.up import here
from headway.wire.http import Http


@pytest.mark.parametrize(
    ("host", "told", "called"),
    [
        ("127.0.0.1", "http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        ("db.example", "http://db.example:8470", "http://db.example:8470"),
        ("::1", "http://[::1]:8470", "http://[::1]:8470"),
        ("::", "http://[::]:8470", "http://[::1]:8470"),
        ("0.0.0.0", "http://0.0.0.0:8470", "http://127.0.0.1:8470"),
    ],
)
async def test_an_address_can_be_called(host: str, told: str, called: str) -> None:
    assert url_of(Settings(host=host), 8470) == told
    assert here(told) == called
    assert Http(called).base_url == called
