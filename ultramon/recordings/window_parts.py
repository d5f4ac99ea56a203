"""What fills the window of one transcript that is open, part by part, while its records are read.

Tokens in a window are what the provider reported. Only which text they came from is estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.context.tracker import REPLY
from ultramon.hosts.transcripts.records import IMAGES, THINKING
from ultramon.recordings.image_sizes import image_tokens
from ultramon.recordings.standing import add_tokens, is_standing
from ultramon.recordings.transcript_summary import UNRECORDED, FilledWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.hosts.transcripts.records import Content, Image, Report
    from ultramon.recordings.transcript_summary import TranscriptSummary

_MAX_SOURCES = 64
_MAX_FILES = 400
_MAX_NAME_CHARS = 400


class WindowParts:
    """The parts of one window after the other.

    Args:
        summary: Takes what entered each window.
        memory: Of parts that were made with the records before.

    Attributes:
        by_source: Tokens by what brought them.
        report: Tokens of the window's last report, and of its reply; None = there is none.
        inherited: Tokens of the window that were copied with it.
    """

    def __init__(self, summary: TranscriptSummary, memory: dict[str, Any] | None = None) -> None:
        self._summary = summary
        self.by_source: dict[str, float] = {}
        self._measured: dict[str, float] = {}
        """Of these, what the provider counted."""
        self._by_file: dict[str, float] = {}
        """Of these, what calls brought that name a file."""
        self._text_tokens = 0.0
        """Estimated, since the last report."""
        self.report: tuple[int, int] | None = None
        self.inherited = 0
        self._has_thought, self._shown_tokens = False, 0.0
        """Whether the reply that waits holds thinking of a size that is not stated, and what else
        it holds, estimated."""
        self._has_prompt = False
        """Whether a prompt of a person came since the last report."""
        self._unsized: list[str | None] = []
        """Of images of unknown size since that report, the files."""
        if memory is not None:
            self.by_source, self._measured = memory["bySource"], memory["measured"]
            self._by_file, self._text_tokens = memory["byFile"], memory["textTokens"]
            self.report = None if memory["report"] is None else tuple(memory["report"])
            self.inherited = memory["inherited"]
            self._has_thought, self._shown_tokens = memory["hasThought"], memory["shownTokens"]
            self._has_prompt, self._unsized = memory["hasPrompt"], memory["unsized"]

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "bySource": self.by_source,
            "measured": self._measured,
            "byFile": self._by_file,
            "textTokens": self._text_tokens,
            "report": self.report,
            "inherited": self.inherited,
            "hasThought": self._has_thought,
            "shownTokens": self._shown_tokens,
            "hasPrompt": self._has_prompt,
            "unsized": self._unsized,
        }

    @property
    def held_tokens(self) -> int | None:
        """Tokens of the last report with its reply; None = there is none."""
        return None if self.report is None else sum(self.report)

    def add(self, source: str, tokens: float) -> None:
        """Take tokens that a report counts already, or that no text stands for."""
        add_tokens(self.by_source, source, tokens, _MAX_SOURCES)

    def take_text(self, content: Content, tokens: float, *, is_prompt: bool) -> None:
        """Take a text that no report counts yet.

        Args:
            content: The text.
            tokens: Estimated.
            is_prompt: Whether a person wrote it.
        """
        self._text_tokens += tokens
        self._has_prompt = self._has_prompt or is_prompt
        self.add(content.source, tokens)
        if content.file is not None:
            add_tokens(self._by_file, content.file, tokens, _MAX_FILES)

    def take_image(self, image: Image) -> int | None:
        """Take an image; return its estimated tokens, None where these are not known."""
        tokens = image_tokens(image, self._summary.model)
        if tokens is None:
            if len(self._unsized) < _MAX_FILES:
                self._unsized.append(image.file and image.file[:_MAX_NAME_CHARS])
            return None
        self._text_tokens += tokens
        self.add(IMAGES, tokens)
        if image.file is not None:
            add_tokens(self._by_file, image.file, tokens, _MAX_FILES)
        return tokens

    def begin_reply(self) -> None:
        """Let another reply wait for what it shows."""
        self._has_thought, self._shown_tokens = False, 0.0

    def see_reply(self, content: Content, estimate: Callable[[str], float]) -> None:
        """Note what a reply shows whose thinking is not stated: the rest of its tokens it was."""
        if content.source == THINKING:
            self._has_thought = True
        elif self._has_thought:
            self._shown_tokens += estimate(content.text)

    def reconcile(self, tokens: int) -> None:
        """Take what a count says of the window before it: what is gone, how large an image is."""
        if self.report is not None:
            missing = sum(self.report) + self._text_tokens - tokens
            thought = self.by_source.get(THINKING, 0.0)
            # Some models keep what they thought in earlier turns, and for others the provider drops
            # it when a person has written: no line says which, but the count does.
            if thought and self._has_prompt and missing > thought / 2:
                self._take_away_thinking()
                missing -= thought
            if self._unsized and missing < 0:
                self.add(IMAGES, -missing)
                for file in filter(None, self._unsized):
                    add_tokens(self._by_file, file, -missing / len(self._unsized), _MAX_FILES)

    def count(self, report: Report) -> None:
        """Take a count of the provider, with its reply."""
        self._has_prompt, self._unsized = False, []
        self.report, self._text_tokens = (report.tokens, report.output_tokens), 0.0
        output, stated = report.output_tokens, report.thinking_tokens
        is_measured = stated is not None or not self._has_thought
        thought: float = min(stated or 0, output)
        if not is_measured:
            thought = max(0.0, output - self._shown_tokens)
        for source, tokens in ((REPLY, output - thought), (THINKING, thought)):
            if tokens or source == REPLY:
                self.add(source, tokens)
                if is_measured:
                    add_tokens(self._measured, source, tokens, _MAX_SOURCES)
        self.begin_reply()

    def filled(self, beside: Mapping[str, float], scale: float | None) -> FilledWindow:
        """Return what fills the window.

        Where the provider has counted them, their sum is its count and what came since.

        Args:
            beside: Estimated tokens of what is no message, by source.
            scale: Of the provider's count to estimates of what stands in every request; None =
                unknown.
        """
        parts, files = dict(self.by_source), dict(self._by_file)
        measured = dict(self._measured)
        if self.report is None:
            return FilledWindow(parts, measured, files)
        # Copied with the window, it is counted where that one began.
        for source, tokens in beside.items() if not self.inherited else ():
            add_tokens(parts, source, tokens, _MAX_SOURCES)
        if scale is not None:
            for source in filter(is_standing, parts):
                parts[source] = measured[source] = parts[source] * scale
        held = sum(self.report) + self._text_tokens - self.inherited
        explained = sum(parts.values())
        if explained > held:
            # What is estimated was estimated too high, or part of it is gone; an image by the
            # provider's own formula is the last to be doubted.
            known = {**measured, IMAGES: parts.get(IMAGES, 0.0)}
            if sum(known.values()) > held:
                known = measured
            sure = sum(known.values())
            ratio = max(0.0, held - sure) / (explained - sure) if explained > sure else 1.0
            for source, tokens in parts.items():
                least = known.get(source, 0.0)
                parts[source] = least + (tokens - least) * ratio
            files = {name: tokens * ratio for name, tokens in files.items()}
        add_tokens(parts, UNRECORDED, max(0.0, held - explained), _MAX_SOURCES)
        return FilledWindow(parts, measured, files)

    def close(self, window: FilledWindow) -> None:
        """Add up what filled the window that ends here, and begin an empty one."""
        summary = self._summary
        for held, entered, most in (
            (window.by_source, summary.tokens_by_source, _MAX_SOURCES),
            (window.measured, summary.measured_by_source, _MAX_SOURCES),
            (window.by_file, summary.tokens_by_file, _MAX_FILES),
        ):
            for name, tokens in held.items():
                add_tokens(entered, name, tokens, most)
        self._clear()
        self.report, self.inherited = None, 0

    def inherit(self) -> None:
        """Let the window begin with what was copied, which has been counted elsewhere."""
        self.inherited = self.held_tokens or 0
        self._clear()

    def _clear(self) -> None:
        self.by_source, self._measured, self._by_file = {}, {}, {}
        self._text_tokens = 0.0

    def _take_away_thinking(self) -> None:
        """Count the thinking so far as having entered the window, and no longer as held."""
        held = (
            (self.by_source, self._summary.tokens_by_source),
            (self._measured, self._summary.measured_by_source),
        )
        for window, entered in held:
            if tokens := window.pop(THINKING, 0.0):
                add_tokens(entered, THINKING, tokens, _MAX_SOURCES)
