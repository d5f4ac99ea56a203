"""The transcript of Claude Code is read as recorded, whatever its spelling."""

import json
import sys
import time

import pytest
from helpers import DATA
from helpers.transcript_lines import line, prompt, reply
from helpers.transcript_records import of

from ultramon.context.note import write_note
from ultramon.hosts.claude_code.reader import (
    identify,
    is_beside_requests,
    is_ignorable,
    looks_like_transcript,
    read_transcript,
)
from ultramon.hosts.transcripts.records import (
    Boundary,
    Broken,
    Content,
    Overflow,
    Report,
    Returned,
    Standing,
)

NOTE = write_note(9, 10, reading=("usage", 0.0), now=1.0)
RECORDED = DATA / "captures" / "claude-code-2.1.330"
R1_SUBAGENT = "a1e58397a453a09b2"


def recorded(name, **options):
    """The records of a recorded transcript."""
    with (RECORDED / name).open("rb") as file:
        return list(read_transcript(file, **options))


def read(*entries):
    """The records of entries, each written as one line."""
    return list(read_transcript(map(line, entries)))


def test_a_recorded_session_gives_its_reports_and_compactions():
    """Each response once, with what was in the window; both automatic compactions."""
    records = recorded("transcript_r3_main.jsonl")
    assert [report.tokens for report in of(Report, records)] == [20012, 121014, 196014, 9014, 9516]
    compactions = [(boundary.trigger, boundary.post_tokens) for boundary in of(Boundary, records)]
    assert compactions == [("auto", 2760), ("auto", 2761)]
    kinds = [type(r).__name__ for r in records if isinstance(r, Report | Boundary)]
    assert kinds == ["Report", "Report", "Boundary", "Report", "Boundary", "Report", "Report"]
    assert of(Broken, records) == []


def test_a_message_of_two_blocks_is_reported_once():
    """The client writes a line per content block, both with the usage of the whole message."""
    records = recorded("transcript_r1_main.jsonl")
    ids = [report.message_id for report in of(Report, records)]
    assert ids.count("msg_fake0002") == 1
    assert len(ids) == len(set(ids)) == 5
    blocks = [r.text for r in records if isinstance(r, Content) and r.source == "assistant"]
    assert blocks[:2] == ["Listing.", "Bash\necho hi; ls\nlist"]


def test_a_report_carries_everything_the_line_says():
    """Model, requested model, time and id come along."""
    (report, *_) = of(Report, recorded("transcript_r1_subagent.jsonl"))
    assert report == Report(
        message_id="msg_fake0011",
        model="claude-sonnet-4-5",
        requested_model="claude-sonnet-4-5",
        input_tokens=9,
        cache_read_tokens=0,
        cache_creation_tokens=8000,
        output_tokens=30,
        at=1795292864.066,
    )


def test_tool_results_name_their_tool():
    """The name stands in the earlier call, the result only has its id."""
    sources = [r.source for r in of(Content, recorded("transcript_r1_main.jsonl"))]
    assert [s for s in sources if s.startswith("tool:")] == ["tool:Bash", "tool:Read", "tool:Agent"]


def test_injected_text_is_read_as_the_model_saw_it():
    """An attachment counts with the wrapper the client put around it."""
    contents = of(Content, recorded("transcript_r3_main.jsonl"))
    assert contents[0].source == "hooks"
    assert contents[0].text == (
        "<system-reminder>\nSessionStart hook additional context: "
        "ULTRAMON-INJECT SessionStart agent=main\n</system-reminder>"
    )
    sources = {content.source for content in contents}
    assert "attachment:total_tokens_reminder" in sources
    assert "attachment:hook_success" not in sources


def test_replies_and_summaries_are_marked_as_counted():
    """Text that a Report or Boundary includes must not be estimated on top of it."""
    contents = of(Content, recorded("transcript_r3_main.jsonl"))
    assert {c.source for c in contents if c.counted} == {"assistant", "summary"}
    assert not any(c.counted for c in contents if c.source not in ("assistant", "summary"))


