"""Wrappers that alert after a command of a tool: around a block, or around a function."""

from __future__ import annotations

from ultramon.alerts.check import check_and_alert_context
from ultramon.alerts.config import RUNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, Self, TextIO, TypeVar

    from ultramon.alerts.config import AlertConfig
    from ultramon.alerts.outcome import AlertOutcome
    from ultramon.system.clock import Clock

    P = ParamSpec("P")
    T = TypeVar("T")

_IS_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`, without the 20 ms of importing it."""


class alerting:
    """Checks the agent's context after a command that ended well; see `check_and_alert_context`.

    A context manager, and a decorator of functions and coroutine functions. Without effect on a
    command that raises or exits with another code than 0.

    Args:
        command: The name of the command; None = unnamed.
        every: Check only after every so many runs in a session, counted across processes; None = as
            configured for the command, else each time.
        session: The session; None = as for `check_and_alert_context`.
        directory: The project directory; None = as configured.
        stream: Where to write; None = `sys.stderr`.
        config: Settings; None = `AlertConfig()` at each check.
        clock: For tests; None = the system's.

    Attributes:
        outcome: Of the last check; None before.

    Raises:
        ConfigurationError: ``every`` is not a whole number from 1 to 1,000,000.
    """

    def __init__(
        self,
        command: str | None = None,
        *,
        every: int | None = None,
        session: str | None = None,
        directory: str | None = None,
        stream: TextIO | None = None,
        config: AlertConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.outcome: AlertOutcome | None = None
        self._arguments: dict[str, Any] = {
            "command": command,
            "every": None if every is None else RUNS.check("every", every),
            "session": session,
            "directory": directory,
            "stream": stream,
            "config": config,
            "clock": clock,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # A tool of the command line may end well by SystemExit too.
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.outcome = check_and_alert_context(**self._arguments)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with the check behind it."""
        from functools import wraps

        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _IS_COROUTINE:

            @wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self:
                    return await function(*args, **kwargs)  # type: ignore[misc]

            return run_async  # type: ignore[return-value]

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return run
