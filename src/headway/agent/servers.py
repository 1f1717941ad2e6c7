"""The servers an agent may talk to: one is used until it fails, then the next."""

from __future__ import annotations

import asyncio

from headway.wire.http import Http

BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class Servers:
    """The servers of this cluster; one is used until it fails, then the next."""

    def __init__(self, urls: list[str], token: str | None, tls_ca: str | None) -> None:
        self._token, self._tls_ca = token, tls_ca
        self.urls = frozenset(urls)
        self._https = [self._connection(url) for url in urls]
        self._at = 0
        self._closing: set[asyncio.Task[None]] = set()
        self.failures = 0

    def _connection(self, url: str) -> Http:
        return Http(url, token=self._token, tls_ca=self._tls_ca, connect_timeout=1.0)

    @property
    def http(self) -> Http:
        return self._https[self._at]

    def failed(self, http: Http) -> None:
        """Move on, unless somebody else already has."""
        if http is not self.http:
            return
        self.failures += 1
        if len(self._https) > 1:  # calls still waiting at the old one would wait for nothing
            self._https[self._at] = self._connection(http.base_url)
            closing = asyncio.get_running_loop().create_task(http.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._at = (self._at + 1) % len(self._https)

    def backoff(self) -> float:
        """Short at first: another server may be there; never long: the lease is 3 s."""
        return BACKOFF_S[min(self.failures // len(self._https), len(BACKOFF_S) - 1)]

    async def close(self) -> None:
        for http in self._https:
            await http.close()
