"""Where webhooks may go, how they are signed, when they are tried again (J6)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InvalidInput
from headway.policy.webhook import DELAYS_S, LONGEST_WAIT_S, check_secret, networks, new_secret, next_try, refused, signature

PRIVATE = [
    "127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "0.0.0.0",
    "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "168.63.129.16", "::1", "::", "fe80::1", "fe80::1%eth0",
    "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::a00:1",
    "2002:7f00:1::", "2002:a9fe:a9fe::", "2001:db8::1", "64:ff9b:1:7f00:0:100:808:808", "fec0::1", "::7f00:1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refused(address, ()) is not None


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:8.8.8.8"])
def test_a_public_address_is_fine(address: str) -> None:
    assert refused(address, ()) is None


@given(st.ip_addresses())
def test_only_what_is_global_is_reached_unless_it_is_allowed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if refused(str(address), ()) is None:
        assert address.is_global or getattr(address, "sixtofour", None) or getattr(address, "ipv4_mapped", None)
    wrapped = isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped or address.sixtofour or address.teredo or address in ipaddress.ip_network("64:ff9b::/32")
    )
    if not wrapped:
        assert refused(str(address), (ipaddress.ip_network(str(address)),)) is None


def test_the_operator_allows_networks() -> None:
    allowed = networks("127.0.0.0/8, 10.0.0.0/8 ::1/128")
    assert refused("127.0.0.1", allowed) is None
    assert refused("::ffff:10.0.0.1", allowed) is None
    assert refused("192.168.0.1", allowed) is not None
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.1/8"):
        networks("10.0.0.1/8")


def test_a_message_is_signed_as_standard_webhooks_says_and_by_both_secrets_of_a_change() -> None:
    old, new = (new_secret(bytes([n]) * 32) for n in (1, 2))
    header = signature("msg", 1700000000, b'{"a":1}', [new, old])
    wanted = [
        base64.b64encode(hmac.new(bytes([n]) * 32, b'msg.1700000000.{"a":1}', hashlib.sha256).digest()).decode() for n in (2, 1)
    ]
    assert header == " ".join(f"v1,{value}" for value in wanted)


def test_a_secret_of_ones_own_must_be_long_enough() -> None:
    assert check_secret(new_secret(b"x" * 32))
    for bad in ("", "whsec_", "whsec_!!!!", new_secret(b"short"), "x" * 40):
        with pytest.raises(InvalidInput):
            check_secret(bad)


@given(st.integers(0, 40), st.sampled_from([None, 200, 404, 429, 500]), st.floats(0, 1e9) | st.none(), st.floats(0, 1))
def test_tries_end_and_waits_are_bounded(attempts: int, status: int | None, wait: float | None, luck: float) -> None:
    delay = next_try(attempts, status, wait_s=wait, luck=luck)
    assert (delay is None) == (attempts > len(DELAYS_S))
    assert delay is None or 0 < delay <= max(LONGEST_WAIT_S, DELAYS_S[-1] * 1.2)


def test_who_is_gone_gets_no_second_message() -> None:
    assert next_try(1, 410, wait_s=None, luck=0.5) is None
