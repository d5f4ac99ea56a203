"""The adapter passes the suite that every adapter of ultramon passes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from scripted_agent import drive_agent

from ultramon.testing import IntegrationContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.testing import FrameworkRun


class TestAgentFramework(IntegrationContract):
    @pytest.fixture
    def drive(self) -> Callable[[FrameworkRun], None]:
        """Drive the framework, which is async in every mode."""
        return lambda run: asyncio.run(drive_agent(run))
