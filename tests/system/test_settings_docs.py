"""docs/settings.md: its tables are generated, and its example is accepted."""

import importlib.util
import re

from helpers import ROOT

from ultramon import AlertConfig, ContextConfig
from ultramon.cli.gone_variables import HOOK_SECRET
from ultramon.notices.budgets import read_budgets
from ultramon.notices.commands import EVENTS, PLACEHOLDERS

PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def load_generator():
    """The script that writes the tables of the page."""
    path = ROOT / "scripts" / "generate_settings_docs.py"
    spec = importlib.util.spec_from_file_location("generate_settings_docs", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    return generator


def test_the_page_is_what_the_declarations_say():
    """docs/settings.md is as `python scripts/generate_settings_docs.py` would write it now."""
    generator = load_generator()
    assert generator.render(PAGE) == PAGE
    for table in (*generator.TABLES, "environment", "given"):
        assert f"<!-- settings: {table} -->" in PAGE


def test_at_most_sixty_variables_are_listed_and_no_other_one_is_read():
    """Every one that a source file names is there, or among the few that ultramon itself gives."""
    generator = load_generator()
    listed, given = set(generator.variables()), set(generator.given_variables())
    assert len(listed) <= 60
    assert len(given) <= 6
    assert not listed & given
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "ultramon").rglob("*.py")]
    named = set(re.findall(r"[\"`](ULTRAMON_[A-Z_]*[A-Z])[\"`]", "\n".join(sources)))
    assert named <= listed | given | {"ULTRAMON_ALERT_ACTION", HOOK_SECRET}


def test_the_example_of_the_file_is_accepted(tmp_path, monkeypatch):
    """A reader can copy it as it stands."""
    (example,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "ultramon.toml").write_text(example, encoding="utf-8")
    monkeypatch.setenv("ULTRAMON_CONFIG", str(tmp_path / "ultramon.toml"))
    assert [rung.name for rung in ContextConfig().effective_ladder.rungs] == ["early", "late"]
    assert AlertConfig().every == {"add": 3}
    assert [one.name for one in read_budgets()] == ["daily"]


def test_the_page_names_every_event_and_placeholder_of_a_command():
    """With the meanings that the program gives them."""
    for name, meaning in EVENTS.items():
        assert f"| `{name}` | {meaning} |" in PAGE
    for name, meaning in PLACEHOLDERS.items():
        assert f"| `{{{name}}}` | {meaning} |" in PAGE
