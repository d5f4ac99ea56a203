"""Draws the pictures of docs/img from real runs: `make pictures`, or `python -m scripts.pictures`.

Every program sees the shop's machine and time, and no other. What differs between two runs: the
ids of processes, which no picture shows, and how a version of chromium draws letters.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.pictures.clients import ROOT
from scripts.pictures.pages import shrink
from scripts.pictures.shop import JOB, NOW, SESSIONS, Shop
from scripts.pictures.terminal import THEMES, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = ROOT / "docs" / "img"
NAMES = (
    *(f"{name}-{theme.name}.svg" for name in ("watch", "watch-why", "replay") for theme in THEMES),
    *(
        f"{name}-{theme.name}.png"
        for name in ("report", "web-fleet", "web-agent", "web-job")
        for theme in THEMES
    ),
)
"""All that are drawn here."""
_WIDTH = 1_280
_AT = """
import runpy, sys, time
now = float(sys.argv[1])
time.time = lambda: now
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_PATIENCE_SECONDS = 60
_COLUMNS, _ROWS = 114, 21
_WHY_ROWS = 36
_REPLAY_COLUMNS = 100
_FIRST, _COMPACTED = SESSIONS[0], SESSIONS[3]


def program(*arguments: str) -> list[str]:
    """Return the command line of the installed ``ultramon`` at the time of the shop."""
    installed = Path(sys.executable).with_name("ultramon")
    return [sys.executable, "-c", _AT, str(NOW), str(installed), *arguments]


def draw_watch(shop: Shop) -> Iterator[tuple[str, str]]:
    """Yield the pictures of ``ultramon watch`` and of what Space opens, by their names."""

    def watch(rows: int) -> Terminal:
        return Terminal(
            program("watch"), shop.machine.environ, columns=_COLUMNS, rows=rows,
            directory=str(shop.machine.folder),
        )  # fmt: skip

    with watch(_ROWS) as terminal:
        terminal.wait_for(r"\$\d")
        words = "Ten sessions: how full, how many turns are left, what each has cost, who waits"
        for theme in THEMES:
            yield f"watch-{theme.name}.svg", terminal.draw(theme, "ultramon watch", words)
    with watch(_WHY_ROWS) as terminal:
        terminal.wait_for(r"\$\d")
        terminal.press(" ")
        terminal.wait_for("EVENTS")
        words = "One session: what filled its window, its subagents, its plan, its events"
        for theme in THEMES:
            yield (
                f"watch-why-{theme.name}.svg",
                terminal.draw(theme, "ultramon watch", words),
            )


def draw_replay(shop: Shop) -> Iterator[tuple[str, str]]:
    """Yield the pictures of ``ultramon replay``."""
    session_id = _COMPACTED.session_id[:8]
    command = program("replay", session_id)
    with Terminal(
        command, shop.machine.environ, columns=_REPLAY_COLUMNS, rows=60,
        directory=str(shop.machine.folder),
    ) as terminal:  # fmt: skip
        terminal.end()
        title = f"ultramon replay {session_id}"
        words = "A session over time: tokens at each reply, levels, a compaction, what filled it"
        for theme in THEMES:
            yield f"replay-{theme.name}.svg", terminal.draw(theme, title, words)


@contextmanager
def serving(shop: Shop) -> Iterator[dict[str, Any]]:
    """Run ``ultramon web``; its address and the link that logs in."""
    process = subprocess.Popen(
        program("web", "--port", "0", "--json"),
        env=shop.machine.environ, cwd=shop.machine.folder, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], _PATIENCE_SECONDS)[0]:
            sys.exit("pictures: `ultramon web` does not begin")
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


def draw_pages(shop: Shop, chromium: str) -> Iterator[tuple[str, bytes]]:
    """Yield the pictures of the report and of ``ultramon web``, which chromium draws."""
    from playwright.sync_api import sync_playwright

    page_path = shop.machine.folder / "report.html"
    subprocess.run(
        program("report", "--html", str(page_path)),
        env=shop.machine.environ, cwd=shop.machine.folder, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with sync_playwright() as playwright, serving(shop) as served:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(served["loginUrl"])
        # The server has looked at what was spent, and the page has heard of it.
        page.locator(".budget").wait_for()
        blank = browser.new_page()
        for name, address, height in (
            ("report", page_path.as_uri(), 1_120),
            ("web-fleet", f"{served['url']}/", 1_120),
            ("web-agent", f"{served['url']}/agent?id={_FIRST.session_id}", 916),
            ("web-job", f"{served['url']}/jobs?run={JOB}", 748),
        ):
            page.set_viewport_size({"width": _WIDTH, "height": height})
            page.goto(address)
            page.locator("h1").wait_for()
            for theme in THEMES:
                page.emulate_media(color_scheme=theme.name)
                yield f"{name}-{theme.name}.png", shrink(page.screenshot(), blank)
        browser.close()


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pictures", description=__doc__)
    parser.add_argument("--into", type=Path, default=FOLDER, help="another folder than docs/img")
    parser.add_argument("--keep", type=Path, help="leave the shop's machine in this empty folder")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("pictures: no chromium on PATH, which draws the report and the web pages")
    given.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Shop(given.keep or Path(folder)) as shop:
        pictures: dict[str, bytes] = {}
        pictures |= {name: drawn.encode() for name, drawn in draw_watch(shop)}
        pictures |= {name: drawn.encode() for name, drawn in draw_replay(shop)}
        shop.add_earlier()
        pictures |= draw_pages(shop, chromium)
    assert sorted(pictures) == sorted(NAMES), sorted(pictures)
    for name, drawn in pictures.items():
        (given.into / name).write_bytes(drawn)
        print(f"{len(drawn) / 1000:8.1f} kB  {name}")


if __name__ == "__main__":
    main()
