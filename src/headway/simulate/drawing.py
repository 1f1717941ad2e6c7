"""A drawing of boxes, words and lines, written as SVG or PNG by hand: a few lines over time need no library."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

SUFFIXES = (".svg", ".png")
_DOT = 2  # pixels of a letter's dot
_LETTER = 4 * _DOT  # a letter is three dots wide and five high, and one is left between two
_LETTERS = {  # five rows of three dots, each an octal digit
    "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644", "G": "34553", "H": "55755", "I": "72227",
    "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555", "O": "25552", "P": "65644", "Q": "25573", "R": "65655",
    "S": "34216", "T": "72222", "U": "55557", "V": "55552", "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", "0": "75557",
    "1": "26227", "2": "61247", "3": "61216", "4": "55711", "5": "74616", "6": "34757", "7": "71222", "8": "75757", "9": "75716",
    "%": "51245", ",": "00024", ".": "00002", "-": "00700", ":": "02020", " ": "00000",
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class Words:
    """Text that begins, or ends, at a point on its base line."""

    x: float
    y: float
    text: str
    colour: str = "#000000"
    ends: bool = False


@dataclass(frozen=True)
class Line:
    points: Sequence[tuple[float, float]]
    colour: str


@dataclass(frozen=True)
class Drawing:
    width: int
    height: int
    marks: Sequence[Box | Words | Line]

    def svg(self) -> bytes:
        style = 'font-family="sans-serif" font-size="12"'
        marks = "".join(map(_svg, self.marks))
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" {style}>{marks}</svg>\n'.encode()

    def png(self) -> bytes:
        rows = [bytearray(b"\xff" * (3 * self.width)) for _ in range(self.height)]
        canvas = _Canvas(rows, self.width, self.height)
        for mark in self.marks:
            canvas.draw(mark)
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
        body = zlib.compress(b"".join(b"\0" + row for row in rows))  # no filter
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _svg(mark: Box | Words | Line) -> str:
    match mark:
        case Box(x, y, width, height, colour):
            return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="{colour}"/>'
        case Words(x, y, text, colour, ends):
            anchor = ' text-anchor="end"' if ends else ""
            return f'<text x="{x}" y="{y}" fill="{colour}"{anchor}>{text}</text>'
        case Line(points, colour):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


class _Canvas:
    def __init__(self, rows: list[bytearray], width: int, height: int) -> None:
        self.rows, self.width, self.height = rows, width, height

    def draw(self, mark: Box | Words | Line) -> None:
        colour = bytes.fromhex(mark.colour[1:])
        match mark:
            case Box(x, y, width, height):
                corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
                self._line(corners, colour, thick=1)
            case Words(x, y, text, _, ends):
                self._words(round(x) - (_LETTER * len(text) if ends else 0), round(y), text, colour)
            case Line(points):
                self._line(points, colour, thick=2)

    def _line(self, points: Sequence[tuple[float, float]], colour: bytes, thick: int) -> None:
        for (x, y), (to_x, to_y) in itertools.pairwise(points):
            steps = max(int(max(abs(to_x - x), abs(to_y - y))), 1)
            for step in range(steps + 1):
                self._dot(round(x + (to_x - x) * step / steps), round(y + (to_y - y) * step / steps), colour, thick)

    def _words(self, x: int, y: int, text: str, colour: bytes) -> None:
        for number, letter in enumerate(text.upper()):
            for row, bits in enumerate(_LETTERS.get(letter, _LETTERS["-"])):
                for column in range(3):
                    if int(bits, 8) & 4 >> column:
                        self._dot(x + number * _LETTER + column * _DOT, y + (row - 5) * _DOT, colour, _DOT)

    def _dot(self, x: int, y: int, colour: bytes, size: int) -> None:
        left, right = max(x, 0), min(x + size, self.width)
        if left < right:
            for row in range(max(y, 0), min(y + size, self.height)):
                self.rows[row][3 * left : 3 * right] = colour * (right - left)
