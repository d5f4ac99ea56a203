"""Adds up the records of one transcript, in bounded memory; continues where a reading stopped.

Tokens in a window are what the provider reported. Only which text they came from is estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.context.estimator import estimate_tokens, family_for_model
from ultramon.context.token_usage import TokenUsage
from ultramon.context.tracker import FALL_RATIO
from ultramon.hosts.transcripts.prompts import is_host_text
from ultramon.hosts.transcripts.records import (
    Billed,
    Boundary,
    Broken,
    Content,
    Image,
    LimitReached,
    Overflow,
    Report,
    Returned,
    Rewind,
    Standing,
    Window,
)
from ultramon.recordings.reply_keys import COMPACTION, MAX_KEYS, reply_key
from ultramon.recordings.series import Series
from ultramon.recordings.spending import SpendingSums, quarter_of
from ultramon.recordings.standing import StandingSums, is_standing, shows_use
from ultramon.recordings.transcript_summary import (
    SUMMARY,
    FilledWindow,
    TranscriptSummary,
)
from ultramon.recordings.usage import (
    MAYBE_READ_AGAIN,
    PLAN_HIT,
    READ_AGAIN,
    RESTART,
    SPENT,
    UsageSums,
    day_of,
    is_possible,
    usage_of,
)
from ultramon.recordings.window_parts import WindowParts
from ultramon.state.prompt_text import CONTINUED_WORDS, SUCCESSOR_WORDS

if TYPE_CHECKING:
    from ultramon.hosts.transcripts.records import Record

MAX_POINTS = 96
MAX_OPENING_CHARS = 80
MOST_WAIT_SECONDS = 5 * 3_600.0
"""Of one wait for a usage limit: a session that is continued days later did not wait for them."""
_MAX_NAME_CHARS = 400
_TOOL, _MAX_TOOLS = "tool:", 256


class Follower:
    """Is given each fact of a transcript once it is final, in the order in which they hold.

    Subclasses override what they follow.
    """

    def on_report(self, report: Report) -> None:
        """Take what the provider counted, all corrections included."""

    def on_text(self, content: Content) -> None:
        """Take a text that no report counts yet."""

    def on_window(self, window: Window) -> None:
        """Take the window that the host states."""

    def on_boundary(self, boundary: Boundary) -> None:
        """Take a compaction that the host recorded."""

    def on_overflow(self, overflow: Overflow) -> None:
        """Take a request that was refused because it was larger than the window."""


NO_FOLLOWER = Follower()


class Summarizer:
    """Adds up the records of one transcript.

    Args:
        summary: What the transcript says of its agent, or what was added up so far.
        memory: Of a summarizer of the records before, with its summary.
        follower: Is given each fact after it was added up.
    """

    def __init__(
        self,
        summary: TranscriptSummary,
        memory: dict[str, Any] | None = None,
        follower: Follower = NO_FOLLOWER,
    ) -> None:
        self._summary = summary
        self._follower = follower
        self._series = Series(MAX_POINTS)
        self._held: Report | None = None
        """The last report: corrections of it may still come, line by line behind it."""
        self._parts = WindowParts(summary, None if memory is None else memory["parts"])
        self._before_compaction: int | None = None
        self._compacted_at: list[int] = []
        self._is_rewound = False
        self._usage = UsageSums(summary.usage)
        self._spending = SpendingSums(summary.spending)
        self._billed: tuple[Report, bool] | None = None
        """The last report that was billed, and whether its input had been read before."""
        self._reads_again: str | None = None
        """Why the next request reads again what was read before: a kind of event."""
        self._is_summary_billed = False
        self._standing = StandingSums(
            summary.standing, None if memory is None else memory["standing"]
        )
        self._user_tokens = 0.0
        """Estimated, of the present window."""
        self._refused_at: float | None = None
        """When a usage limit was reached behind which no reply has come."""
        if memory is not None:
            self._user_tokens = memory["userTokens"]
            self._series.restore(memory["series"])
            if memory["held"] is not None:
                self._held = Report(**memory["held"])
            self._before_compaction = memory["beforeCompaction"]
            self._compacted_at = memory["compactedAt"]
            self._is_rewound = memory["isRewound"]
            if memory["billed"] is not None:
                self._billed = Report(**memory["billed"][0]), memory["billed"][1]
            self._reads_again = memory["readsAgain"]
            self._is_summary_billed = memory["isSummaryBilled"]
            self._refused_at = memory["refusedAt"]
        self._family = family_for_model(summary.model)

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "series": self._series.to_json(),
            "held": None if self._held is None else vars(self._held),
            "parts": self._parts.memory(),
            "beforeCompaction": self._before_compaction,
            "compactedAt": self._compacted_at,
            "isRewound": self._is_rewound,
            "billed": None if self._billed is None else (vars(self._billed[0]), self._billed[1]),
            "readsAgain": self._reads_again,
            "isSummaryBilled": self._is_summary_billed,
            "standing": self._standing.memory(),
            "userTokens": self._user_tokens,
            "refusedAt": self._refused_at,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the summary without what only the end of a transcript decides."""
        return self._summary.to_json()

    def feed(self, record: Record) -> None:
        """Take the next record."""
        summary = self._summary
        if isinstance(record, Broken):
            summary.broken_lines += 1
            return
        at = getattr(record, "at", None)
        # The report that waits has no key yet.
        is_copy = len(summary.keys) + (self._held is not None) < summary.copied
        if not is_copy and is_possible(at) and (summary.ended_at or 0) <= at:
            summary.ended_at = at
            if summary.started_at is None:
                summary.started_at = at
        if isinstance(record, Report):
            if not is_copy or record.update:
                summary.peak_tokens = max(summary.peak_tokens or 0, record.tokens)
            if not record.update:
                summary.reports += not is_copy
                self._flush()
                self._held = record
                self._parts.begin_reply()
            elif self._held is not None:
                self._held = record
            else:  # text came between, and it would take its place: only the bill changes
                self._correct_bill(record)
        elif isinstance(record, Content):
            if is_copy:
                self._take_copied_text(record)
                return
            if summary.first_prompt is None and record.source == "user":
                summary.first_prompt = _opening(record.text)
                if SUCCESSOR_WORDS in record.text or CONTINUED_WORDS in record.text:
                    self._reads_again = RESTART
            # A text that a report counts would be counted twice.
            if record.counted:
                if self._held is not None and self._held.thinking_tokens is None:
                    self._parts.see_reply(record, self._estimate)
            else:
                self._flush()
                self._take_text(record)
                self._follower.on_text(record)
        elif isinstance(record, Image):
            self._flush()
            if not is_copy:
                self._take_image(record)
        elif isinstance(record, Standing):
            self._flush()
            self._standing.replace(
                [(source, self._estimate(text)) for source, text in record.parts],
                is_whole=record.is_whole,
            )
        elif isinstance(record, Window):
            summary.window_tokens = record.tokens
            self._follower.on_window(record)
        elif isinstance(record, Returned) and is_copy:
            return
        elif isinstance(record, Returned):
            summary.returns[record.agent_id or ""] = record.has_text
        elif isinstance(record, Boundary):
            self._flush()
            if self._take_key(COMPACTION):
                self._parts.report = self._before_compaction = None
                self._parts.inherit()
                self._standing.close_window()
                return
            self._compact(record.post_tokens)
            self._follower.on_boundary(record)
        elif isinstance(record, LimitReached):
            self._flush()
            if not is_copy:
                self._usage.add(PLAN_HIT, day_of(record.at), summary.model, TokenUsage())
                # Who tries again meanwhile waits since the first refusal.
                if self._refused_at is None:
                    self._refused_at = record.at
        elif isinstance(record, Billed):
            self._flush()
            if not is_copy:
                self._bill_beside(record)
        elif isinstance(record, Rewind):
            self._flush()
            self._is_rewound = True
        elif isinstance(record, Overflow):
            self._flush()
            if is_copy:
                return
            summary.overflows += 1
            summary.has_ended_in_overflow = True
            self._follower.on_overflow(record)

    def present_window(self) -> FilledWindow:
        """Return what fills the window that is open; see `WindowParts.filled`."""
        self._flush()
        return self._parts.filled(self._standing.beside, self._standing.scale)

    def finish(self) -> TranscriptSummary:
        """Close the last window, and return the summary; nothing can be fed afterwards."""
        self._flush()
        self._standing.finish()
        self._close_window()
        if self._before_compaction is not None:
            self._summary.unmeasured_compactions += 1
        summary = self._summary
        summary.points = self._series.points
        last = len(self._series.points) - 1
        stretches = {min(at // self._series.stride, last) for at in self._compacted_at}
        summary.compaction_points = sorted(stretches) if last >= 0 else []
        return summary

    def _flush(self) -> None:
        """Count the report that waits for corrections: what follows is none."""
        report, self._held = self._held, None
        if report is not None:
            self._count(report)
            self._follower.on_report(report)

    def _count(self, report: Report) -> None:
        summary, tokens = self._summary, report.tokens
        model = report.requested_model or report.model
        if model is not None and model != summary.model:
            summary.model = model[:_MAX_NAME_CHARS]
            self._family = family_for_model(model)
        parts = self._parts
        self._standing.begin(tokens, sum(parts.by_source.values()), self._user_tokens)
        if self._take_key(reply_key(report)):
            parts.report = tokens, report.output_tokens
            self._billed, self._reads_again = None, RESTART
            parts.inherit()
            summary.last_tokens = tokens + report.output_tokens
            return
        # A host may compact without a line that says so; a fall between two reports shows it.
        if parts.report is not None and tokens < FALL_RATIO * parts.report[0]:
            if self._is_rewound:
                # A person took it back: nothing was thrown away.
                self._close_window(is_rewound=True)
            else:
                self._compact(None)
        else:
            parts.reconcile(tokens)
        self._is_rewound = False
        refused_at, self._refused_at = self._refused_at, None
        if refused_at is not None and report.at is not None:
            waited = max(report.at - refused_at, 0.0)
            summary.plan_wait_seconds += min(waited, MOST_WAIT_SECONDS)
        self._bill(report)
        if self._before_compaction is not None:
            summary.discarded_tokens += max(0, self._before_compaction - tokens)
            self._before_compaction = None
        self._standing.count()
        self._series.add(tokens)
        parts.count(report)
        summary.last_tokens = tokens + report.output_tokens
        summary.has_ended_in_overflow = False

    def _bill(self, report: Report) -> None:
        """Add what a report cost, and whether it had to be read again."""
        event, self._reads_again = self._reads_again, None
        self._is_summary_billed = False
        if event == RESTART:
            self._usage.add(RESTART, day_of(report.at), _model_of(report), TokenUsage())
        self._billed = report, event is not None
        self._add_bill(1)

    def _correct_bill(self, report: Report) -> None:
        if self._billed is not None and self._billed[0].message_id == report.message_id:
            self._add_bill(-1)
            self._billed = report, self._billed[1]
            self._add_bill(1)

    def _add_bill(self, count: int) -> None:
        assert self._billed is not None
        report, is_again = self._billed
        usage = usage_of(report)
        parts = [(SPENT, usage, report.cost_usd)]
        if is_again:
            # What no cache held was surely read again; what one held was perhaps.
            parts.append((READ_AGAIN, usage._replace(cache_read_tokens=0, output_tokens=0), None))
            parts.append((MAYBE_READ_AGAIN, TokenUsage(0, usage.cache_read_tokens), None))
        for kind, tokens, cost_usd in parts:
            self._usage.add(
                kind,
                day_of(report.at),
                _model_of(report),
                tokens,
                request_tokens=report.tokens,
                speed=report.speed,
                cost_usd=cost_usd,
                count=count,
            )
        self._spending.add(
            SPENT,
            quarter_of(report.at),
            _model_of(report),
            usage,
            request_tokens=report.tokens,
            speed=report.speed,
            cost_usd=report.cost_usd,
            count=count,
        )

    def _bill_beside(self, record: Billed) -> None:
        """Add a request that is no reading of the window."""
        usage, day = usage_of(record), day_of(record.at)
        self._is_summary_billed = self._is_summary_billed or record.is_summary
        parts = [(self._usage, SPENT, day), (self._spending, SPENT, quarter_of(record.at))]
        if record.is_summary:
            parts.append((self._usage, READ_AGAIN, day))
        for sums, kind, period in parts:
            sums.add(
                kind,
                period,
                record.model,
                usage,
                request_tokens=usage.input_side_tokens,
                speed=record.speed,
            )

    def _take_key(self, key: str) -> bool:
        """Note a reply or a compaction; return whether it is copied from another transcript."""
        keys = self._summary.keys
        is_copy = len(keys) < self._summary.copied
        if len(keys) < MAX_KEYS:
            keys.append(key)
        return is_copy

    def _take_text(self, content: Content) -> None:
        tokens = self._estimate(content.text)
        is_prompt = self._say(content, tokens)
        if content.source.startswith(_TOOL):
            self._note_tool(content.source.removeprefix(_TOOL))
        self._parts.take_text(content, tokens, is_prompt=is_prompt)

    def _note_tool(self, tool: str) -> None:
        tools, name = self._summary.tools, tool[:_MAX_NAME_CHARS]
        if len(tools) < _MAX_TOOLS and shows_use(name) and name not in tools:
            tools.append(name)

    def _take_image(self, image: Image) -> None:
        if image.tool is not None:
            self._note_tool(image.tool)
        tokens = self._parts.take_image(image)
        if not self._standing.is_begun:
            self._user_tokens += tokens or 0

    def _take_copied_text(self, content: Content) -> None:
        """Take what a copied text says of later requests; what it brought is counted elsewhere."""
        if content.counted:
            return
        self._flush()
        is_first = not self._standing.is_begun
        if is_first or is_standing(content.source):
            tokens = self._estimate(content.text)
            self._say(content, tokens)
            if is_first:  # only until the first reply, which is copied too
                self._parts.add(content.source, tokens)

    def _say(self, content: Content, tokens: float) -> bool:
        """Take what a text says of later requests; return whether a person wrote it."""
        if is_standing(content.source):
            self._standing.say(content.source, tokens)
        is_prompt = content.source == "user" and not content.by_host
        if is_prompt:
            self._user_tokens += tokens
        return is_prompt

    def _estimate(self, text: str) -> float:
        return estimate_tokens(text, self._family, sample=True)

    def _compact(self, tokens_after: int | None) -> None:
        summary = self._summary
        if self._before_compaction is not None:
            summary.unmeasured_compactions += 1
        self._before_compaction = self._parts.held_tokens
        summary.unmeasured_compactions += self._before_compaction is None
        day, held = day_of(summary.ended_at), self._before_compaction or 0
        self._usage.add(COMPACTION, day, summary.model, TokenUsage())
        # A summary that the host lists as a request of its own is billed there.
        if held and not self._is_summary_billed:
            usage = TokenUsage(0, held, 0, 0, tokens_after or 0)
            self._usage.add(MAYBE_READ_AGAIN, day, summary.model, usage, request_tokens=held)
        self._reads_again = COMPACTION
        self._close_window()
        summary.compactions += 1
        summary.last_tokens = None
        summary.has_ended_in_overflow = False
        # More marks than points could not be drawn apart.
        if len(self._compacted_at) < MAX_POINTS:
            self._compacted_at.append(self._series.count)
        if tokens_after:
            self._parts.add(SUMMARY, tokens_after)

    def _close_window(self, *, is_rewound: bool = False) -> None:
        """Add up what filled the window that ends here."""
        self._parts.close(self.present_window())
        self._user_tokens = 0.0
        self._standing.close_window(is_rewound=is_rewound)


def _model_of(report: Report) -> str | None:
    """Return the model whose price holds: the one that answered."""
    return report.model or report.requested_model


def _opening(text: str) -> str | None:
    """Return the first line of a prompt that a person wrote, cut; None where it is the host's."""
    line = next((line for line in text.split("\n") if line.strip()), "").strip()
    return line[:MAX_OPENING_CHARS] if line and not is_host_text(line) else None
