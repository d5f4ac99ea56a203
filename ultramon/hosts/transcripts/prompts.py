"""Whose words a prompt in a transcript are: a person's, the host's, or those of a first message.

Standard library only, because hooks import it.
"""

from __future__ import annotations

from ultramon.state.prompt_text import CONTINUED_WORDS, GOAL_HEADING, RULES_HEADING, SUCCESSOR_WORDS

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
