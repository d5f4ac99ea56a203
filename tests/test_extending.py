"""The worked examples of docs/extending.md: installed by pip, and used as the page shows it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.distributions import EXTENSIONS, install_extension
from helpers.program import environment
from helpers.shown import matches

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## An? (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = {match[1]: match[2] for match in SECTION.finditer(PAGE)}
END = "--- the next command"


def commands(section):
    """Yield each command of a section with the lines that it prints."""
    for block in re.findall(r"^```console\n(.*?)^```\n", section, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.split("\n")
            more = [line[2:] for line in lines if line.startswith("> ")]
            yield "\n".join([lines[0], *more]), "\n".join(lines[1 + len(more) :])


@pytest.mark.parametrize("kind", SECTIONS)
def test_an_example_does_what_its_page_shows(kind, tmp_path):
    """It is installed into a directory of its own, and found there by its entry point."""
    packages = tmp_path / "packages"
    project = tmp_path / "project"
    project.mkdir()
    (project / "examples").symlink_to(ROOT / "examples")
    shown = list(commands(SECTIONS[kind]))
    assert shown[0] == (f"pip install --quiet ./examples/extensions/{kind}", "")
    install_extension(packages, kind)
    script = "\n".join(f"{command} 2>&1; echo '{END}'" for command, _printed in shown[1:])
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=project,
        env=environment(PATH=path, PYTHONPATH=str(packages), HOME=str(tmp_path)),
        timeout=100,
        check=False,
    )
    outputs = done.stdout.split(f"{END}\n")
    for (command, printed), output in zip(shown[1:], outputs, strict=False):
        assert matches(output, printed), f"{command} printed:\n{output}"
    assert len(outputs) == len(shown)


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_page_shows_the_entry_point_of_the_package(kind):
    """Who copies these lines has what the example has."""
    (lines,) = re.findall(r"^```toml\n(.*?)^```\n", SECTIONS[kind], re.MULTILINE | re.DOTALL)
    assert lines in (EXTENSIONS / kind / "pyproject.toml").read_text(encoding="utf-8")


def test_the_page_shows_files_of_a_whole_host():
    """The dialect and the transcripts as they are; all files have at most 150 lines together."""
    folder = EXTENSIONS / "host"
    shown = re.findall(
        r"^`examples/extensions/host/(\S+)`:\n\n```py\n(.*?)^```\n",
        SECTIONS["host"],
        re.MULTILINE | re.DOTALL,
    )
    names = [f"ultramon_acme/{module}.py" for module in ("dialect", "transcripts")]
    assert shown == [(name, (folder / name).read_text()) for name in names]
    files = (folder / "ultramon_acme").glob("*.py")
    assert sum(path.read_text().count("\n") for path in files) <= 150
