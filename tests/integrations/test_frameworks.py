"""Every adapter, in every mode, on a model of its framework's own kind."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from helpers import ROOT

import ultramon.integrations
from ultramon.errors import MissingExtraError
from ultramon.testing import IntegrationContract

NO_FRAMEWORKS = (
    "__init__",
    "adapter",
    "langchain_callbacks",
    "message_texts",
    "provider_client",
    "reading_adapter",
    "requirements",
)
"""Files of the room without a driver; those of a framework are tested in a file of their own."""
FRAMEWORKS = sorted(
    path.stem
    for path in Path(ultramon.integrations.__file__).parent.glob("*.py")
    if path.stem not in NO_FRAMEWORKS
)

OWN_ENVIRONMENT = {"google_adk": "google-adk", "litellm": "litellm"}
"""Frameworks whose requirements exclude those of the others, with their packages."""


def import_driver(framework):
    try:
        return import_module(f"helpers.frameworks.{framework}")
    except ImportError:
        if framework in OWN_ENVIRONMENT:
            pytest.skip(f"in an environment of its own: pip install {OWN_ENVIRONMENT[framework]}")
        raise


class TestFrameworks(IntegrationContract):
    @pytest.fixture(params=FRAMEWORKS)
    def drive(self, request, mode):
        """Drive one framework; an adapter without a driver of all modes fails here."""
        driver = import_driver(request.param)
        if mode in getattr(driver, "IMPOSSIBLE", {}):
            pytest.skip(driver.IMPOSSIBLE[mode])
        return driver.drive


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_that_is_not_installed_names_the_extra(framework, monkeypatch):
    """The error says what to install, and the extra exists."""
    package = import_driver(framework).PACKAGE
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"ultramon.integrations.{framework}")
    with pytest.raises(MissingExtraError) as caught:
        import_module(f"ultramon.integrations.{framework}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = project["optional-dependencies"][caught.value.extra]
    assert wanted.partition(">=")[0].removesuffix("-slim") == caught.value.package
