"""`up`, `server`, `agent`: the processes of Headway, each until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, group

app = group("Start Headway's processes.")

Database = Annotated[
    str | None,
    typer.Option("--database", help="PostgreSQL to use (HEADWAY_DATABASE); embedded without.", metavar="URL"),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.", min=0, max=65535)]
TlsCert = Annotated[str | None, typer.Option("--tls-cert", help="Certificate (PEM): serve HTTPS.", metavar="FILE")]
TlsKey = Annotated[str | None, typer.Option("--tls-key", help="Its private key (PEM).", metavar="FILE")]
TlsCa = Annotated[str | None, typer.Option("--tls-ca", help="Authority that signed the servers (PEM).", metavar="FILE")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="text or json.")]
NodeName = Annotated[str | None, typer.Option("--name", help="Name of this node; the host's name when not given.")]
Cpus = Annotated[float | None, typer.Option("--cpus", help="CPUs to offer; all when not given.", min=0.0)]
Memory = Annotated[str | None, typer.Option("--memory", help='Memory to offer, for example "8GiB".', metavar="SIZE")]
Disk = Annotated[str | None, typer.Option("--disk", help='Disk to offer, for example "50GiB".', metavar="SIZE")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="A label of this node; repeat for more.", metavar="K=V")]
Paths = Annotated[list[str] | None, typer.Option("--path", help="Folder to import functions from; repeat for more.", metavar="DIR")]
WorkDir = Annotated[str | None, typer.Option("--work-dir", help="Folder for the tasks' working files.", metavar="DIR")]


@command(
    app,
    "up",
    examples=["headway up", "headway up --data-dir ./hw --port 0", "headway up --path ./src --label gpu=a100"],
)
def up(
    terminal: Terminal,
    database: Database = None,
    host: Host = None,
    port: Port = None,
    node_name: NodeName = None,
    cpus: Cpus = None,
    memory: Memory = None,
    disk: Disk = None,
    label: Labels = None,
    path: Paths = None,
    work_dir: WorkDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Start everything on this machine: database, server, agent."""
    from headway.embedded.up import up as start

    node = _node_flags(node_name, cpus, memory, disk, label, path, work_dir)
    settings = terminal.settings(database=database, host=host, port=port, log_level=log_level, log_format=log_format, **node)
    tell = None if terminal.for_people else lambda url: announce(terminal, "up", url)  # people are told more than that
    return start(settings, ready=tell)


@command(
    app,
    "server",
    examples=[
        "headway server --database postgresql://headway@db/app",
        "headway server --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem",
    ],
)
def server(
    terminal: Terminal,
    database: Database = None,
    host: Host = None,
    port: Port = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Start a server (API and duties) on a database."""
    import uvloop

    from headway.api.serve import serve

    settings = terminal.settings(
        database=database,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        log_level=log_level,
        log_format=log_format,
    )
    uvloop.run(serve(settings, ready=lambda url: announce(terminal, "server", url)))


@command(
    app,
    "agent",
    examples=[
        "headway agent --url https://headway.example:8470 --tls-ca ca.pem",
        "headway agent --name big-1 --cpus 8 --memory 32GiB",
    ],
)
def agent(
    terminal: Terminal,
    node_name: NodeName = None,
    cpus: Cpus = None,
    memory: Memory = None,
    disk: Disk = None,
    label: Labels = None,
    path: Paths = None,
    work_dir: WorkDir = None,
    tls_ca: TlsCa = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Start an agent, which runs tasks on this machine."""
    from headway.agent.main import run

    node = _node_flags(node_name, cpus, memory, disk, label, path, work_dir)
    return run(terminal.settings(tls_ca=tls_ca, log_level=log_level, log_format=log_format, **node))


def announce(terminal: Terminal, what: str, url: str) -> None:
    """Tell where it listens, in one line that a script can read too."""
    if terminal.wants_json:
        import json

        print(json.dumps({"url": url}), flush=True)
    elif terminal.quiet:
        print(url, flush=True)
    else:
        print(f"headway {what} listens on {url} (Ctrl-C ends it)", flush=True)
    sys.stdout.flush()


def _node_flags(
    name: str | None,
    cpus: float | None,
    memory: str | None,
    disk: str | None,
    label: list[str] | None,
    path: list[str] | None,
    work_dir: str | None,
) -> dict[str, Any]:
    from headway.cli.options import pairs

    return {
        "node_name": name,
        "cpus": cpus,
        "memory": memory,
        "disk": disk,
        "labels": pairs(label, "--label") or None,
        "paths": path or None,
        "work_dir": work_dir,
    }
