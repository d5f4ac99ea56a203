"""docs/settings.md: its tables are generated, and its example is accepted."""

import importlib.util
import re
from pathlib import Path

from ultramon import AlertConfig, ContextConfig

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_declarations_say():
    """docs/settings.md is as `python scripts/generate_settings_docs.py` would write it now."""
    path = ROOT / "scripts" / "generate_settings_docs.py"
    spec = importlib.util.spec_from_file_location("generate_settings_docs", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.render(PAGE) == PAGE
    for table in (*generator.TABLES, "environment"):
        assert f"<!-- settings: {table} -->" in PAGE


def test_the_example_of_the_file_is_accepted(tmp_path, monkeypatch):
    """A reader can copy it as it stands."""
    (example,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "ultramon.toml").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert [rung.name for rung in ContextConfig().effective_ladder.rungs] == ["early", "late"]
    assert AlertConfig().every == {"add": 3}
