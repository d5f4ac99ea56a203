"""What has become of a relay: facts that were measured, and the lines that say them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ultramon.prices.cost import cost_words
from ultramon.relay.launchers.outcome import SpentTokens
from ultramon.state.plan import DONE
from ultramon.system.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ultramon.fleet.supervise.result import SupervisorResult
    from ultramon.relay.choices import RelayChoices
    from ultramon.relay.merge.queue import MergeCounts
    from ultramon.relay.runs.context_record import ContextRecord
    from ultramon.relay.workspace import WorkspaceSummary

BUDGET, REFUSED, FAILED, INTERRUPTED, GAVE_UP = (
    "budget", "refused", "failed", "interrupted", "gave_up",
)  # fmt: skip
MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a relay stopped before every item was settled.

    Attributes:
        kind: ``budget``, ``refused``, ``failed``, ``interrupted`` or ``gave_up``.
        words: What happened, in one sentence.
        advice: What may be added to the command line to get further.
    """

    kind: str
    words: str
    advice: tuple[str, ...] = ()

    @classmethod
    def budget(cls, words: str) -> Stop:
        """Return the stop at a budget."""
        return cls(BUDGET, words)

    @classmethod
    def failed(cls, words: str) -> Stop:
        """Return the stop for what the host or the provider said."""
        return cls(FAILED, words)

    @classmethod
    def refused(cls, count: int, advice: Sequence[str]) -> Stop:
        """Return the stop for calls that permissions refuse."""
        words = f"no progress, and {plural(count, 'call')} denied in the last context"
        return cls(REFUSED, words, tuple(advice))

    @classmethod
    def of(cls, result: SupervisorResult, choices: RelayChoices) -> Stop | None:
        """Return why the supervisor stopped early; None = it did not."""
        if result.stopped is None:
            return None
        if result.stopped == "max_contexts":
            return cls(
                BUDGET, f"the budget of {plural(choices.max_contexts, 'context')} is used up"
            )
        if result.stopped == "deadline":
            return cls(BUDGET, "the time is up")
        if result.stopped == "blocked":
            return cls(GAVE_UP, "what is left waits for items that were set aside")
        if result.stopped in ("max_restarts", "broken_worker"):
            return cls(GAVE_UP, "one context after the other ended early, without progress")
        return cls(INTERRUPTED, "interrupted")


