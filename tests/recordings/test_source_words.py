"""What people read of a source of tokens: one name on every screen."""

import re

import pytest
from helpers.html import Parsed
from helpers.program import run
from helpers.web_page import WebServing
from hypothesis import given
from hypothesis import strategies as st

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.agent_list import open_agent_list
from ultramon.cli.views.watch.source import Source
from ultramon.recordings.source_words import source_words, tokens_by_words
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.testing import make_record

NAMES = {
    "unrecorded": "not recorded",
    "user": "prompts",
    "reply": "replies",
    "thinking": "thinking",
    "images": "images",
    "summary": "summaries",
    "developer": "developer messages",
    "system": "system prompt",
    "tools": "built-in tools",
    "skills": "list of skills",
    "agents": "list of agents",
    "hooks": "texts of other hooks",
    "ultramon": "ultramon",
    "mcp:github": "MCP github",
    "memory:/srv/CLAUDE.md": "/srv/CLAUDE.md",
    "tool:Read": "Read",
    "tool:unknown": "unnamed tool",
    "tool:mcp__github__get_issue": "MCP github: get_issue",
    "tool:mcp__github": "mcp__github",
    "attachment:todo_reminder": "todo_reminder",
    "my own text": "my own text",
}


@pytest.mark.parametrize(("source", "words"), NAMES.items())
def test_a_source_has_a_name_for_people(source, words):
    """Of a server's tool the server too, as its definitions have it."""
    assert source_words(source) == words


@given(st.dictionaries(st.text(max_size=20) | st.sampled_from(sorted(NAMES)), st.integers(0, 9)))
def test_no_token_is_lost_where_sources_share_a_name(by_source):
    """A tool and an attachment may be called alike; the largest is first."""
    found = tokens_by_words(by_source)
    assert sum(found.values()) == sum(by_source.values())
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert set(found) == set(map(source_words, by_source))


def test_watch_explain_and_the_page_of_an_agent_name_sources_alike(tmp_path):
    """The same names, each once, in the same order."""
    sources = (
        "mcp:github", "tool:mcp__github__get_issue", "user", "system", "unrecorded", "tool:Read",
        "attachment:Read",
    )  # fmt: skip
    by_source = {name: 9_000 - 1_000 * number for number, name in enumerate(sources)}
    now = SYSTEM_CLOCK.now()
    record = make_record(
        "scout", by_source=by_source, started_at=now, last_heartbeat=now, last_activity=now
    )
    backend = LocalBackend(str(tmp_path))
    with backend.directory.locked("scout", 5.0):
        backend.directory.replace(record, durable=False)
    expected = [
        "MCP github", "MCP github: get_issue", "Read", "prompts", "system prompt", "not recorded",
    ]  # fmt: skip
    source = Source(backend, open_agent_list(backend, None, show_all=True, is_cut=True), None)
    (group,) = source.look(with_finished=True).groups
    why = source.why(group.rows[0])
    filled = why[why.index("WHAT FILLED THE WINDOW") + 1 :]
    assert [re.split(r"  +", line.strip())[2] for line in filled[:6]] == expected
    explained = run("explain", "scout", "--state-dir", tmp_path).stdout.splitlines()
    rows = [
        re.fullmatch(r" *[\d.]+ % +[\d,]+ +(?:measured|estimated|unknown) +(\S.*)", line)
        for line in explained
    ]
    assert [row[1].strip() for row in rows if row] == expected
    with WebServing(backend) as serving:
        page = Parsed(serving.visitor(now).get("/agent?id=scout").text)
    texts = [text for text in page.texts if text in expected]
    assert texts == expected
    backend.close()
