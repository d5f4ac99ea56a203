"""The versions of frameworks that `make frameworks` tests, the page names, and pip is asked for."""

import re
import sys
from contextlib import nullcontext
from importlib import import_module, util

import pytest
from helpers import ROOT

from ultramon.errors import MissingExtraError
from ultramon.installed import install_command
from ultramon.integrations.requirements import refuse_older

spec = util.spec_from_file_location("frameworks", ROOT / "scripts" / "frameworks.py")
frameworks = util.module_from_spec(spec)
spec.loader.exec_module(frameworks)
ROWS = frameworks.FRAMEWORKS
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
)


def numbers(version):
    return [int(number) for number in version.split(".")]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_what_there_is(name):
    """Its test files exist, and the version that CI has lies between its oldest and newest."""
    package, oldest = frameworks.find_requirement(ROWS[name])
    assert numbers(oldest) <= numbers(PINS.get(package, oldest)) <= numbers(ROWS[name].newest)
    files = [argument for argument in ROWS[name].tests if argument.endswith(".py")]
    assert files
    assert all((ROOT / file).is_file() for file in files)


def test_the_page_names_the_versions():
    """docs/frameworks.md says of each row from which version to which it was tested."""
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (.*`) \| (\d\S+) \| (\d\S+) \|$", page, re.MULTILINE)
    wanted = []
    for row in ROWS.values():
        package, oldest = frameworks.find_requirement(row)
        named = f"none: provider SDKs, named by `{package}`"
        if row.extra != "dev":
            named = f"`ultramon[{row.extra}]`"
        wanted.append((named, oldest, row.newest))
    assert shown == wanted


def test_an_unknown_framework_is_refused_with_those_there_are():
    """A misspelt name installs nothing."""
    with pytest.raises(SystemExit, match="langchian is none of langchain, "):
        frameworks.main(["langchian"])


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].extra not in ("dev", "mcp")])
def test_a_framework_that_is_too_old_is_named_with_the_needed_version(name, tmp_path, monkeypatch):
    """Other packages may hold it back: the error says what is there, what is needed, what to do."""
    package, oldest = frameworks.find_requirement(ROWS[name])
    about = tmp_path / f"{package.replace('-', '_')}-0.0.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = f"ultramon.integrations.{ROWS[name].extra.replace('-', '_')}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtraError) as caught:
        import_module(module)
    said = f"{module} needs {name} {oldest} or newer, 0.0.9 is installed: "
    assert str(caught.value) == said + install_command(name)


@pytest.mark.parametrize(
    ("installed", "is_refused"),
    [
        ("1.70", False),
        ("1.70.0", False),
        ("1.70.post1", False),
        ("2", False),
        ("1.69.9", True),
        ("1.69.post100", True),
        ("1", True),
    ],
)
def test_a_version_is_compared_as_packages_count(installed, is_refused, tmp_path, monkeypatch):
    """Zeros at its end may be left out, and a number in a mark is none of the release."""
    about = tmp_path / f"litellm-{installed}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: litellm\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError) if is_refused else nullcontext():
        refuse_older("litellm")
