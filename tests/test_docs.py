"""What the documents show is run, and prints what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("why/*.md"))]
"""tests/test_how_pages.py runs the pages of docs/start and docs/how from top to bottom."""
LINKED = [
    *DOCUMENTS,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")),
    *sorted([*DOCS.glob("how/*.md"), *DOCS.glob("start/*.md")]),
]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
ADAPTER = re.compile(r"^from ultramon\.integrations\.(\w+)", re.MULTILINE)
OWN_ENVIRONMENT = {"litellm": "litellm"}
"""Frameworks whose requirements exclude the others; `make frameworks` runs their blocks."""
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def blocks():
    for path in DOCUMENTS:
        for number, match in enumerate(BLOCK.finditer(path.read_text(encoding="utf-8")), 1):
            adapter = ADAPTER.search(match[1])
            name = f"{path.name}-{number}" + (f"-{adapter[1]}" if adapter else "")
            yield pytest.param(match[1], match[2], id=name)


def run_python(code: str, tmp_path: Path, warnings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", code],
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # else it asks the network
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )


@pytest.mark.parametrize(("code", "expected"), list(blocks()))
def test_every_python_block_runs_and_prints_what_the_document_says(code, expected, tmp_path):
    """A reader who copies an example gets what the page promises."""
    adapter = ADAPTER.search(code)
    package = OWN_ENVIRONMENT.get(adapter[1]) if adapter else None
    if package is not None:
        pytest.importorskip(package, reason="in an environment of its own: make frameworks")
    done = run_python(code, tmp_path, "default" if package else "error")
    assert done.returncode == 0, done.stderr
    if package is None:
        assert done.stderr == ""
    if expected is not None:
        assert done.stdout == expected


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    page = FENCED.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.name)
def test_every_local_link_leads_somewhere(path):
    """No page links to a file that is not there, nor to a heading that no page has."""
    for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        page = path.parent / target if target else path
        assert page.exists(), target
        assert not anchor or page.suffix != ".md" or anchor in anchors(page), f"{target}#{anchor}"


def test_the_state_file_page_names_every_field():
    """docs/state-file.md is the contract: it and the writer know the same names."""
    from ultramon.state.record import FIELD_NAMES

    page = (ROOT / "docs" / "state-file.md").read_text(encoding="utf-8")
    table = page[page.index("| field |") : page.index("## Of one host")]
    named = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([A-Za-z0-9]+)`", line.split("|")[1])
    }
    assert named == {*FIELD_NAMES.values(), "crc32"}


def test_the_share_page_names_every_field():
    """docs/share.md says of each field of a state what leaves the machine of it."""
    from ultramon.share.allow_list import BY_NAME, NEVER_SENT, SENT
    from ultramon.state.record import FIELD_NAMES

    page = (ROOT / "docs" / "share.md").read_text(encoding="utf-8")
    always, by_name = page.split("**Always**")[1].split("**By name only**")
    by_name, never = by_name.split("**Never**")
    named = {fields for names in BY_NAME.values() for fields in names}
    listed = ((always, {*SENT}), (by_name, named), (never.split("\n## ")[0], NEVER_SENT))
    for text, attributes in listed:
        fields = {one for one in re.findall(r"`([A-Za-z]+)`", text) if one in FIELD_NAMES.values()}
        assert fields == {FIELD_NAMES[attribute] for attribute in attributes}


def test_the_signals_page_names_every_signal():
    """docs/signals.md lists each signal and its friendly name."""
    from ultramon.signals import FRIENDLY_NAMES

    page = (ROOT / "docs" / "signals.md").read_text(encoding="utf-8")
    for name, signal in FRIENDLY_NAMES.items():
        assert f"`{signal.name}`" in page
        assert f"`{name}`" in page


def test_the_picture_of_the_rooms_has_every_room():
    """docs/img/rooms.svg, and every file that docs/why/architecture.md names."""
    package = ROOT / "ultramon"
    paths = (path for path in package.iterdir() if not path.name.startswith("_"))
    picture = (ROOT / "docs" / "img" / "rooms.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'class="room">(\w+)<', picture)
    assert sorted(drawn) == sorted(path.stem for path in paths if path.suffix in ("", ".py"))
    page = (ROOT / "docs" / "why" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/[\w/]+(?:\.py)?)`", page)
    assert named
    for name in named:
        assert (package / name).exists() or (ROOT / name).exists(), name


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs_and_shows_what_its_first_lines_say(path, tmp_path):
    """Each example says on top what one should see, and it is seen."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    top = path.read_text(encoding="utf-8").split('"""')[1]
    assert "What you should see:" in top
    promised = top.split("What you should see:")[1]
    for line in re.findall(r"^    (.+)$", promised, re.MULTILINE):
        assert line in done.stdout, f"{line!r} not in:\n{done.stdout}"