def test_a_manual_compaction_and_the_session_after_a_clear():
    """/compact leaves a boundary; /clear starts a session that has no report yet."""
    compacted = recorded("transcript_r6_3af70d39_main.jsonl")
    cleared = recorded("transcript_r6_7d20f82f_main.jsonl")
    assert of(Boundary, compacted) == [Boundary("manual", 3073, 1795293035.421)]
    assert of(Report, cleared) == of(Boundary, cleared) == []
    assert of(Content, cleared) != []


@pytest.mark.parametrize("name", ["transcript_r1_subagent.jsonl", "transcript_r6_subagent.jsonl"])
def test_a_subagent_file_is_the_subagents_own(name):
    """All its lines are side chains and none is skipped."""
    reports = of(Report, recorded(name))
    assert [report.tokens for report in reports] == [8009, 170311]


def test_a_parameter_overrules_the_first_line():
    """Read as a session's file, a subagent's file has nothing of the session's own."""
    assert recorded("transcript_r1_subagent.jsonl", sidechain=False) == []
    assert of(Report, recorded("transcript_r1_subagent.jsonl", sidechain=True)) != []


def test_side_chains_inside_a_session_are_skipped():
    """Old versions wrote subagents into the session's own file, even as its first lines."""
    records = read(
        prompt("warm up", isSidechain=True),
        prompt("mine"),
        reply("msg_1", {"input_tokens": 900, "output_tokens": 1}, isSidechain=True, agentId="a1"),
        reply("msg_2", {"input_tokens": 10, "output_tokens": 1}),
    )
    assert [r.text for r in of(Content, records)] == ["mine"]
    assert [r.message_id for r in of(Report, records)] == ["msg_2"]


def test_of_two_subagents_in_a_file_the_first_owns_it():
    """A reading of another agent is no reading of this one."""
    records = read(
        prompt("mine", isSidechain=True, agentId="a1"),
        prompt("theirs", isSidechain=True, agentId="a2"),
    )
    assert [r.text for r in of(Content, records)] == ["mine"]


@pytest.mark.parametrize(
    ("name", "qualified_id", "model"),
    [
        (
            "transcript_r1_main.jsonl",
            "6f6361b3-1922-4905-86fa-32179dd59161",
            "claude-sonnet-4-5",
        ),
        (
            "transcript_r1_subagent.jsonl",
            f"6f6361b3-1922-4905-86fa-32179dd59161.{R1_SUBAGENT}",
            "claude-sonnet-4-5",
        ),
        ("transcript_r6_7d20f82f_main.jsonl", "7d20f82f-334c-4c77-a23e-d2f67baebeb1", None),
    ],
)
def test_the_first_lines_tell_whose_transcript_it_is(name, qualified_id, model):
    """Session, subagent and model, as far as they are said."""
    with (RECORDED / name).open("rb") as file:
        identity = identify(file)
    assert identity is not None
    assert (identity.qualified_id, identity.model) == (qualified_id, model)


def test_the_identity_keeps_the_window_suffix_of_the_model():
    """Only the requested model says that the window is a million."""
    synthetic = reply(message={"model": "<synthetic>"})
    real = reply(requestedModel="claude-sonnet-4-5[1m]")
    identity = identify([b"broken\n", line(synthetic), line(real)])
    assert identity is not None
    assert identity.model == "claude-sonnet-4-5[1m]"


def test_nobody_is_identified_from_other_files():
    """No session id, no identity."""
    assert identify([]) is None
    assert identify([b'{"type":"user"}\n', b"\xff\n", b"[]\n"]) is None


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.name)
@pytest.mark.parametrize("head_bytes", [400, 1000, 65536])
def test_recorded_transcripts_are_recognised_by_their_head(path, head_bytes):
    """A head is enough, wherever it is cut."""
    assert looks_like_transcript(path.read_bytes()[:head_bytes])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xff\xfe",
        b"hello\nworld\n",
        b'{"sessionId":5,"type":"user"}\n',
        b'{"timestamp":"2026","type":"session_meta","payload":{"session_id":"x"}}\n',
        b'[{"sessionId":"x","type":"user"}]\n',
    ],
)
def test_other_files_are_not_taken_for_transcripts(head):
    """Neither text, nor other JSON lines, nor another host's."""
    assert not looks_like_transcript(head)


