"""Opens the look at the user's budgets where there are some; costs next to nothing elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.notices.budgets import read_budgets

if TYPE_CHECKING:
    from ultramon.recordings.budget_look import BudgetLook, StoredStates


def budget_looks(directory: str, states: StoredStates) -> list[BudgetLook]:
    """Return the look at the user's budgets; empty where there is no budget.

    Args:
        directory: The state directory, where the readings are stored.
        states: The store, which knows the runs and labels of agents.

    Raises:
        ConfigurationError: As for `ultramon.recordings.budget_look.BudgetLook`.
    """
    if not read_budgets():
        return []
    # Transcripts and prices take 0.1 s to import.
    from ultramon.recordings.budget_look import BudgetLook

    return [BudgetLook(directory, states)]
