"""The pictures of the documents: all are there, and what they show can be drawn."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from helpers import ROOT

from scripts.pictures.__main__ import FOLDER, NAMES, program
from scripts.pictures.shop import SESSIONS, Shop
from scripts.pictures.terminal import DARK, LIGHT, Terminal

PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
PICTURE = re.compile(
    r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">'
    r'<img src="([^"]+)" alt="([^"]+)"></picture>'
)
BOTH_THEMES = {"rooms.svg"}
"""Drawn by hand, with the colours of both themes in it."""
MOST_BYTES, MOST_BYTES_TOGETHER = 200_000, 1_500_000


def test_every_picture_is_shown_in_both_themes():
    """No page names a picture that is not there, and none is there that no page shows."""
    shown = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for dark, light, words in PICTURE.findall(text):
            assert dark.replace("-dark.", "-light.") == light
            assert len(words) > 20, words
            shown |= {(page.parent / path).resolve() for path in (dark, light)}
        others = re.findall(r"!\[[^]]*\]\(([^)]*)|<img (.*)", PICTURE.sub("", text))
        assert {path.rpartition("/")[2] for path, _ in others} <= BOTH_THEMES, page
    assert shown == {FOLDER / name for name in NAMES}
    assert {path.name for path in FOLDER.iterdir()} == {*NAMES, *BOTH_THEMES}
    sizes = [path.stat().st_size for path in shown]
    assert max(sizes) <= MOST_BYTES
    assert sum(sizes) <= MOST_BYTES_TOGETHER


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".svg")])
def test_a_picture_of_a_terminal_loads_nothing(name):
    """Pages show it as an image, for which a browser fetches nothing else."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert not re.findall(r"url\(|href|@import|<script|/tmp/", text)
    assert text.count("http") == 1, "the name space"


@pytest.mark.timeout(600)
@pytest.mark.exhaustive
def test_the_shop_of_the_pictures_is_at_work(tmp_path):
    """Ten sessions of two hosts and three subagents, on the real screen."""
    with (
        Shop(tmp_path / "mira") as shop,
        Terminal(
            program("watch"), shop.machine.environ, columns=114, rows=21, directory=str(tmp_path)
        ) as terminal,
    ):
        terminal.wait_for(r"\$\d")
        lines = terminal.lines
        light, dark = (terminal.draw(theme, "watch", "All sessions") for theme in (LIGHT, DARK))
    assert len(SESSIONS) == 10
    for session in SESSIONS:
        (line,) = [one for one in lines if session.prompt in one and one[:2] in ("  ", "> ")]
        assert re.search(r"\d+ % .* (\d+(-\d+|\+) turns|next turn) .* \$\d+\.\d\d ", line), line
        assert session.session_id[:8] in line
        assert session.prompt in light
    assert lines[0].startswith('4 need you, first "Recompute VAT on invoices" 91 %')
    assert sum(line[2:3] in ("├", "└") for line in lines) == 3
    needs = "\n".join(lines[:-1])
    assert [needs.count(word) for word in ("permission", "answer", "hand over ")] == [1, 1, 2]
    assert not [line for line in lines if "…" in line], "words are cut"
    assert (LIGHT.background in light, DARK.background in dark) == (True, True)


def test_a_terminal_is_drawn_as_it_is():
    """Bars as one shape, faint and coloured text as such, and hostile text as text."""
    text = r"\033[31m██▌\033[0m \033[2mfaint\033[22m \033[1;38;2;1;2;3m<b>&\033[0m"
    with Terminal(
        ["/usr/bin/printf", text], {"LC_ALL": "C.UTF-8"}, columns=40, rows=3, directory="/"
    ) as terminal:
        terminal.end()
        drawn = terminal.draw(LIGHT, "a & b", "c")
    assert f'width="21.0" height="16.0" fill="{LIGHT.colours["red"]}"' in drawn
    assert f'fill="{LIGHT.faint}">faint</text>' in drawn
    assert re.search(r'<text class="b" [^>]*fill="#010203">&lt;b&gt;&amp;</text>', drawn)
    assert ">a &amp; b</text>" in drawn


@pytest.mark.slow
def test_without_chromium_one_line_says_what_is_missing(tmp_path):
    """Before anything is built."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.pictures", "--into", str(tmp_path)],
        env={"PATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "pictures: no chromium on PATH, which draws the report and the web pages\n"
    )
    assert list(tmp_path.iterdir()) == []
