"""A release up to the upload, and nothing is uploaded: ``make release-check``.

Builds both archives from what is committed, checks what is in them and what they say, installs the
wheel into an environment of its own and uses it there. Ends with 1 where anything is wrong; what
only the person who releases can do is listed and is no failure.
"""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("build", "twine")
USED = (
    ("ultramon", "--version"),
    ("ultramon", "report", "--json"),
    ("python", "-c", "import ultramon; ultramon.create_context_monitor"),
    ("python", "-m", "pip", "check"),
)
"""What a new user does first, without a network."""


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    """Return what a command prints; its failure ends the check."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ or None,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def environment(path: Path) -> Path:
    """Make a virtual environment; return the folder of its programs."""
    run(sys.executable, "-m", "venv", path)
    return path / "bin"


def tracked(folder: str) -> set[str]:
    """Return the files below a folder that git has."""
    return set(run("git", "ls-files", "-z", folder).strip("\0").split("\0"))


def wrong_files(wheel: Path, sdist: Path) -> Iterator[str]:
    """Yield what is in an archive and should not be, or the other way round."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    own, packaged = tracked("ultramon"), {one for one in names if one.startswith("ultramon/")}
    yield from (f"not in the wheel: {one}" for one in sorted(own - packaged))
    yield from (f"in the wheel, and not in git: {one}" for one in sorted(packaged - own))
    strange = {one for one in names - packaged if ".dist-info/" not in one}
    yield from (f"beside the package in the wheel: {one}" for one in sorted(strange))
    if "ultramon/py.typed" not in names:
        yield "the wheel has no py.typed: type checkers ignore its annotations"
    with tarfile.open(sdist) as archive:
        held = {one.partition("/")[2] for one in archive.getnames()}
    for needed in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md"):
        if needed not in held:
            yield f"not in the source archive: {needed}"
    yield from (f"not in the source archive: {one}" for one in sorted(own - held))


def wrong_words(wheel: Path) -> Iterator[str]:
    """Yield what the metadata say wrongly."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        stated = email.message_from_bytes(archive.read(name))
    oldest = stated["Requires-Python"].removeprefix(">=")
    classified = {
        one.rpartition(" ")[2]
        for one in stated.get_all("Classifier", [])
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", one)
    }
    if oldest not in classified:
        yield f"Requires-Python says {oldest}, no classifier does"
    for field in ("Summary", "License-Expression", "Keywords"):
        if not stated[field]:
            yield f"the metadata have no {field}"


def left_to_do() -> Iterator[str]:
    """Yield what the person who releases does by hand."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "ultramon" / "version.py").read_text())
    assert version is not None
    heading = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or not heading[1].startswith(version[1]):
        yield f"CHANGELOG.md does not begin with {version[1]}"
    elif "unreleased" in heading[1]:
        yield f"CHANGELOG.md: the date in the place of `unreleased` at {version[1]}"
    if "IS_ON_INDEX = False" in (ROOT / "ultramon" / "installed.py").read_text():
        yield "ultramon/installed.py: IS_ON_INDEX = True, and the install lines of the documents"
    if "urls" not in (ROOT / "pyproject.toml").read_text():
        yield "pyproject.toml: [project.urls], and absolute links in the README for the index"
    if run("git", "status", "--porcelain"):
        yield "uncommitted files: they are in no archive"
    yield f"a tag v{version[1]}, then: twine upload of the two archives"


def main() -> None:
    """Check, and say what was done."""
    with tempfile.TemporaryDirectory(prefix="ultramon-release-") as path:
        folder = Path(path)
        run("git", "clone", "--quiet", ROOT, folder / "clone")
        tools = environment(folder / "tools")
        run(tools / "pip", "install", "-q", *TOOLS)
        run(tools / "python", "-m", "build", "--outdir", folder / "dist", folder / "clone")
        (wheel,), (sdist,) = (sorted((folder / "dist").glob(one)) for one in ("*.whl", "*.tar.gz"))
        for archive in (wheel, sdist):
            print(f"built    {archive.name}, {archive.stat().st_size:,} bytes")
        run(tools / "twine", "check", "--strict", wheel, sdist)
        print("checked  the description renders, the metadata are valid")
        user = environment(folder / "user")
        run(user / "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
        home = {"HOME": path, "PATH": f"{user}:/usr/bin:/bin"}
        for command in USED:
            run(user / command[0], *command[1:], cwd=folder, **home)
            print(f"used     {' '.join(command)}")
        run(user / "pip", "install", "-q", "--dry-run", f"{wheel}[all]")
        print("resolved all extras of the commands")
        wrong = [*wrong_files(wheel, sdist), *wrong_words(wheel)]
    for one in wrong:
        print(f"wrong    {one}")
    for one in left_to_do():
        print(f"by hand  {one}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
