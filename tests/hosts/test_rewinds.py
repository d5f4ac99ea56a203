"""What a person takes back begins anew in every client, and is no compaction."""

import pytest
from helpers.transcript_records import of

from ultramon.hosts.claude_code.reader import LineReader as ClaudeReader
from ultramon.hosts.codex.reader import LineReader as CodexReader
from ultramon.hosts.gemini.reader import LineReader as GeminiReader
from ultramon.hosts.qwen.reader import LineReader as QwenReader
from ultramon.hosts.transcripts.records import Boundary, Report, Rewind
from ultramon.recordings.summary import Summarizer
from ultramon.recordings.transcript_summary import TranscriptSummary


def claude_prompt(uuid, parent):
    content = {"role": "user", "content": "go"}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "message": content}


def claude_reply(uuid, parent, tokens):
    message = {"id": f"msg_{uuid}", "content": [], "usage": {"input_tokens": tokens}}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "message": message}


def qwen_prompt(uuid, parent):
    message = {"parts": [{"text": "go"}]}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "message": message}


def qwen_reply(uuid, parent, tokens):
    usage = {"promptTokenCount": tokens, "candidatesTokenCount": 5}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "usageMetadata": usage}


def codex_reply(tokens):
    usage = {"input_tokens": tokens, "output_tokens": 5}
    return {"type": "token_usage_record", "payload": {"response_id": f"r{tokens}", "usage": usage}}


REWINDS = {
    "claude-code": (
        lambda: ClaudeReader(None),
        [
            claude_prompt("p1", None), claude_reply("a1", "p1", 30_000),
            claude_prompt("p2", "a1"), claude_reply("a2", "p2", 160_000),
            claude_prompt("p3", "a1"), claude_reply("a3", "p3", 32_000),
        ],
    ),
    "codex": (
        CodexReader,
        [
            codex_reply(160_000),
            {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}},
            codex_reply(32_000), {"type": "event_msg", "payload": {"type": "turn_aborted"}},
        ],
    ),
    "gemini": (
        GeminiReader,
        [
            {"type": "gemini", "id": "1", "tokens": {"input": 160_000, "output": 5}},
            {"$rewindTo": "0"},
            {"type": "gemini", "id": "2", "tokens": {"input": 32_000, "output": 5}},
        ],
    ),
    "qwen": (
        QwenReader,
        [
            qwen_prompt("p1", None), qwen_reply("a1", "p1", 30_000),
            qwen_prompt("p2", "a1"), qwen_reply("a2", "p2", 160_000),
            qwen_prompt("p3", "a1"), qwen_reply("a3", "p3", 32_000),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REWINDS)
def test_a_rewind_throws_nothing_away(name):
    """The fall behind it counts as no compaction; the next fall without one does."""
    make_reader, entries = REWINDS[name]
    reader = make_reader()
    records = [record for entry in entries for record in reader.read(entry)]
    assert len(of(Rewind, records)) == 1
    assert not of(Boundary, records)
    summarizer = Summarizer(TranscriptSummary(name, "s"))
    for record in records:
        summarizer.feed(record)
    summarizer.feed(Report(None, None, None, 9_000, 0, 0, 5))
    found = summarizer.finish()
    reply_tokens = 0 if name == "claude-code" else 5
    assert (found.compactions, found.discarded_tokens) == (1, 32_000 + reply_tokens - 9_000)


@pytest.mark.parametrize("name", ["claude-code", "qwen"])
def test_a_prompt_that_follows_the_last_reply_is_no_rewind(name):
    """Each prompt continues the chain of the one before."""
    make_reader, entries = REWINDS[name]
    reader = make_reader()
    assert not of(Rewind, [one for entry in entries[:4] for one in reader.read(entry)])


@pytest.mark.parametrize("name", REWINDS)
def test_a_reader_that_continues_finds_the_same_rewind(name):
    """What was remembered of the prompts goes with its memory."""
    make_reader, entries = REWINDS[name]
    first = make_reader()
    records = [one for entry in entries[:-2] for one in first.read(entry)]
    kind = type(first)
    second = kind(None, first.memory()) if kind is ClaudeReader else kind(first.memory())
    records += [one for entry in entries[-2:] for one in second.read(entry)]
    assert len(of(Rewind, records)) == 1
