"""The way out of a sandbox: only to the places that were granted (H11).

A program of its own, with nothing but the standard library, started as the slot's user: `gate.py GRANTS COMMAND...`. Its child makes a
network namespace with nothing but a loopback, listens there for each granted place, hands the listening sockets over and becomes the
sandbox. The parent stays in the node's network and joins each connection to the place that was granted, and to no other. It lives inside
the task's limits, and knows nothing worth stealing.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import signal
import socket
import struct
import sys
import time

CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x1000_0000, 0x4000_0000, 1
SIOCSIFADDR, SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8913, 0x8914, 1
PIECE = 64 * 1024
CONNECT_S = 10.0
SETTLE_S = 10.0  # a busy kernel takes its time before a new address of version 6 can be used
_libc = ctypes.CDLL(None, use_errno=True)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Grant = tuple[str, int, str]  # host, port, the address inside that stands for it


def main() -> int:
    spec = json.loads(sys.argv[1])
    grants: list[Grant] = [tuple(grant) for grant in spec["grants"]]
    parent = os.getppid()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1  # the supervisor died in between
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _go_inside(grants, theirs, sys.argv[2:])
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, len(grants))
    if len(fds) != len(grants):
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status) or 1
    listeners = [socket.socket(fileno=fd) for fd in fds]
    ours.send(b"x")  # only now may the task begin
    never = [ipaddress.ip_network(text) for text in spec["never_by_name"]]
    return asyncio.run(_serve(listeners, grants, never, float(spec["bandwidth"]), child))


# --- inside


def _go_inside(grants: list[Grant], handing: socket.socket, command: list[str]) -> None:
    """Never returns: becomes the sandbox, or says why not."""
    try:
        uid, gid = os.getuid(), os.getgid()
        if _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace can be made")
        for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as map_file:
                map_file.write(text)
        _bring_up(grants)
        listeners = [_listen(address, port) for _, port, address in grants]
        socket.send_fds(handing, [b"x"], [one.fileno() for one in listeners])
        handing.recv(1)
        handing.close()
        for one in listeners:
            one.close()
        env = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        os.execve(command[0], command, env)
    except OSError as error:
        print(f"the granted network could not be made: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _bring_up(grants: list[Grant]) -> None:
    """The loopback, with the addresses that stand for granted ones."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
        others = sorted({address for _, _, address in grants if not address.startswith("127.") and address != "::1"})
        for number, address in enumerate(address for address in others if ":" not in address):
            name = f"lo:{number}".encode()
            fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address)))
        of_version_6 = [address for address in others if ":" in address]
    if of_version_6:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
            index = socket.if_nametoindex("lo")
            for address in of_version_6:
                fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16sIi", socket.inet_pton(socket.AF_INET6, address), 128, index))


def _listen(address: str, port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    until = time.monotonic() + SETTLE_S
    while True:
        try:
            one.bind((address, port))
            break
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or time.monotonic() >= until:
                raise
        time.sleep(0.005)
    one.listen(64)
    return one


# --- outside


async def _serve(listeners: list[socket.socket], grants: list[Grant], never: list[Network], bandwidth: float, child: int) -> int:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, ended.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: None)  # the sandbox is told, not its gate
    pace = _Pace(bandwidth)
    for listener, (host, port, _) in zip(listeners, grants, strict=True):
        await asyncio.start_server(_join_to(host, port, never, pace), sock=listener)
    while True:
        if (code := _exit_code(child)) is not None:
            return code
        await ended.wait()
        ended.clear()


def _exit_code(child: int) -> int | None:
    """As shells say it; None while it lives."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if not pid:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class _Pace:
    """Bytes a second, over all connections of the task."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at = rate, 0.0

    async def wait(self, size: int) -> None:
        if self._rate > 0:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / self._rate
            await asyncio.sleep(self._free_at - now)


def _join_to(host: str, port: int, never: list[Network], pace: _Pace):  # type: ignore[no-untyped-def]
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await _connect(host, port, never)
        except (OSError, TimeoutError):
            writer.transport.abort()  # refused, as it would be without us
            return
        await asyncio.gather(_pump(reader, there_writer, pace), _pump(there_reader, writer, pace))

    return join


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: _Pace) -> None:
    try:
        while data := await reader.read(PIECE):
            await pace.wait(len(data))
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()


async def _connect(host: str, port: int, never: list[Network]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To the first of its addresses that answers."""
    why: Exception = OSError(f"{host} leads only to addresses that are never granted by name")
    for address in await resolve(host, port, never):
        try:
            return await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
        except (OSError, TimeoutError) as error:
            why = error
    raise why


async def resolve(host: str, port: int, never: list[Network]) -> list[str]:
    """Where a granted place is now. A name may not lead to the node itself or to the metadata service (`never`): only their own
    addresses do."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    return [address for address in addresses if _is_address(host) or not any(ipaddress.ip_address(address) in known for known in never)]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
