"""Whose words a prompt in a transcript are: a person's, the host's, or those of a first message.

Standard library only, because hooks import it.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.records import HOOKS, ULTRAMON
from ultramon.state.prompt_text import CONTINUED_WORDS, GOAL_HEADING, RULES_HEADING, SUCCESSOR_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HOOK_TAG, _HOOK_END = "<hook_context>", "</hook_context>"
# Beginnings of what ultramon's hooks say.
_OWN = (
    "Context window compacted at ",
    "[ultramon] ",
    "The user runs this job as a relay, and this context hands over now",
    RULES_HEADING,
)
_SKILL = "skill"
"""Codex adds one so."""


def is_host_text(text: str) -> bool:
    """Return whether a prompt is one of the host's own, which begin with a tag.

    Such as ``<command-name>`` or ``<environment_context>``; a person may begin with ``<div>``.
    """
    text = text.lstrip()
    if not text.startswith("<"):
        return False
    name = text[1:80].split(">", 1)[0].split(" ", 1)[0]
    words = name.replace("_", "-").split("-")
    is_tag = all(word.isalpha() and word.islower() for word in words)
    return is_tag and (len(words) > 1 or name == _SKILL)


def goal_in(text: str) -> str:
    """Return the user's part of a first message that a relay or ``ultramon continue`` has made.

    Of any other text all of it.
    """
    if not text.startswith(GOAL_HEADING):
        return text
    ends = [text.find(words) for words in (RULES_HEADING, CONTINUED_WORDS, SUCCESSOR_WORDS)]
    end = min((at for at in ends if at >= 0), default=len(text))
    return text[len(GOAL_HEADING) : end].strip()


def is_ultramons(text: str) -> bool:
    """Return whether a text for a conversation is one that ultramon's hooks write."""
    from ultramon.context.note import NOTE_END, NOTE_HEADING

    # A person may well begin with the heading, but not end so.
    is_note = text.startswith(NOTE_HEADING) and NOTE_END in text
    return is_note or text.startswith(_OWN)


def split_prompt(text: str, usual: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in a message that hooks may add to, each with its source.

    Args:
        text: Of the message, or of a part of it.
        usual: The source of what is no hook's.
    """
    marked, rest = _marked(text)
    for said in marked:
        yield said, ULTRAMON if is_ultramons(said.lstrip()) else HOOKS
    if rest:
        yield rest, ULTRAMON if is_ultramons(rest) else usual


def without_hook_texts(text: str) -> str:
    """Return a prompt without what hooks have put in front of it, each between two marks."""
    return _marked(text)[1]


def _marked(text: str) -> tuple[list[str], str]:
    """Return the texts of hooks that a message begins with, and what stands behind them."""
    marked: list[str] = []
    while text.startswith(_HOOK_TAG):
        said, found, rest = text.removeprefix(_HOOK_TAG).partition(_HOOK_END)
        if not found:
            break
        marked.append(said)
        text = rest.lstrip("\n")
    return marked, text
