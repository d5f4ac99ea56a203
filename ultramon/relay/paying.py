"""Which of a run's agents pays by what, and which may work: who pays never changes by itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION
from ultramon.relay.option_values import COMMAND
from ultramon.relay.runs.pause import account_of
from ultramon.state.plan_words import brief_limit_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ultramon.relay.choices import RelayChoices
    from ultramon.relay.launchers.port import AgentLauncher
    from ultramon.state.plan_limits import PlanLimits


class Payers:
    """What the agents of a run pay by.

    The first agent is the user's choice and works in any case. Another one takes over at a usage
    limit by itself only where it has a subscription, whose price is fixed.

    Args:
        launchers: By the agent's name, in the order of the choices.
        choices: Those of the run.

    Raises:
        ConfigurationError: An agent that may pay is none of the run's.
    """

    def __init__(self, launchers: Mapping[str, AgentLauncher], choices: RelayChoices) -> None:
        self._launchers = launchers
        self._may_pay = choices.may_pay
        self._before = choices.paid_by
        for name in choices.may_pay:
            if name not in launchers:
                allowed = f"one or more of {', '.join(launchers)}, with commas"
                raise ConfigurationError("may_pay", name, allowed)
        self._payers = {
            name: launcher.payer(choices.cwd, os.environ) for name, launcher in launchers.items()
        }
        self._first = next(iter(launchers))

    @property
    def first_kind(self) -> str | None:
        """What the first agent pays by, to be kept; what it was before where nothing says it."""
        return self._payers[self._first].kind or self._before

    @property
    def allowed(self) -> tuple[str, ...]:
        """The agents that may work, in the order of the choices."""
        return tuple(name for name in self._launchers if self._may_work(name))

    def check(self, confirm: Callable[[str], bool]) -> None:
        """Refuse a run that is continued at another's expense, unless the user says yes.

        Args:
            confirm: Asked with a question.

        Raises:
            ConfigurationError: The first agent began with a subscription, is now billed by use,
                and nobody has agreed to that.
        """
        first, now = self._first, self._payers[self._first]
        if self._before != SUBSCRIPTION or now.kind != API_KEY or first in self._may_pay:
            return
        what = f"{first} paid by {SUBSCRIPTION} when the run began, and would now by {now}"
        if not confirm(f"{what}. Continue?"):
            allowed = f"given as --may-pay {first}, for {what}"
            raise ConfigurationError("may_pay", ",".join(self._may_pay), allowed)

    def describe(self, plans: PlanLimits, now: float) -> Iterator[str]:
        """Yield what each agent pays by, and how much of its plan is used.

        Args:
            plans: The limits of the user's plans.
            now: Epoch seconds.
        """
        for name, payer in self._payers.items():
            if name == COMMAND:
                continue
            parts = [str(payer)]
            host, directory = account_of(self._launchers[name])
            if payer.kind != API_KEY and host is not None:
                limits = plans.account(host, directory, now).limits
                parts += [f"{brief_limit_words(limit)} used" for limit in limits]
            if not self._may_work(name):
                parts.append(f"not used without --may-pay {name}")
            yield f"{name}: {', '.join(parts)}"

    def _may_work(self, name: str) -> bool:
        by_itself = name == self._first or self._payers[name].kind == SUBSCRIPTION
        return by_itself or name in self._may_pay