@pytest.mark.parametrize(
    "style",
    [{}, {"separators": (", ", ": ")}, {"separators": (" , ", " : ")}, {"sort_keys": True}],
)
@pytest.mark.parametrize("name", ["transcript_r1_main.jsonl", "transcript_r1_subagent.jsonl"])
def test_any_spelling_of_the_json_gives_the_same_records(name, style):
    """Spaces and the order of keys say nothing; a filter on bytes must not either."""
    entries = [json.loads(text) for text in (RECORDED / name).read_bytes().splitlines()]
    assert list(read_transcript(line(entry, **style) for entry in entries)) == recorded(name)


def test_an_escaped_type_is_still_a_type():
    """JSON may spell any letter as an escape."""
    text = b'{"type":"\\u0075ser","message":{"content":"hello"}}\n'
    assert list(read_transcript([text])) == [Content("hello", "user", None)]


def test_a_message_line_that_begins_with_its_type_is_read():
    """Skipping by the first key never skips a message."""
    entry = reply()
    first = {"type": entry.pop("type")}
    assert len(of(Report, read(first | entry))) == 1


@pytest.mark.parametrize("key", ["type", "message"])
def test_lines_of_other_types_are_no_messages(key):
    """An api-request-blob has a message and is none."""
    entry = reply(type="api-request-blob")
    entry = {key: entry[key]} | entry
    assert read(entry, {"type": 5}, {"type": ["user"]}, {}) == []


def test_a_larger_usage_on_a_later_block_updates_the_report():
    """While a reply streams its first lines may have smaller numbers than its last."""
    records = read(
        reply("msg_1", {"input_tokens": 10, "output_tokens": 1}),
        reply("msg_1", {"input_tokens": 10, "output_tokens": 90}),
        reply("msg_1", {"input_tokens": 10, "output_tokens": 90}),
        reply("msg_2", {"input_tokens": 110, "output_tokens": 2}),
        reply("msg_1", {"input_tokens": 999, "output_tokens": 90}),
    )
    assert [(r.message_id, r.output_tokens, r.update) for r in of(Report, records)] == [
        ("msg_1", 1, False),
        ("msg_1", 90, True),
        ("msg_2", 2, False),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        reply(usage={}),
        reply(usage={"input_tokens": 0, "output_tokens": 0}),
        reply(usage={"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 4}),
        reply(usage=[]),
        reply(usage="12"),
        reply(message={"id": "m", "model": "<synthetic>", "content": [], "usage": {}}),
        reply(message={"id": "m", "model": "<synthetic>", "usage": {"input_tokens": 7}}),
        reply(message={"id": "m", "content": "no usage"}),
    ],
)
def test_replies_without_numbers_give_no_report(entry):
    """A reply the client made up, or has no numbers for, is not a reading."""
    records = read(entry)
    assert of(Report, records) == of(Broken, records) == []
    assert not any(content.counted for content in of(Content, records))


def test_of_several_requests_behind_a_reply_the_last_counts():
    """With tools on the provider's side the outer numbers are a sum."""
    usage = {
        "input_tokens": 90,
        "cache_read_input_tokens": 180_000,
        "output_tokens": 60,
        "iterations": [
            {"type": "message", "input_tokens": 30, "cache_read_input_tokens": 80_000},
            {"type": "message", "input_tokens": 60, "cache_read_input_tokens": 100_000},
            {"type": "compaction", "input_tokens": 5},
        ],
    }
    assert [report.tokens for report in of(Report, read(reply(usage=usage)))] == [100_060]


def test_a_request_for_a_summary_alone_is_no_reading():
    """The provider compacted and has not gone on yet: its count is of the window that is gone."""
    usage = {
        "input_tokens": 180_000,
        "output_tokens": 3_000,
        "iterations": [{"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_000}],
    }
    assert of(Report, read(reply(usage=usage))) == []


@pytest.mark.parametrize(("second", "readings"), [(8, [170_000]), (9, [170_000, 20_000])])
def test_what_was_counted_before_a_compaction_is_no_reading_behind_it(second, readings):
    """The reply that is the summary may be written after the line that marks the compaction."""
    boundary = {
        "type": "system",
        "subtype": "compact_boundary",
        "isSidechain": False,
        "compactMetadata": {"trigger": "auto", "preTokens": 170_000, "postTokens": 3_000},
        "timestamp": "2026-11-21T20:28:09.000Z",
        "sessionId": "session",
    }

    def counted(tokens, second):
        at = f"2026-11-21T20:28:0{second}.000Z"
        return reply(f"msg_{tokens}", {"input_tokens": tokens, "output_tokens": 5}, timestamp=at)

    records = read(counted(170_000, 5), boundary, counted(20_000, second))
    assert [report.tokens for report in of(Report, records)] == readings


def test_blocks_become_content_in_their_order():
    """Texts of a prompt and tool results stay apart; images are no text."""
    records = read(
        reply(
            content=[
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "tool_use", "id": "t1", "name": "Grep", "input": {"pattern": "x", "n": 3}},
            ]
        ),
        prompt(
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"text": "hit"}]},
                {"type": "tool_result", "tool_use_id": "t9", "content": "lost"},
                {"type": "tool_result", "tool_use_id": ["t1"], "content": "odd"},
                {"type": "image", "source": {"type": "base64", "data": "aGVsbG8="}},
                {"type": "text", "text": "go on"},
            ]
        ),
        {
            "type": "attachment",
            "attachment": {"type": "file", "content": {"file": {"content": "body", "base64": "x"}}},
        },
    )
    assert [(c.source, c.text) for c in of(Content, records)] == [
        ("thinking", "Hm."),
        ("assistant", "Grep\nx"),
        ("tool:Grep", "hit"),
        ("tool:unknown", "lost"),
        ("tool:unknown", "odd"),
        ("user", "go on"),
        ("attachment:file", "body"),
    ]


