"""A program on a terminal of its own, and its screen as SVG, in light and dark.

Named colours are those of a theme, as in any terminal; blocks are drawn as shapes, so that bars
have no gaps in whatever font a browser has.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import pexpect
import pyte

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyte.screens import Char

_PATIENCE_SECONDS = 60.0
_CELL_WIDTH, _CELL_HEIGHT, _FONT_SIZE = 8.4, 20, 14
_PADDING, _TITLE_HEIGHT = 16, 36
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_GAP = 4
"""Between the blocks of two lines, as terminals with more line height have."""
_THIN = 3
_AXES = "│┤"
_LINES = {"│": "ud", "┤": "udl", "├": "udr", "└": "ur", "─": "lr"}
"""Which edges of its cell a character leads to: up, down, left, right."""
_FAINT, _BLINK = "2", "5"
_NORMAL, _NO_BLINK = "22", "25"
_EIGHTHS_UP, _EIGHTHS_RIGHT = " ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█"


class Theme(NamedTuple):
    """The colours of a terminal."""

    name: str
    background: str
    foreground: str
    faint: str
    """Of text that is dim and has no colour of its own."""
    frame: str
    title: str
    colours: Mapping[str, str]
    """By the names that `pyte` gives them."""


LIGHT = Theme(
    "light", "#ffffff", "#1f2328", "#656d76", "#d0d7de", "#656d76",
    {"red": "#c21f2c", "green": "#1a7f37", "brown": "#946300", "blue": "#0a5dc2",
     "magenta": "#8250df", "cyan": "#116d77", "white": "#57606a", "black": "#24292f"},
)  # fmt: skip
DARK = Theme(
    "dark", "#0d1117", "#e6edf3", "#8b949e", "#30363d", "#8b949e",
    {"red": "#ff7b72", "green": "#56d364", "brown": "#e3b341", "blue": "#79c0ff",
     "magenta": "#d2a8ff", "cyan": "#56d4dd", "white": "#b1bac4", "black": "#6e7681"},
)  # fmt: skip
THEMES = (LIGHT, DARK)


class _Screen(pyte.Screen):
    """A screen that knows faint text, which `pyte` does not: here it is what blinks."""

    def select_graphic_rendition(self, *attributes: int, **more: object) -> None:
        words = ";".join(map(str, attributes))
        # The 2 in 38;2;… is no attribute, but part of a colour.
        parts = re.findall(r"[34]8;(?:2(?:;\d+){3}|5;\d+)|\d+", words)
        codes = []
        for part in parts or ["0"]:
            more_codes = {_FAINT: [_BLINK], _NORMAL: [_NORMAL, _NO_BLINK]}
            codes += more_codes.get(part, part.split(";"))
        super().select_graphic_rendition(*map(int, codes))


class Terminal:
    """A program on a terminal, within a ``with`` block.

    Args:
        command: The program and its arguments.
        environ: All of its environment.
        columns: Cells of the terminal.
        rows: Its lines.
        directory: Where it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        columns: int,
        rows: int,
        directory: str,
    ) -> None:
        own = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
        self._child = pexpect.spawn(
            command[0], list(command[1:]), dimensions=(rows, columns), cwd=directory,
            env={**environ, **own},
        )  # fmt: skip
        self._screen = _Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.close(force=True)

    @property
    def lines(self) -> list[str]:
        """What the screen shows."""
        return [line.rstrip() for line in self._screen.display]

    def press(self, keys: str) -> None:
        """Type keys."""
        self._child.send(keys)

    def wait_for(self, pattern: str) -> None:
        """Read until the screen shows a pattern and stays as it is for a moment.

        Raises:
            TimeoutError: It does not come.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            changed = self._read(0.5)
            if not changed and re.search(pattern, "\n".join(self.lines)):
                return
            if not changed and not self._child.isalive():
                break
        raise TimeoutError(f"no {pattern!r} on the screen:\n" + "\n".join(self.lines))

    def end(self) -> None:
        """Read to the end of the program."""
        while self._read(_PATIENCE_SECONDS):
            pass

    def _read(self, seconds: float) -> bool:
        try:
            self._stream.feed(self._child.read_nonblocking(1 << 16, seconds))
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        return True

    def draw(self, theme: Theme, title: str, words: str) -> str:
        """Return the screen as SVG.

        Args:
            theme: Its colours.
            title: Above the screen.
            words: What it shows, for those who cannot see it.
        """
        rows = [
            [self._screen.buffer[y][x] for x in range(self._screen.columns)]
            for y in range(self._screen.lines)
        ]
        while rows and not any(char.data.strip() or char.reverse for char in rows[-1]):
            rows.pop()
        return _draw(rows, theme, title, words)


@dataclass(frozen=True)
class _Look:
    colour: str
    background: str | None
    is_bold: bool
    is_faint: bool
    is_underlined: bool
    is_italic: bool


def _look(char: Char, theme: Theme) -> _Look:
    def named(name: str, usual: str) -> str:
        if name == "default":
            return usual
        plain = name.removeprefix("bright")
        return theme.colours.get(plain, f"#{name}")

    is_faint = char.blink
    colour = named(char.fg, theme.faint if is_faint else theme.foreground)
    background = None if char.bg == "default" else named(char.bg, theme.background)
    if char.reverse:
        colour, background = background or theme.background, colour
    is_faint = is_faint and char.fg != "default"
    return _Look(colour, background, char.bold, is_faint, char.underscore, char.italics)


def _draw(rows: list[list[Char]], theme: Theme, title: str, words: str) -> str:
    columns = len(rows[0])
    width = columns * _CELL_WIDTH + 2 * _PADDING
    height = len(rows) * _CELL_HEIGHT + _TITLE_HEIGHT + _PADDING
    shapes: list[str] = []
    for y, row in enumerate(rows):
        top = y * _CELL_HEIGHT
        cells = [(x, char) for x, char in enumerate(row) if char.data]
        # Beside an axis a line is part of a chart; bars of two lines stay apart.
        gap = 0 if any(char.data in _AXES for _, char in cells) else _GAP
        for look, run in groupby(cells, key=lambda cell: _look(cell[1], theme)):
            shapes += _draw_run(list(run), look, top, gap)
    dots = "".join(
        f'<circle cx="{_PADDING + 6 + 18 * number}" cy="18" r="5.5" fill="{theme.frame}"/>'
        for number in range(3)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" \
viewBox="0 0 {width:.0f} {height}" role="img">
<title>{escape(words)}</title>
<style>
text {{ font: {_FONT_SIZE}px {_FONTS}; white-space: pre; }}
.b {{ font-weight: 700; }}
.i {{ font-style: italic; }}
.u {{ text-decoration: underline; }}
.f {{ opacity: .65; }}
</style>
<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="9" \
fill="{theme.background}" stroke="{theme.frame}"/>
{dots}
<text x="{width / 2:.0f}" y="23" text-anchor="middle" fill="{theme.title}">{escape(title)}</text>
<g transform="translate({_PADDING} {_TITLE_HEIGHT})">
{chr(10).join(shapes)}
</g>
</svg>
"""


