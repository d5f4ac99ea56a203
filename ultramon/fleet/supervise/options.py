"""What a call of `Fleet.supervise` may choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ultramon.fleet.supervise.result import SupervisorEvent
    from ultramon.fleet.supervise.verification import Verdict


class SupervisorOptions(TypedDict, total=False):
    """The keywords of `Fleet.supervise`.

    Attributes:
        workers: How many contexts run at the same time; 1 and more, default 1.
        verify: Called with an item that its agent says is done, in a thread; true = it is. What
            raises counts as false; a `Rejection` is false with a reason. A coroutine function in
            `supervise_async`. After an early stop a call is waited for as long as agents are; a
            thread does not outlive the program.
        enforce: Whether to end a process whose agent should return and does not within
            ``grace_seconds``; default False. An agent that has ended has as long to exit, always.
        grace_seconds: How long agents have to hand off, 0 and more; default 30.
        max_restarts: So often in a row contexts that made no progress are followed by others,
            each time after a longer pause; then this call ends. Default 10. Three that failed alike
            end it before, unless one or two items explain that.
        max_contexts: How many contexts this call may start; None (default) = any number.
        deadline_seconds: After so long agents are asked to hand off; None (default) = never.
        on_event: Called with each `SupervisorEvent`; what it raises is logged.
        adopt: Called once for each context that an orchestrator before this one has left open, with
            its agent id; returns what stands for its process, running or ended, as `spawn` does,
            or None: then it is watched by its pid. After a `StateError` it is called again.
            Default None.
        recheck: Whether to call `verify` again for every item where all of them were verified by an
            earlier call; those that it denies are reopened. A run that is not finished is continued
            and nothing that was verified is asked again. Default False.
        recheck_at_end: Whether to call `verify` once more for every verified item when nothing is
            left, as later items may have undone it. Those that it denies are reopened; what it
            denies a third time is set aside. Default False.
        item_of: Called with the name of each task that an agent records; returns the item it is
            about, None = none. Default: the name is the item.
        may_start: Called before a context is given work; false = not now, and it is called again
            at the next step. Default None: whenever there is work.
        may_take: Called with the items that running contexts have in work or that are being
            verified; returns what says of an open item whether a context may get it now. Where no
            context runs and none of what is left may begin, the call stops as ``blocked``.
            Default None: any item.
        most_items: Called before a context is given work; returns how many items it may get, 1 and
            more: those that one context left, all of them, and fresh ones up to that number.
            Default None: those that one context left, or an even share of the fresh ones.
    """

    workers: int
    verify: Callable[[str], Verdict | Awaitable[Verdict]] | None
    enforce: bool
    grace_seconds: float
    max_restarts: int
    max_contexts: int | None
    deadline_seconds: float | None
    on_event: Callable[[SupervisorEvent], object] | None
    adopt: Callable[[str], Any] | None
    recheck: bool
    recheck_at_end: bool
    item_of: Callable[[str], str | None]
    may_start: Callable[[], bool] | None
    may_take: Callable[[frozenset[str]], Callable[[str], bool]] | None
    most_items: Callable[[], int] | None