def test_a_summary_counts_when_the_boundary_has_no_numbers():
    """Without the client's estimate the summary is all that is known of the new window."""
    boundary = {"type": "system", "subtype": "compact_boundary", "compactMetadata": []}
    records = read(boundary, prompt("In short.", isCompactSummary=True))
    assert records == [
        Boundary(None, None, None),
        Content("In short.", "summary", None, counted=False),
    ]


def test_the_result_of_a_call_names_the_file_that_the_call_named():
    """A file is what a tool was asked to open, never what looks like a path in a text."""
    calls = [
        {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "/src/a.py"}},
        {"type": "tool_use", "id": "t2", "name": "Grep", "input": {"path": "/src"}},
        {"type": "tool_use", "id": "t3", "name": "Odd", "input": {"file_path": ["/x"]}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"/b.py {number}"}
        for number in (1, 2, 3)
    ]
    records = of(Content, read(reply(content=calls), prompt(results)))
    found = {record.source: record.file for record in records if record.source != "assistant"}
    assert found == {"tool:Read": "/src/a.py", "tool:Grep": None, "tool:Odd": None}


NEWS = "<task-notification>\n<task-id>b1</task-id>{}\n</task-notification>"


@pytest.mark.parametrize(
    ("entry", "returned"),
    [
        (
            {"toolUseResult": {"status": "completed", "agentId": "a1", "content": "Found it."}},
            [Returned("a1", True, None)],
        ),
        (
            {"toolUseResult": {"status": "completed", "agentId": "a1", "content": []}},
            [Returned("a1", False, None)],
        ),
        ({"toolUseResult": {"status": "async_launched", "agentId": "a1"}}, []),
        ({"toolUseResult": {"status": "completed", "agentId": ["a1"]}}, []),
        ({"toolUseResult": "Error: no such agent"}, []),
    ],
)
def test_a_subagent_that_came_back_is_told_from_one_without_a_text(entry, returned):
    """The result of the launching tool says it, in fields that no text can imitate."""
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]
    assert of(Returned, read(prompt(result, **entry))) == returned