def _draw_run(cells: list[tuple[int, Char]], look: _Look, top: int, gap: int) -> Iterator[str]:
    first, after = cells[0][0], cells[-1][0] + 1
    if look.background is not None:
        x, width = first * _CELL_WIDTH, (after - first) * _CELL_WIDTH
        yield _rect((x, top, width, _CELL_HEIGHT), look.background, look)
    for kind, run in groupby(cells, key=lambda cell: _kind(cell[1].data)):
        found = list(run)
        if kind == "block":
            yield from _draw_blocks(found, look, top, gap)
        elif kind == "line":
            yield from _draw_lines(found, look, top)
        else:
            yield from _draw_text(found, look, top)


def _kind(text: str) -> str:
    if text in _LINES:
        return "line"
    is_block = len(text) == 1 and (text in _EIGHTHS_UP[1:] or text in _EIGHTHS_RIGHT[1:])
    return "block" if is_block else "text"


def _draw_lines(cells: list[tuple[int, Char]], look: _Look, top: int) -> Iterator[str]:
    for x, char in cells:
        left, ends = x * _CELL_WIDTH, _LINES[char.data]
        middle, centre = left + _CELL_WIDTH / 2, top + _CELL_HEIGHT / 2
        if "u" in ends:
            height = _CELL_HEIGHT if "d" in ends else _CELL_HEIGHT / 2
            yield _rect((middle, top, 1.2, height), look.colour, look)
        if "l" in ends or "r" in ends:
            begin = left if "l" in ends else middle
            end = left + _CELL_WIDTH if "r" in ends else middle
            yield _rect((begin, centre, end - begin, 1.2), look.colour, look)


def _draw_blocks(cells: list[tuple[int, Char]], look: _Look, top: int, gap: int) -> Iterator[str]:
    text = "".join(char.data for _, char in cells)
    # A bar is full blocks and the part of one; a curve changes its height from cell to cell.
    for part in re.finditer(r"█*[▏▎▍▌▋▊▉]|(.)\1*", text):
        x = cells[part.start()][0] * _CELL_WIDTH
        width = (len(part[0]) - 1 + _share(part[0][-1], _EIGHTHS_RIGHT)) * _CELL_WIDTH
        height = _share(part[0][-1], _EIGHTHS_UP) * (_CELL_HEIGHT - gap)
        y = top + _CELL_HEIGHT - gap / 2 - height
        yield _rect((x, y, width, height), look.colour, look)


def _share(block: str, blocks: str) -> float:
    """Return how much of a cell a block fills, 1.0 where it is none of these."""
    return blocks.index(block) / 8 if block in blocks else 1.0


def _rect(place: tuple[float, float, float, float], colour: str, look: _Look) -> str:
    faint = ' class="f"' if look.is_faint else ""
    x, y, width, height = (f"{one:.1f}" for one in place)
    # Thin shapes with crisp edges are gone where a page shows the picture smaller.
    crisp = ' shape-rendering="crispEdges"' if min(place[2:]) > _THIN else ""
    return (
        f'<rect{faint} x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"{crisp}/>'
    )


def _draw_text(cells: list[tuple[int, Char]], look: _Look, top: int) -> Iterator[str]:
    text = "".join(char.data for _, char in cells)
    for part in re.finditer(r"\S+(?: \S+)*", text):
        classes = [
            name
            for name, is_on in (
                ("b", look.is_bold), ("i", look.is_italic), ("u", look.is_underlined),
                ("f", look.is_faint),
            )
            if is_on
        ]  # fmt: skip
        kind = f' class="{" ".join(classes)}"' if classes else ""
        x = cells[part.start()][0] * _CELL_WIDTH
        width = (cells[part.end() - 1][0] + 1) * _CELL_WIDTH - x
        yield (
            f'<text{kind} x="{x:.1f}" y="{top + 15}" textLength="{width:.1f}"'
            f' fill="{look.colour}">{escape(part[0])}</text>'
        )
