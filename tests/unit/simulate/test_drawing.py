"""Plots are pictures that any program reads: SVG, and PNG by its letter."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pytest

from headway.cli.main import main
from headway.simulate.drawing import Box, Drawing, Line, Words

WHITE, RED, BLUE = (255, 255, 255), (255, 0, 0), (0, 0, 255)
PICTURE = Drawing(60, 40, [Box(5, 5, 20, 10, "#ff0000"), Line([(30, 35), (50, 35)], "#0000ff"), Words(58, 30, "LI", "#ff0000", ends=True)])


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0]
        yield kind, body
        at += 12 + size


def pixels(png: bytes) -> list[list[tuple[int, ...]]]:
    """Read back as the standard says; only what the writer uses: three bytes a pixel, no filter."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    found = list(chunks(png))
    assert [kind for kind, _ in found] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *kind = struct.unpack(">IIBBBBB", found[0][1])
    assert kind == [8, 2, 0, 0, 0]
    body = zlib.decompress(found[1][1])
    assert len(body) == height * (1 + 3 * width)
    lines = [body[row * (1 + 3 * width) :][: 1 + 3 * width] for row in range(height)]
    assert all(line[0] == 0 for line in lines)
    return [[tuple(line[1 + 3 * x : 4 + 3 * x]) for x in range(width)] for line in lines]


def test_a_png_has_boxes_lines_and_letters_where_they_were_drawn():
    shown = pixels(PICTURE.png())
    assert (len(shown[0]), len(shown)) == (60, 40)
    assert [shown[y][x] for x, y in ((5, 5), (25, 15), (15, 10), (40, 35), (40, 33))] == [RED, RED, WHITE, BLUE, WHITE]
    letter = [[shown[20 + 2 * row][42 + 2 * column] == RED for column in range(3)] for row in range(5)]
    assert letter == [[True, False, False]] * 4 + [[True, True, True]], "an L"


def test_what_lies_outside_of_the_picture_is_left_out():
    drawn = Drawing(10, 10, [Line([(-20, 5), (30, 5)], "#0000ff"), Words(-4, -4, "X"), Box(8, 8, 9, 9, "#ff0000")])
    assert [row[0] for row in pixels(drawn.png())] == [WHITE] * 5 + [BLUE] * 2 + [WHITE] * 3


def test_the_command_draws_a_png_and_refuses_what_it_cannot_draw(tmp_path, capsys):
    plot = tmp_path / "day.png"
    small = ["simulate", "--tasks", "200", "--nodes", "2", "--tenants", "5", "--policy", "fifo", "--plot"]
    assert main([*small, str(plot)]) == 0
    shown = pixels(plot.read_bytes())
    assert (31, 111, 235) in {pixel for row in shown for pixel in row}, "the line of the first policy"
    capsys.readouterr()
    assert main([*small, str(tmp_path / "day.jpg")]) != 0
    assert ".svg or .png" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0123456789", "part of the fleet that is taken", "100 %", "1,234", "headway", "priority"])
def test_every_letter_that_is_used_is_drawn_apart(text):
    assert all(letter == " " or _drawn(letter) != _drawn("-") for letter in text)


def _drawn(letter: str) -> bytes:
    return Drawing(12, 12, [Words(1, 11, letter)]).png()