def test_a_background_subagent_comes_back_by_a_prompt_of_the_client():
    """With a result or, where it failed, without one; the same words from a tool are only text."""
    news = [NEWS.format("<result>Seen.</result>"), NEWS.format("<status>failed</status>")]
    records = of(Returned, read(*map(prompt, news)))
    assert records == [Returned("b1", True, None), Returned("b1", False, None)]
    quoted = [{"type": "tool_result", "tool_use_id": "t1", "content": news[0]}]
    assert of(Returned, read(prompt(quoted))) == []


def test_a_refusal_for_its_length_is_an_overflow():
    """The client writes it in the place of a reply; other errors say nothing about the window."""
    message = {"model": "<synthetic>", "content": [{"type": "text", "text": "Prompt is too long"}]}
    refused = reply(message=message, isApiErrorMessage=True)
    other = reply(message=message | {"content": "Overloaded"}, isApiErrorMessage=True)
    assert [type(record) for record in read(refused, other)] == [Overflow]


def test_the_identity_names_the_directory_in_which_the_agent_began():
    """The first line that says it counts; a later change of directory is not the project."""
    lines = [line(prompt("hi", cwd="/home/dev/a")), line(prompt("ho", cwd="/home/dev/b"))]
    assert identify(lines).project == "/home/dev/a"
    assert identify([line(prompt("hi"))]).project is None


def attached(kind, rendered=None, **fields):
    """A line about what the client added to the conversation."""
    shown = {} if rendered is None else {"rendered": [{"content": rendered}]}
    own = {"type": "attachment", "sessionId": "s", "isSidechain": False}
    return own | {"attachment": {"type": kind} | fields} | shown


def test_what_the_client_adds_has_the_source_that_it_came_from():
    """Files of instructions and servers by name; the words around them are not lost."""
    files = [
        {"path": "/a/CLAUDE.md", "content": "Be brief."},
        {"path": "/b.md", "content": "Test."},
    ]
    shown = "<system-reminder>\nObey.\nBe brief.\nTest.\n</system-reminder>"
    launcher = "exec /home/dev/state/claude-code.ultramon-hook"
    said = json.dumps({"hookSpecificOutput": {"additionalContext": "Tests are red."}})
    contents = of(
        Content,
        read(
            attached("instructions", shown, files=files),
            attached("mcp_instructions_delta", "## shop\nAsk.", addedNames=["my shop"],
                     addedBlocks=["## shop\nAsk."]),
            attached("skill_listing", content="- deploy"),
            attached("agent_listing_delta", "- reviewer"),
            attached("hook_success", command=launcher, stdout=said),
            attached("hook_additional_context", content=["Tests are red."]),
            attached("hook_additional_context", content=[NOTE]),
            attached("hook_additional_context", content=["Lint is red."]),
        ),
    )  # fmt: skip
    assert [one.source for one in contents] == [
        "memory:/a/CLAUDE.md", "memory:/b.md", "mcp:my_shop", "skills", "agents", "ultramon",
        "ultramon", "hooks",
    ]  # fmt: skip
    together = "".join(one.text for one in contents[:2])
    assert "Obey." in together
    assert together.count("Be brief.") == together.count("Test.") == 1


def test_what_requests_hold_beside_their_messages_is_one_record():
    """Tools of a server are the server's."""
    tools = [{"name": "Bash"}, {"name": "mcp__shop__get_stock"}, {"name": "mcp__a_b__c__d"}, "no"]
    shape = {"system": [{"type": "text", "text": "You help."}], "tools": tools}
    (standing,) = read({"type": "api-request-shape", "sessionId": "s", "shape": shape})
    assert [source for source, _ in standing.parts] == [
        "system", "tools", "mcp:shop", "mcp:a_b", "tools",
    ]  # fmt: skip
    assert standing.is_whole
    for wrong in (None, {}, {"tools": 3, "system": 4}):
        assert read({"type": "api-request-shape", "sessionId": "s", "shape": wrong}) == []


