"""Adapters by name: built in, and those of other distributions."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers.distributions import write_distribution

from ultramon import ConfigurationError, integrations
from ultramon.errors import MissingExtraError
from ultramon.integrations import load, names
from ultramon.integrations.adapter import Adapter

ACME = """
from ultramon.integrations.adapter import Adapter

class Watcher:
    def __init__(self, monitor=None, **choices):
        self.adapter = Adapter("Acme", monitor, **choices)
"""


@pytest.fixture
def distribute(tmp_path, monkeypatch):
    """Install a distribution beside ultramon that offers adapters."""
    monkeypatch.syspath_prepend(tmp_path)
    yield partial(write_distribution, tmp_path, "acme-watch", integrations.GROUP)
    sys.modules.pop("acme_watch", None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("claude-agent-sdk", "ContextHooks"),
        ("langchain", "ContextMiddleware"),
        ("langchain-callbacks", "ContextCallbackHandler"),
        ("openai-agents", "ContextHooks"),
        ("provider-client", "ContextReader"),
        ("pydantic-ai", "ContextCapability"),
    ],
)
def test_built_in_adapters_have_names(name, kind, ultramon_backend):
    """Each takes the same keywords and holds its agents."""
    made = load(name)(backend=ultramon_backend, label="scout")
    assert type(made).__name__ == kind
    assert isinstance(made.adapter, Adapter)


def test_every_adapter_has_a_name():
    """A file of this room that no name leads to would be found by its readers alone."""
    rooms = {
        path.stem
        for path in sorted(Path(integrations.__file__).parent.glob("*.py"))
        if path.stem
        not in ("__init__", "adapter", "message_texts", "reading_adapter", "requirements")
    }
    assert {target.partition(":")[0] for target in integrations._BUILT_IN.values()} == rooms


def test_an_adapter_of_another_distribution_is_found_by_its_name(distribute, ultramon_backend):
    """And is listed among the others."""
    distribute(ACME, "acme = acme_watch:Watcher")
    assert names() == sorted(["acme", *integrations._BUILT_IN])
    made = load("acme")(backend=ultramon_backend)
    agent = made.adapter.begin(name="scout")
    assert made.adapter.agents == [agent]
    made.adapter.close()


def test_an_unknown_name_is_refused_with_those_that_are_installed(distribute):
    """The error names built-in adapters and others."""
    distribute(ACME, "acme = acme_watch:Watcher")
    with pytest.raises(ConfigurationError) as caught:
        load("langgraph")
    assert "must be one of acme, claude-agent-sdk, " in str(caught.value)
    assert str(caught.value).endswith(", ".join(names()))


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_module", r"cannot be loaded \(ModuleNotFoundError: .*no_such_module"),
        ("opened = 5", r"cannot be loaded \(AttributeError: .*Watcher"),
        ("Watcher = 5", "is of kind int, not a class"),
    ],
)
def test_a_broken_adapter_is_refused_by_the_name_of_its_distribution(distribute, code, problem):
    """Nobody looks for the cause in ultramon."""
    distribute(code, "acme = acme_watch:Watcher")
    with pytest.raises(ConfigurationError, match=f"that of acme-watch {problem}"):
        load("acme")


def test_an_adapter_says_itself_what_it_lacks(distribute):
    """An error of ultramon, such as a missing extra, is raised as it is."""
    code = "from ultramon.errors import MissingExtraError\n"
    code += "raise MissingExtraError('acme_watch', 'acme', 'acme')"
    distribute(code, "acme = acme_watch:Watcher")
    with pytest.raises(MissingExtraError):
        load("acme")


def test_a_built_in_adapter_cannot_be_replaced(distribute):
    """A distribution that offers another LangChain is not asked."""
    distribute("raise SystemExit('loaded')", "langchain = acme_watch:Watcher")
    assert load("langchain").__module__ == "ultramon.integrations.langchain"
    assert names().count("langchain") == 1


def test_names_load_no_framework():
    """Listing costs no import of what is listed."""
    code = "import sys; from ultramon.integrations import names; names(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"langchain", "agents", "openai", "pydantic_ai"}
