"""TCP ports of tasks: nobody else's while they are given (G1)."""

from __future__ import annotations

import os
import socket

import pytest

from headway.agent.ports import Ports

FIRST = 23_000 + os.getpid() % 400 * 20  # others may run the same test now


def test_two_agents_of_a_machine_never_give_the_same_port_though_nobody_listens_on_it_yet() -> None:
    one, other = Ports(FIRST, 20), Ports(FIRST, 20)
    taken = one.take(3)
    more = other.take(3)
    assert not set(taken) & set(more)
    one.give_back(taken)
    third = Ports(FIRST, 20)
    assert third.take(3) == taken, "they are free again"
    other.give_back(more)
    third.give_back(taken)


def test_a_port_somebody_listens_on_is_passed_over_and_too_few_are_told() -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match="1 TCP ports are needed and only 0"):
            Ports(port, 1).take(1)
