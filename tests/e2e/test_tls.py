"""TLS for servers, agents and clients: an authority of the test's own signs the server's certificate (A7)."""

from __future__ import annotations

import datetime
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway import Client
from headway.agent.relay import Refused, Relay
from headway.wire.http import Http
from tests.support.agents import running_agent
from tests.support.cluster import AGENT_TOKEN, TOKEN, Process, Server
from tests.support.confined import need_sandbox
from tests.support.upped import COMMAND, clean_environment, upped
from tests.support.waiting import until


@dataclass(frozen=True)
class Certificates:
    """An authority, and what it signed."""

    ca: str
    cert: str
    key: str

    def server(self) -> dict[str, str]:
        return {"HEADWAY_TLS_CERT": self.cert, "HEADWAY_TLS_KEY": self.key}


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> Certificates:
    folder.mkdir(parents=True)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    authority = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    openssl(
        folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority", *authority
    )
    openssl(folder, "req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl(folder, "x509", "-req", "-in", "server.csr", "-out", "server.pem", *sign)
    return Certificates(*(str(folder / name) for name in ("ca.pem", "server.pem", "server.key")))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates")


@pytest.fixture
async def server(dsn: str, tmp_path: Path, certificates: Certificates) -> AsyncIterator[Server]:
    running = Server("server", tmp_path, dsn, certificates.server())
    try:
        await running.start()
        yield running
    finally:
        running.kill()


def headway(server: Server, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = clean_environment(HEADWAY_URL=server.url, HEADWAY_TOKEN=TOKEN, **environment)
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, env=settings)


def test_agent_client_and_command_line_that_know_the_authority_run_tasks(server, certificates, tmp_path):
    assert server.url.startswith("https://127.0.0.1:")
    with (
        running_agent(tmp_path / "agent", server.url, token=AGENT_TOKEN, tls_ca=certificates.ca),
        Client(server.url, TOKEN, tls_ca=certificates.ca) as client,
    ):
        task = client.submit({"command": ["sh", "-c", "echo 42 > $HEADWAY_RESULT; echo over tls"]})
        assert task.result(timeout=120) == 42
        logs = headway(server, "logs", str(task.id), HEADWAY_TLS_CA=certificates.ca)
        assert (logs.returncode, logs.stdout) == (0, "over tls\n")


async def test_who_does_not_know_the_authority_refuses_the_server_at_once_and_says_why(server, certificates, tmp_path):
    stranger = make_certificates(tmp_path / "stranger")
    for ca in (None, stranger.ca):
        http = Http(server.url, token=TOKEN, tls_ca=ca)
        with pytest.raises(ConnectionError, match="certificate"):
            await http.request("GET", "/livez")
        await http.close()
    with Client(server.url, TOKEN, tls_ca=stranger.ca) as client, pytest.raises(ConnectionError, match="certificate"):
        client.submit({"command": ["true"]})
    listed = headway(server, "ls")
    assert listed.returncode == 69
    assert "certificate" in listed.stderr
    assert "hint: HEADWAY_TLS_CA names the authority" in listed.stderr
    plain = Http(server.url.replace("https:", "http:"), token=TOKEN)
    with pytest.raises(ConnectionError):
        await plain.request("GET", "/livez")
    await plain.close()
    trusting = Http(server.url.replace("127.0.0.1", "localhost"), token=TOKEN, tls_ca=certificates.ca)
    assert (await trusting.request("GET", "/v1/whoami")).status == 200
    await trusting.close()


def test_who_speaks_no_tls_with_a_server_that_does_is_told_how_its_address_begins(server):
    said = headway(server, "ls", "--url", server.url.replace("https://", "http://"))
    assert said.returncode == 69
    assert "does it speak TLS? Its address begins with https://" in said.stderr


async def test_an_agent_that_does_not_know_the_authority_gives_its_token_to_nobody(server, certificates, tmp_path):
    agent = Process("agent", tmp_path)
    arguments = ["agent", "--name", "stranger", "--cpus", "1", "--memory", "1GiB", "--disk", "1GiB"]
    agent.launch(arguments, {"HEADWAY_URL": server.url, "HEADWAY_TOKEN": AGENT_TOKEN, "HEADWAY_DATA": str(tmp_path / "stranger")})
    try:
        until(lambda: "certificate" in agent.log.read_text())
    finally:
        assert agent.popen is not None
        agent.popen.terminate()
        agent.popen.wait(120)
        agent.kill()
    http = Http(server.url, token=TOKEN, tls_ca=certificates.ca)
    assert (await http.request("GET", "/v1/nodes")).body == b"[]"
    await http.close()


async def test_a_certificate_for_another_name_is_refused(dsn, tmp_path):
    certificates = make_certificates(tmp_path / "certificates", names="DNS:elsewhere.example")
    server = Server("server", tmp_path, dsn, certificates.server())
    try:
        await server.start()
        http = Http(server.url, token=TOKEN, tls_ca=certificates.ca)
        with pytest.raises(ConnectionError, match="certificate"):
            await http.request("GET", "/livez")
        await http.close()
    finally:
        server.kill()


async def test_a_certificate_whose_time_is_over_or_that_names_others_is_told_with_what_to_do(dsn, tmp_path):
    old = make_certificates(tmp_path / "old")
    expire(tmp_path / "old")
    other = make_certificates(tmp_path / "other", names="DNS:elsewhere.example")
    for certificates, reason, todo in (
        (old, "certificate has expired", "make a new one for the server and restart that"),
        (other, "IP address mismatch", "its certificate names other addresses than this one"),
    ):
        server = Server(Path(certificates.cert).parent.name, tmp_path, dsn, certificates.server())
        try:
            await server.start()
            said = headway(server, "ls", HEADWAY_TLS_CA=certificates.ca)
            assert said.returncode == 69
            assert reason in said.stderr
            assert todo in said.stderr
        finally:
            server.kill()
    assert "has ended" in (tmp_path / "old.log").read_text()


def expire(folder: Path) -> None:
    """The server's certificate again, as of two years ago."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    now = datetime.datetime.now(datetime.UTC)
    was = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    made = x509.CertificateBuilder(was.issuer, was.subject, was.public_key(), 7, extensions=list(was.extensions))
    made = made.not_valid_before(now - datetime.timedelta(700)).not_valid_after(now - datetime.timedelta(300))
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    (folder / "server.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def test_a_certificate_that_cannot_be_used_is_named_before_anything_is_begun(certificates, tmp_path):
    env = clean_environment(HEADWAY_DATA=str(tmp_path))
    for cert, key in ((str(tmp_path / "nowhere.pem"), certificates.key), (certificates.ca, certificates.key)):
        words = ["server", "--database", "postgresql://127.0.0.1:1/none", "--tls-cert", cert, "--tls-key", key]
        said = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, env=env)
        assert said.returncode != 0
        assert f"the certificate {cert} with the key" in said.stderr
        assert said.stdout == ""


def test_up_serves_its_own_agent_and_commands_over_tls(tmp_path, certificates):
    with upped(tmp_path / "data", **certificates.server(), HEADWAY_TLS_CA=certificates.ca) as up:
        assert up.url.startswith("https://")
        settings = clean_environment(HEADWAY_TLS_CA=certificates.ca)
        command = [*COMMAND, "run", "--data-dir", str(up.folder), "--", "sh", "-c", "exit 7"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=settings)
        assert done.returncode == 7, done.stderr


@pytest.mark.parametrize("network", [[], ["all"]], ids=["without a network", "with the node's network"])
def test_sandboxed_tasks_submit_subtasks_and_claim_effects_over_tls(tmp_path, certificates, network):
    need_sandbox(tmp_path / "probe")
    text = """
set -e
headway submit -- sh -c 'echo 21 > $HEADWAY_RESULT' > /dev/null
headway wait
headway once paid -- sh -c 'echo paid >> /task/effects'
headway once paid -- sh -c 'echo paid >> /task/effects'
wc -l < /task/effects > $HEADWAY_RESULT
"""
    settings = {"HEADWAY_TLS_CA": certificates.ca, "HEADWAY_PATHS": str(Path(__file__).parents[2]), **certificates.server()}
    confined = {"isolation": "sandbox", "network": network, "resources": {"cpus": 0.2, "memory": "256MiB"}}
    with upped(tmp_path / "data", **settings) as up, Client(up.url, up.token, tls_ca=certificates.ca) as client:
        task = client.submit({"command": text, **confined})
        done = task.wait(120)
        assert done.state == "succeeded", "".join(line.text for line in task.logs())
        assert bytes(done.result) == b"1"
        function = client.submit({"function": "tests.e2e.subtask_functions:depth", "input": [1], **confined})
        assert function.result(120) == 1


async def test_the_way_out_of_a_sandbox_believes_only_the_agents_authority(server, certificates, tmp_path):
    stranger = make_certificates(tmp_path / "stranger")
    with pytest.raises(Refused, match="certificate verify failed"):
        await Relay([server.url], ssl.create_default_context(cafile=stranger.ca))._connect()
    _, writer, _ = await Relay([server.url], ssl.create_default_context(cafile=certificates.ca))._connect()
    writer.close()
