"""How each framework is driven by a model of its own kind that serves what a script says.

Each file drives one adapter in every mode, for `ultramon.testing.IntegrationContract`.
"""

from ultramon.testing import FrameworkRun as Run
from ultramon.testing import ModelScript as Script
from ultramon.testing.framework_run import NOTE, TURNS

__all__ = ["NOTE", "TURNS", "Run", "Script"]
