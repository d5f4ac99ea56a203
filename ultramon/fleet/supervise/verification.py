"""Runs the user's `verify` beside the supervisor, in threads or in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from concurrent.futures import CancelledError, Executor, Future
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]

_log = logging.getLogger("ultramon.fleet")


class Rejection(NamedTuple):
    """What `verify` may return in the place of False: why an item is not confirmed."""

    reason: str
    is_final: bool = False
    """Whether another context would fare no better: the item is set aside."""

    def __bool__(self) -> bool:
        return False


class Undecided:
    """What `verify` may return where it stops the run: the claim stays one, for the next call."""


Verdict = bool | Rejection | Undecided


def reason_of(verdict: Verdict) -> str:
    """Return why an item is not confirmed."""
    return verdict.reason if isinstance(verdict, Rejection) else "not verified"


class Verdicts(NamedTuple):
    """The verdicts about some claims."""

    verified: list[str]
    rejected: dict[str, str]
    """With the reason."""
    final: list[str]
    """Those of the rejected that are set aside at once."""


class Verification:
    """Asks `verify` about claims, each once per context and attempt.

    Args:
        verify: The user's function; a coroutine function runs in `loop`.
        workers: How many calls at the same time.
        executor: Makes the calls; None = threads.

    Attributes:
        loop: For a coroutine function.
        undecided: Items about which it had to leave the verdict to a later call.
        errors: Items for which it raised, with the last error.
    """

    def __init__(
        self, verify: Callable[[str], Any], workers: int, executor: Executor | None = None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.undecided: set[str] = set()
        self.errors: dict[str, str] = {}
        self._verify = verify
        self._executor = executor or DaemonThreads(workers)
        self._free = asyncio.Semaphore(workers)
        self._answers: dict[tuple[str, int, str], Future[Verdict]] = {}

    def ask(self, agent_id: str, items: Iterable[str], attempt: int) -> Verdicts:
        """Have claims verified, and return the verdicts that are new; ask again until all are.

        Args:
            agent_id: The context that claims them.
            items: What it claims and is not judged yet in this attempt.
            attempt: 0 for the first time.
        """
        verdicts = Verdicts([], {}, [])
        for name in items:
            key = (agent_id, attempt, name)
            if name in self.undecided:
                continue
            if key not in self._answers:
                self._answers[key] = self._submit(name)
            elif self._answers[key].done():
                self._judge(name, self._answers.pop(key), verdicts)
        return verdicts

    def has_news(self) -> bool:
        """Return whether there are verdicts that `ask` has not returned yet."""
        return any(answer.done() for answer in self._answers.values())

    def close(self) -> None:
        """Leave the threads: nothing waits for a call that has not ended."""
        for answer in self._answers.values():
            answer.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _submit(self, name: str) -> Future[Verdict]:
        if inspect.iscoroutinefunction(self._verify) and self.loop is not None:
            return asyncio.run_coroutine_threadsafe(self._verify_async(name), self.loop)
        return self._executor.submit(self._verify_now, name)

    def _verify_now(self, name: str) -> Verdict:
        verdict = self._verify(name)
        if inspect.isawaitable(verdict):
            raise TypeError("an async verify needs Fleet.supervise_async")
        return _verdict(verdict)

    async def _verify_async(self, name: str) -> Verdict:
        async with self._free:
            return _verdict(await self._verify(name))

    def _judge(self, name: str, answer: Future[Verdict], verdicts: Verdicts) -> None:
        error = CancelledError() if answer.cancelled() else answer.exception()
        verdict = False if error is not None else answer.result()
        if isinstance(verdict, Undecided):
            self.undecided.add(name)
            return
        if verdict:
            verdicts.verified.append(name)
            return
        reason = reason_of(verdict)
        if isinstance(verdict, Rejection) and verdict.is_final:
            verdicts.final.append(name)
        if error is not None:
            reason = f"verify raised {type(error).__name__}: {error}"
            if self.errors.get(name) != reason:
                _log.warning("item %r: %s", name, reason, exc_info=error)
            self.errors[name] = reason
        verdicts.rejected[name] = reason


def _verdict(value: Any) -> Verdict:
    return value if isinstance(value, Rejection | Undecided) else bool(value)


class DaemonThreads(Executor):
    """Makes calls in threads that end with the program.

    Those of a `ThreadPoolExecutor` are waited for first: a call that never returns, e.g. a command
    that waits for input, would keep the program from ending.

    Args:
        count: How many calls at the same time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._calls: deque[Call] = deque()
        self._lock = threading.Lock()

    def submit(  # type: ignore[override]
        self, function: Callable[..., Any], /, *arguments: Any
    ) -> Future[Any]:
        """Have a call made when a thread is free."""
        future: Future[Any] = Future()
        with self._lock:
            self._calls.append((future, function, arguments))
            if self._free:
                self._free -= 1
                threading.Thread(target=self._work, name="ultramon-verify", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._free += 1
                    return
                future, function, arguments = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - the caller of result() gets it
                future.set_exception(error)
