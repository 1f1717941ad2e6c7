"""How the process of a supervisor begins: what it must know comes by the link, and then it runs."""

from __future__ import annotations

import gc
import os
import socket
import sys

from headway.agent import tree
from headway.agent.kept_code import CODE_FD
from headway.agent.link import LINK_FD, Channel, Setup
from headway.agent.niceness import be_prompt
from headway.agent.supervisor import Supervisor, decode

SWITCH_S = 0.001  # how long a thread that starts a program may be kept from it by another of ours
GARBAGE = 10_000, 20, 50  # a task makes and drops a hundred objects: the default looks at them all after every few


def main() -> None:
    """Started by the exchange side with the link as descriptor 3 and its code as 4; the first frame is the Setup."""
    sys.setswitchinterval(SWITCH_S)
    be_prompt()  # this thread: those that start tasks set their own back
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    for fd in (LINK_FD, CODE_FD):
        os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=LINK_FD))
    channel.sock.setblocking(True)
    frames: list[bytes] | None = []
    while frames == []:
        frames = channel.receive()
    channel.sock.setblocking(False)
    if frames is None:
        return  # whoever started this is gone already
    setup = decode(frames[0])
    if not isinstance(setup, Setup):
        raise TypeError(f"expected Setup, got {type(setup).__name__}")
    supervisor = Supervisor(setup, channel, os.getppid())
    supervisor.say_boot()
    supervisor.hear(frames[1:])
    gc.freeze()  # what is here now stays; the rest lives for milliseconds
    gc.set_threshold(*GARBAGE)
    supervisor.run()
