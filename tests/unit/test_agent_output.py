"""What an agent ships of what a task prints: pieces that can be read one by one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headway.agent.output import PIECE, STDERR, STDOUT, Capture, whole_characters

TEXT = st.text(st.sampled_from("aé€𝄞\n"), max_size=200)
CUTS = st.lists(st.integers(0, 600), max_size=10)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(one, len(data)) for one in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(TEXT, TEXT, CUTS)
def test_no_character_is_cut_in_two_however_the_output_is_read(out: str, err: str, cuts: list[int]) -> None:
    capture, shipped = Capture(1, 1, 10_000), []
    for first, second in zip(cut(out.encode(), cuts), cut(err.encode(), cuts), strict=True):
        shipped += capture.feed(STDOUT, first, 0)[0] + capture.feed(STDERR, second, 0)[0]
    shipped += capture.close(0)
    assert "".join(one.data.decode() for one in shipped if one.stream == STDOUT) == out
    assert "".join(one.data.decode() for one in shipped if one.stream == STDERR) == err


@given(TEXT, CUTS, st.integers(1, 400))
def test_where_half_of_the_limit_is_reached_no_character_is_cut_either(text: str, cuts: list[int], limit: int) -> None:
    capture, shipped = Capture(1, 1, limit), []
    for piece in cut(text.encode(), cuts):
        shipped += capture.feed(STDOUT, piece, 0)[0]
    first = "".join(one.data.decode() for one in shipped)
    assert text.startswith(first)
    rest = capture.close(0)
    if not any(one.stream == STDERR for one in rest):  # nothing was cut away
        assert first + "".join(one.data.decode() for one in rest) == text


@given(st.binary(max_size=400).map(lambda data: bytes(byte & 0x7F for byte in data)), CUTS, st.integers(1, 300))
def test_of_a_flood_its_beginning_and_its_newest_end_survive_and_what_is_cut_is_counted(data: bytes, cuts: list[int], limit: int) -> None:
    capture, shipped, half = Capture(1, 1, limit), [], max(limit // 2, 1)
    for piece in cut(data, cuts):
        shipped += capture.feed(STDOUT, piece, 0)[0]
    rest = capture.close(0)
    head, tail = b"".join(one.data for one in shipped), b"".join(one.data for one in rest if one.stream == STDOUT)
    assert (head, tail) == (data[:half], data[half:][-half:])
    lost = len(data) - len(head) - len(tail)
    told = "".join(one.data.decode() for one in rest if one.stream == STDERR)
    assert told == (f"\n[headway: {lost} bytes of output were cut here]\n" if lost else "")


@given(st.binary(max_size=200), CUTS)
def test_what_is_no_text_is_shipped_byte_by_byte_as_it_is(data: bytes, cuts: list[int]) -> None:
    capture, shipped = Capture(1, 1, 10_000), []
    for piece in cut(data, cuts):
        shipped += capture.feed(STDOUT, piece, 0)[0]
    assert b"".join(one.data for one in shipped + capture.close(0)) == data


def test_a_flood_is_shipped_in_pieces_of_whole_characters() -> None:
    text = "a" + "й" * PIECE
    shipped, _ = Capture(1, 1, 10 * PIECE).feed(STDOUT, text.encode(), 0)
    assert [one.data.decode() for one in shipped] == [text[: PIECE // 2], text[PIECE // 2 : PIECE], text[PIECE:]]


def test_a_character_that_has_not_come_whole_is_waited_for() -> None:
    assert whole_characters("né".encode()) == 3
    assert [whole_characters("𝄞".encode()[:n]) for n in range(1, 5)] == [0, 0, 0, 4]
    assert whole_characters(b"\xff") == 0
    assert whole_characters(b"\x80\x80\x80\x80") == 4  # no character of UTF-8 is as long
