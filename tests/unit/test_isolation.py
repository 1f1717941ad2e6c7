"""Levels of isolation and grants of network: what a tenant may ask for (H11)."""

from __future__ import annotations

import pytest

from headway.domain.define import define
from headway.domain.isolation import check_network, confine, covers, place
from headway.domain.spec import TaskSpec
from headway.domain.task import Definition
from headway.errors import InvalidInput


def plain(**fields: object) -> Definition:
    return define(TaskSpec(command=["true"], **fields))  # type: ignore[arg-type]


def test_a_task_that_says_nothing_gets_the_least_level_of_its_tenant() -> None:
    confined = confine(plain(), 7, least="sandbox", allowed=())
    assert confined.isolation == "sandbox"
    assert confined.tenant == 7
    assert ("sandbox", "") in confined.resources.labels


def test_a_trusted_task_is_the_same_for_everybody() -> None:
    assert confine(plain(isolation="none"), 7) == confine(plain(), 8) == plain()


def test_less_than_the_subscription_asks_for_is_refused() -> None:
    with pytest.raises(InvalidInput, match="less than your subscription") as refused:
        confine(plain(isolation="none"), 7, least="sandbox", allowed=())
    assert refused.value.field == "isolation"


def test_a_misspelt_level_is_recognised() -> None:
    with pytest.raises(InvalidInput) as refused:
        plain(isolation="sandbx")
    assert refused.value.hint == "did you mean 'sandbox'?"


def test_only_granted_places_may_be_asked_for() -> None:
    asked = plain(isolation="sandbox", network=["db.internal:5432"])
    assert confine(asked, 7, least="sandbox", allowed=["*.internal:5432"]).network == ("db.internal:5432",)
    with pytest.raises(InvalidInput, match="is not granted to you"):
        confine(asked, 7, least="sandbox", allowed=["db.internal:80"])
    with pytest.raises(InvalidInput, match="all is not granted"):
        confine(plain(network="all"), 7, least="sandbox", allowed=["*.internal:*"])


def test_single_places_need_isolation() -> None:
    with pytest.raises(InvalidInput, match="only to an isolated task"):
        confine(plain(network=["example.org:443"]), 1)


@pytest.mark.parametrize("word", ["example.org", "example.org:0", "example.org:70000", ":80", "a b:80", "[::1:80", "http://a:80", "x:٣"])
def test_what_is_no_place_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput):
        check_network([word])


def test_places_and_patterns() -> None:
    assert place("[::1]:80") == ("::1", 80)
    assert covers(["10.0.0.0/8:*"], "10.1.2.3:22")
    assert not covers(["10.0.0.0/8:*"], "11.1.2.3:22")
    assert not covers(["10.0.0.0/8:*"], "ten.example:22")
    assert covers(["*"], "anything:1")
    assert not covers([], "anything:1")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", "127.0.0.0/8"),
        ("169.254.169.254", "169.254.0.0/16"),
        ("0.0.0.0", "0.0.0.0/32"),
        ("[::1]", "::1/128"),
        ("[fe80::1]", "fe80::/10"),
        ("[::ffff:127.0.0.1]", "127.0.0.0/8"),
        ("[::ffff:169.254.169.254]", "169.254.169.254/32"),
    ],
)
def test_a_pattern_for_the_world_grants_neither_the_node_itself_nor_its_metadata(host: str, network: str) -> None:
    for pattern in ("*:*", "*:80", "0.0.0.0/0:80", "::/0:80", "*.169.254:80", "1*:80", "127.0.0.?:80"):
        assert not covers([pattern], f"{host}:80")
    for pattern in ("*", "all", f"{host}:80", f"{host}:*", f"{network}:80"):
        assert covers([pattern], f"{host}:80")
    assert covers(["*:80", "0.0.0.0/0:*"], "10.1.2.3:80")


def test_a_file_to_log_to_is_its_tenants_at_every_level() -> None:
    logging = define(TaskSpec(command=["true"], logger="file:report"))
    assert [confine(logging, tenant).tenant for tenant in (3, 4)] == [3, 4]
    assert confine(define(TaskSpec(command=["true"], logger="syslog")), 3).tenant == 0
