"""Which addresses are the node's own or tell its secrets, however they are written (H11 J6)."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.addresses import OF_THE_NODE, Address, Network, of_the_node, reached


def written(address: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    number = int(address)
    return [
        ipaddress.IPv6Address((0xFFFF << 32) | number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number),
        ipaddress.IPv6Address((0x2002 << 112) | (number << 80) | 7),
    ]


@given(st.ip_addresses(v=4))
def test_an_address_of_version_4_is_the_same_in_every_spelling(address: ipaddress.IPv4Address) -> None:
    assert [reached(six) for six in written(address)] == [address] * 3
    assert {of_the_node(six) for six in written(address)} == {of_the_node(address)}


@given(st.ip_addresses())
def test_what_the_library_knows_to_be_near_is_of_the_node(address: Address) -> None:
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        assert of_the_node(address)


@given(st.sampled_from(OF_THE_NODE), st.integers(min_value=0))
def test_each_address_of_a_near_network_is_near(network: Network, at: int) -> None:
    assert of_the_node(network[at % network.num_addresses])


@pytest.mark.parametrize("text", ["127.0.0.0/8", "169.254.169.254/32", "fe80::/64", "fd00:ec2::254/128", "100.100.100.200/32"])
def test_a_network_that_lies_in_them_means_them(text: str) -> None:
    assert of_the_node(ipaddress.ip_network(text))


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "126.0.0.0/7", "10.0.0.0/8", "100.64.0.0/10", "fd00::/8", "8.8.8.8/32"])
def test_a_network_that_only_has_them_in_it_does_not_mean_them(text: str) -> None:
    assert not of_the_node(ipaddress.ip_network(text))
