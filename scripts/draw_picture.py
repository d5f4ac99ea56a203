"""Draws docs/img/replay.svg: what `ultramon replay` shows of a recorded session."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
RECORDING = "tests/data/captures/claude-code-2.1.330/transcript_r3_main.jsonl"
WIDTH = 92


def main() -> None:
    """Run the command, and save what it shows without the fonts it would load."""
    program = Path(sys.executable).with_name("ultramon")
    shown = subprocess.run(
        [str(program), "replay", RECORDING],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"},
    ).stdout
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ ultramon replay {Path(RECORDING).name}", style="bold"))
    console.print(Text.from_ansi(shown))
    # The picture must not load a font from anywhere.
    plain_format = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(
        title="ultramon replay", code_format=plain_format, unique_id="ultramon-replay"
    )
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'")
    (ROOT / "docs" / "img" / "replay.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
