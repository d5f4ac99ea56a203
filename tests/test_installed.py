"""The command that adds an extra: of the program and the source that this copy came from."""

import re
import shlex
import sys
from importlib.metadata import Distribution, requires
from pathlib import Path

import pytest

from ultramon import installed
from ultramon.installed import (
    IS_ON_INDEX,
    install_command,
    packages_of,
    tool_install_commands,
)

ROOT = Path(__file__).resolve().parent.parent
UV_LINES = "home = /usr/bin\nimplementation = CPython\nuv = 0.13.9\nversion_info = 3.11.7\n"


@pytest.fixture
def state_origin(monkeypatch, tmp_path):
    """Gives the distribution another record of its origin; None = none."""

    def state(text):
        folder = tmp_path / "site" / "ultramon-0.1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: ultramon\nVersion: 0.1.0\nProvides-Extra: tui\n"
            'Requires-Dist: textual>=8.0; extra == "tui"\n'
        )
        if text is not None:
            (folder / "direct_url.json").write_text(text)
        monkeypatch.setattr(installed, "distribution", lambda name: Distribution.at(folder))

    return state


def test_a_directory_is_installed_from_again(state_origin, tmp_path, monkeypatch):
    """With the extra; from within it, by a dot; an editable one stays that."""
    origin = tmp_path / "my clone"
    origin.mkdir()
    state_origin(f'{{"url": "{origin.as_uri()}", "dir_info": {{"editable": true}}}}')
    assert install_command("tui").endswith(f" install -e '{origin}[tui]'")
    monkeypatch.chdir(origin)
    assert install_command("tui").endswith(" install -e '.[tui]'")


def test_a_repository_is_fetched_from_again(state_origin):
    """As pip takes it."""
    state_origin('{"url": "https://example.org/u.git", "vcs_info": {"vcs": "git"}}')
    words = shlex.split(install_command("tui"))
    assert words[-1] == "ultramon[tui] @ git+https://example.org/u.git"


@pytest.mark.parametrize(
    "origin", [None, '{"url": "file:///gone", "dir_info": {}}', "{", "[]", '{"url": null}']
)
def test_without_an_origin_the_packages_are_named(state_origin, origin):
    """They are on the index, where ultramon is not yet."""
    state_origin(origin)
    named = "'ultramon[tui]'" if IS_ON_INDEX and origin is None else "'textual>=8.0'"
    assert install_command("tui").endswith(f" install {named}")


def test_a_command_of_pipx_or_uv_is_added_to_by_that(tmp_path, state_origin):
    """Known by what they leave in the environment that they make."""
    state_origin(None)
    prefix = tmp_path / "ultramon"
    prefix.mkdir()
    (prefix / "pyvenv.cfg").write_text(UV_LINES)
    python = prefix / "bin" / "python"
    assert install_command("tui", str(prefix)) == (
        f"uv pip install --python {shlex.quote(str(python))} 'textual>=8.0'"
    )
    (prefix / "uv-receipt.toml").write_text("[tool]\n")
    assert install_command("tui", str(prefix)) == ("uv tool install --with 'textual>=8.0' ultramon")
    (prefix / "uv-receipt.toml").unlink()
    (prefix / "pipx_metadata.json").write_text("{}\n")
    assert install_command("tui", str(prefix)) == "pipx inject ultramon 'textual>=8.0'"


def test_a_user_installs_from_the_clone(state_origin, tmp_path):
    """The commands of pipx and uv name where this came from; else the clone one is in."""
    state_origin(f'{{"url": "{tmp_path.as_uri()}", "dir_info": {{}}}}')
    path = shlex.quote(str(tmp_path))
    assert tool_install_commands() == (f"pipx install {path}", f"uv tool install {path}")
    tmp_path.joinpath("site", "ultramon-0.1.0.dist-info", "direct_url.json").unlink()
    name = "ultramon" if IS_ON_INDEX else "."
    assert tool_install_commands()[0] == f"pipx install {name}"


def test_an_environment_that_is_not_active_is_named(monkeypatch):
    """The pip on PATH would install elsewhere."""
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    assert install_command("tui").startswith(f"{shlex.quote(sys.executable)} -m pip install ")


def test_all_brings_what_every_command_can_use():
    """All extras but those of frameworks, which come with a program, and of development."""
    extras = {one.partition("extra == ")[2].strip("\"'") for one in requires("ultramon")} - {""}
    adapters = (ROOT / "ultramon" / "integrations").iterdir()
    frameworks = {path.stem.replace("_", "-") for path in adapters}
    own = extras - frameworks - {"all", "bench", "dev", "docs", "mutants"}
    assert set(packages_of("all")) == {one for extra in own for one in packages_of(extra)}


def test_the_documents_name_what_works():
    """Before the first release nothing is on the index: a clone is installed from."""
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for path in texts:
        named = re.findall(r"install (?:-U )?['\"]?ultramon\b", path.read_text())
        assert bool(named) <= IS_ON_INDEX, path