@dataclass(frozen=True, slots=True)
class RelayResult:
    """The outcome of a run so far, all calls included.

    Attributes:
        run: The run.
        work: What has become of its items; of a job without a list there is one, the goal.
        has_items: Whether there was a list.
        is_checked: Whether a command checks what agents claim.
        stop: Why it stopped early; None = it did not.
        contexts: The contexts.
        compactions: How often a context was compacted by its host.
        tasks: Of a job without a list: the tasks of its agents and their last status.
        workspace: Commits and uncommitted files.
        merges: What the merge queue did in this call; None = nothing was merged.
        is_tree_checked: Whether the whole tree was checked before each move of the branch.
        waits_for: Items that cannot begin, each with one that it waits for.
        kept: Where the work of items that were set aside is kept, by item: refs.
    """

    run: str
    work: SupervisorResult
    has_items: bool
    is_checked: bool
    stop: Stop | None
    contexts: tuple[ContextRecord, ...]
    compactions: int
    tasks: dict[str, str] | None
    workspace: WorkspaceSummary
    merges: MergeCounts | None = None
    is_tree_checked: bool = False
    waits_for: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything is verified, or claimed where no check was given."""
        work = self.work
        is_short = work.left or work.set_aside or work.lost or self._unconfirmed
        return self.stop is None and not is_short

    @property
    def _unconfirmed(self) -> int:
        return self.work.counts.claimed if self.is_checked else 0

    @property
    def seconds(self) -> float:
        """How long the contexts ran together."""
        return sum((one.ended_at or one.started_at) - one.started_at for one in self.contexts)

    @property
    def spent(self) -> SpentTokens:
        """The tokens of all contexts."""
        return sum((one.spent for one in self.contexts), SpentTokens())

    @property
    def cost_usd(self) -> float | None:
        """The cost of all contexts, as far as it is known; None = of none it is.

        As the host estimates, else at list price.
        """
        known = [one.usd for one in self.contexts if one.usd is not None]
        return sum(known) if known else None

    @property
    def _cost_words(self) -> str:
        is_whole = all(one.usd is not None for one in self.contexts)
        return cost_words(self.cost_usd, is_whole=is_whole)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "run": self.run,
            "ok": self.ok,
            "work": self.work.to_json(),
            "stop": None if self.stop is None else asdict(self.stop),
            "contexts": [asdict(one) for one in self.contexts],
            "compactions": self.compactions,
            "tasks": self.tasks,
            "workspace": asdict(self.workspace),
            "merges": None if self.merges is None else self.merges._asdict(),
            "isTreeChecked": self.is_tree_checked,
            "waitsFor": self.waits_for,
            "kept": self.kept,
            "seconds": round(self.seconds, 3),
            "spent": asdict(self.spent),
            "costUsd": self.cost_usd,
        }

    def facts(self) -> dict[str, str]:
        """Return what was measured, by name, for people."""
        counts, tree = self.work.counts, self.workspace
        cached, total = self.spent.cache_read_tokens, self.spent.all_input_tokens
        return {
            "verified": f"{counts.verified:,} of {counts.assigned:,}",
            "only claimed": f"{counts.claimed:,}",
            "set aside or left": f"{counts.set_aside + counts.left:,}",
            "contexts": f"{len(self.work.contexts):,}",
            "compactions": f"{self.compactions:,}",
            "killed": f"{self.work.killed:,}",
            "repeated": f"{len(self.work.repeated):,}",
            "begun again": f"{len(self.work.begun_again):,}",
            "time": duration(self.seconds),
            "input tokens": millions(total) if total else "?",
            "of them not cached": millions(total - cached) if total else "?",
            "list price": "?" if self.cost_usd is None else self._cost_words,
            "commits": f"{tree.commit_count:,}",
            "branch": tree.branch or "-",
        }

    def lines(self, exit_code: int) -> Iterator[str]:
        """Yield what a person reads at the end."""
        yield self._items_line() if self.has_items else self._goal_line()
        for name, reason in list(self.work.set_aside.items())[:MAX_NAMED]:
            if self.has_items:
                kept = f"; kept at {self.kept[name]}" if name in self.kept else ""
                yield f"set aside: {name}: {reason}{kept}"
        for name, other in list(self.waits_for.items())[:MAX_NAMED]:
            yield f"cannot begin: {name} waits for {other}"
        yield self._contexts_line()
        yield f"{self._workspace_line()} · exit {exit_code}"
        if self.stop is not None:
            yield f"stopped: {self.stop.words}"
            for one in self.stop.advice:
                yield f"this would allow it: -- {one}"

    def _items_line(self) -> str:
        counts = self.work.counts
        claimed = "only claimed" if self.is_checked else "claimed, not checked"
        parts = [
            (counts.verified, "verified"),
            (counts.claimed, claimed),
            (counts.set_aside, "set aside"),
            (counts.left, "left"),
        ]
        shown = [f"{count:,} {word}" for count, word in parts if count] or ["0"]
        text = f"{counts.assigned:,} assigned = {' + '.join(shown)}"
        if earlier := self.work.describe_earlier():
            text += f" ({earlier})"
        lost = len(self.work.lost)
        return f"{text}; {lost} lost: please report this" if lost else text

    def _goal_line(self) -> str:
        counts = self.work.counts
        if counts.verified:
            text = "goal: verified"
        elif counts.claimed:
            text = "goal: only claimed" if self.is_checked else "goal: the agent ended normally"
        else:
            text = "goal: not reached"
            reason = next(iter(self.work.set_aside.values()), None)
            text += f" ({reason})" if reason else ""
        if not self.tasks:
            return f"{text} · no plan recorded"
        done = sum(status == DONE for status in self.tasks.values())
        return f"{text} · {plural(len(self.tasks), 'task')}, {done:,} done"

    def _contexts_line(self) -> str:
        work = self.work
        parts = [
            plural(len(work.contexts), "context"),
            plural(self.compactions, "compaction"),
            f"{work.killed} killed",
            f"{len(work.repeated)} repeated",
            f"{len(work.begun_again)} begun again",
            duration(self.seconds),
        ]
        cached, total = self.spent.cache_read_tokens, self.spent.all_input_tokens
        if total:
            parts.append(f"{millions(total)} input tokens ({cached * 100 // total} % cached)")
        if self.cost_usd is not None:
            parts.append(f"{self._cost_words} at list price")
        return " · ".join(parts)

    def _workspace_line(self) -> str:
        tree = self.workspace
        if tree.head is None and tree.branch is None:
            return "no git repository: nothing is checkpointed"
        if self.merges is not None:
            whole = "each move checked as a whole" if self.is_tree_checked else "item checks only"
            if self.merges.foreign:
                whole += f", but {plural(self.merges.foreign, 'move')} by others"
            asides = f", {plural(self.merges.conflicts, 'conflict')}, {self.merges.red} red"
            merged = f"{self.merges.merged} merged{asides}"
            return f"{tree.branch}@{(tree.head or '')[:9]}: {whole} · {merged}"
        where = tree.branch or "a detached head"
        dirty = plural(tree.dirty_count, "file")
        return f"{plural(tree.commit_count, 'commit')} on {where}, {dirty} uncommitted"


def duration(seconds: float) -> str:
    """Return a time span for people: ``48 s``, ``52 min``, ``4 h``, ``1 h 30 min``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    shown = f"{hours} h" if hours else ""
    return f"{shown} {minutes} min".strip() if minutes or not hours else shown


def millions(tokens: int) -> str:
    """Return a large number of tokens in few characters: ``950``, ``41k``, ``4.1 M``."""
    if tokens < 1_000:
        return f"{tokens}"
    return f"{tokens / 1_000:.0f}k" if tokens < 950_000 else f"{tokens / 1_000_000:.1f} M"
