"""Secrets are hidden in output and errors, however they come, and whatever they are (H11)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.agent.masking import LONGEST, Mask, Words
from headway.agent.output import Capture

SECRETS = ["hunter22", "abcabcabd", "aaaa", "ab\nlonger-line", "hunter22-of-the-admin", "x" * 100 + "-end", "\u00fcber"]


def shown(secrets: list[str], pieces: list[bytes]) -> bytes:
    mask = Mask(secrets)
    found = b"".join(mask.hide(1, piece) for piece in pieces) + mask.rest(1)
    return re.sub(rb"(\*\*\*)+", b"***", found)


@given(st.lists(st.binary(max_size=20), max_size=12), st.sampled_from(SECRETS))
def test_a_secret_is_hidden_however_the_output_is_cut(pieces: list[bytes], secret: str) -> None:
    at = len(pieces) // 2
    halves = [secret.encode()[:3], secret.encode()[3:]]
    fed = [*pieces[:at], *halves, *pieces[at:]]
    found = shown([secret], fed)
    assert secret.encode() not in found
    if secret.encode() not in b"".join(pieces):
        assert len(found) <= len(b"".join(fed)) + 40


@given(st.lists(st.sampled_from([*SECRETS, "hunt", "er22", "-of-", "abc", "abd", "a", "\n", "xx"]), max_size=12), st.data())
def test_what_is_shown_does_not_depend_on_how_it_was_read(words: list[str], data: st.DataObject) -> None:
    """One secret may be the beginning of another, and be read before the rest of it."""
    text = "".join(words).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(SECRETS, pieces) == shown(SECRETS, [text])


def test_a_longer_secret_is_hidden_whole_where_a_shorter_one_is_its_beginning() -> None:
    assert shown(["hunter22", "hunter22-of-the-admin"], [b"it is hunter22", b"-of-the-admin\n"]) == b"it is ***\n"
    assert shown(["hunter22", "hunter22-of-the-admin"], [b"it is hunter22", b"-of-nobody\n"]) == b"it is ***-of-nobody\n"


def test_a_long_secret_is_one_mark_and_a_part_of_it_is_hidden_too() -> None:
    secret = "".join(chr(ord("a") + number % 26) + str(number) for number in range(400))
    assert Words([secret]).in_text(f"<{secret}>") == "<***>"
    assert Words([secret]).in_text(f"<{secret[: len(secret) // 2]}>").startswith("<***")


def test_every_line_of_a_secret_is_hidden_by_itself() -> None:
    assert Words(["-----BEGIN-----\r\nline-one\r\nline-two\n"]).in_text("line-two, line-one") == "***, ***"


def test_output_without_the_secret_is_shown_as_it_is() -> None:
    capture = Capture(1, 1, 1000, ["hunter22"])
    pieces, _ = capture.feed(1, b"hunt the hunter2", 0)
    pieces += capture.close(0)
    assert b"".join(piece.data for piece in pieces) == b"hunt the hunter2"


def test_a_secret_too_short_hides_nothing() -> None:
    assert not Mask(["abc"])
    assert Words(["abc"]).in_text("abc") == "abc"


@pytest.mark.parametrize("secret", ["a" * 65_536, "\n".join(f"aaaa{number}" for number in range(7000))])
def test_little_is_held_back_whatever_the_secret(secret: str) -> None:
    mask = Mask([secret])
    given_, seen = 0, 0
    for _ in range(20):
        given_ += 1000
        seen += len(mask.hide(1, b"b" * 999 + b"a"))
        assert given_ - seen < LONGEST