@pytest.mark.parametrize(
    ("kind", "is_beside"),
    [("api-request-shape", True), ("summary", True), ("attachment", False), ("assistant", False)],
)
def test_lines_beside_requests_are_known_by_their_type(kind, is_beside):
    """Whoever counts requests alone passes over them; a report reads what they hold."""
    assert is_beside_requests(line({"type": kind})) is is_beside
    assert is_ignorable(line({"type": kind})) is (kind == "summary")


@pytest.mark.parametrize(
    ("sidechain", "own", "fields", "is_own"),
    [
        (False, {}, {"sessionId": "s"}, True),
        (False, {}, {"sessionId": "s", "agentId": "a1"}, False),
        (False, {}, {"sessionId": "another"}, False),
        (True, {"agentId": "a1"}, {"sessionId": "s", "agentId": "a1"}, True),
        (True, {"agentId": "a1"}, {"sessionId": "s", "agentId": "a2"}, False),
        (None, {}, {"sessionId": "s"}, True),
    ],
)
def test_what_the_requests_of_another_agent_hold_is_not_this_ones(sidechain, own, fields, is_own):
    """Of a subagent, or of a session that has written into the same file."""
    shape = {"type": "api-request-shape", "shape": {"system": "You help."}} | fields
    first = prompt("Hi.", sessionId="s", isSidechain=bool(sidechain), parentUuid=None) | own
    other = prompt("Hi.", sessionId="another", isSidechain=bool(sidechain), parentUuid=None) | own
    entries = [line(one) for one in (first, other, shape)]
    found = of(Standing, list(read_transcript(entries, sidechain=sidechain)))
    assert bool(found) is is_own


@pytest.mark.parametrize("name", [None, 7, ["/a"], {"a": 1}, ""])
def test_a_file_without_a_name_is_of_an_unknown_one(name):
    """Its text was in the window all the same."""
    files = [{"path": name, "content": "Be brief."}]
    (content,) = of(Content, read(attached("instructions", files=files)))
    assert (content.source, content.text) == ("memory:unknown", "Be brief.")


def test_an_attachment_of_many_parts_is_read_in_time():
    """Each part would be searched in all that was shown: over a minute for these 18 MB."""
    files = [{"path": str(at), "content": "unseen"} for at in range(20_000)]
    began = time.process_time()
    contents = of(Content, read(attached("instructions", "shown " * 3_000_000, files=files)))
    assert len(contents) == 20_000
    assert time.process_time() - began < 10


def test_a_tool_is_weighed_as_it_is_sent():
    """Escaped, a description in Chinese would have six characters in the place of each."""
    tool = {"name": "mcp__shop__find", "description": "查找商品，并返回价格。"}
    deep = (
        '{"type":"api-request-shape","shape":{"system":"x","tools":['
        + "[" * 990
        + "]" * 990
        + "]}}"
    )
    entry = {"type": "api-request-shape", "shape": {"tools": [tool]}}
    (standing,) = of(Standing, read(entry))
    ((source, text),) = standing.parts
    assert source == "mcp:shop"
    assert tool["description"] in text
    assert json.loads(text) == tool
    found = of(Standing, list(read_transcript([deep.encode()])))
    # Before 3.12 what calls count against the same depth as JSON that is written.
    assert len(found) == (sys.version_info >= (3, 12))


def test_a_hook_of_ultramon_that_said_nothing_has_said_no_other_text():
    """Most calls print nothing; what another hook says is not known by that."""
    launcher = "exec /home/dev/state/claude-code.ultramon-hook"
    contents = of(
        Content,
        read(
            attached("hook_success", command=launcher, stdout=""),
            attached("hook_additional_context", "<system-reminder>\nLint is red.", hookName="Stop"),
        ),
    )
    assert [one.source for one in contents] == ["hooks"]
