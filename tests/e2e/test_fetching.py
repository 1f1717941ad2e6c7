"""Scripts by URL: what goes wrong on the way is told, with where and what to do (H1)."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent.fetching import CannotFetch, fetch_url
from headway.domain.content import Content
from tests.support.agents import running_agent
from tests.support.scripted_server import ScriptedServer

HOSTS = ["127.0.0.1"]


class Site(http.server.BaseHTTPRequestHandler):
    """Answers by the name that is asked for."""

    over = threading.Event()

    def do_GET(self) -> None:
        moved = {
            "/to-localhost": f"http://localhost:{self.server.server_address[1]}/x.sh",
            "/to-metadata": "http://169.254.169.254/latest",
            "/to-file": "file:///etc/passwd",
            "/to-no-port": "http://127.0.0.1:700000/x.sh",
            "/to-missing": "/missing",
            "/around": "/around",
        }
        if to := moved.get(self.path):
            self.send_response(302)
            self.send_header("location", to)
            self.end_headers()
        elif self.path in ("/short.sh", "/large.sh", "/drip.sh"):
            self.send_response(200)
            self.send_header("content-length", "1000" if self.path != "/large.sh" else str(2**40))
            self.end_headers()
            self.wfile.write(b"echo half")
            while self.path == "/drip.sh" and not self.over.wait(0.05):
                self.wfile.write(b"#")
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        Site.over.set()
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/to-localhost", "may not fetch from 'localhost' (redirected from {site}/to-localhost); the operator allows: 127.0.0.1"),
        ("/to-metadata", "may not fetch from '169.254.169.254' (redirected from {site}/to-metadata)"),
        ("/to-file", "'file:///etc/passwd' is not a URL we fetch (redirected from {site}/to-file)"),
        ("/to-no-port", "'http://127.0.0.1:700000/x.sh' is not a URL we fetch (redirected from {site}/to-no-port): Port out of range"),
        ("/to-missing", "{site}/missing (redirected from {site}/to-missing) answered 404 Not Found"),
        ("/around", "{site}/around redirects more than 5 times"),
        ("/short.sh", "{site}/short.sh broke off after 9 of 1000 bytes"),
        ("/large.sh", "{site}/large.sh is larger than 1MiB, the most that this node keeps (setting prepared_size)"),
    ],
)
def test_what_goes_wrong_is_told(site: str, tmp_path: Path, path: str, said: str) -> None:
    with pytest.raises(CannotFetch) as caught:
        fetch_url(site + path, tmp_path / "got", hosts=HOSTS, limit=2**20)
    assert said.format(site=site) in str(caught.value)


def test_a_pattern_does_not_lead_to_the_node_itself(site: str, tmp_path: Path) -> None:
    with pytest.raises(CannotFetch, match="the operator must name it in fetch_hosts without a pattern"):
        fetch_url(f"{site}/x.sh", tmp_path / "got", hosts=["*"], limit=2**20)


def test_a_site_that_sends_a_byte_now_and_then_holds_up_nobody(site: str, tmp_path: Path) -> None:
    with ScriptedServer() as server, running_agent(tmp_path / "agent", server.url, fetch_hosts=HOSTS, prepare_s=2):
        content = Content(checksum=f"sha256:{'0' * 64}")
        ref = server.run(server.define(executable=f"{site}/drip.sh", content=content))
        assert server.error(ref)["message"] == "drip.sh could not be fetched within 2 s (setting prepare_s)"
