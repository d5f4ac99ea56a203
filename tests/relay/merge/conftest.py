"""The git of these tests is that of nobody in particular."""

import pytest
from helpers.merging import hide_git_settings


@pytest.fixture(autouse=True)
def _nobody_in_particular(tmp_path, monkeypatch):
    hide_git_settings(tmp_path, monkeypatch)
