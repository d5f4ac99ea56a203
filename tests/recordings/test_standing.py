"""What stands in every request of a transcript, and of many."""

import json
import os

import pytest
from helpers.planted_transcripts import (
    OTHER,
    SESSION,
    Machine,
    boundary,
    example_machine,
    example_survey,
    held_beside,
    prompt,
    used,
)

from ultramon import ContextConfig
from ultramon.cli.views.report_screen import source_name
from ultramon.context.tracker import OTHER
from ultramon.prices.price_list import PriceList
from ultramon.recordings.clients import client_files
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.memory_files import MemoryFiles
from ultramon.recordings.standing import FIRST, MAX_PARTS, StandingPart, StandingSums
from ultramon.recordings.standing_costs import StandingAgent, standing_costs
from ultramon.recordings.survey import survey
from ultramon.recordings.transcript_summary import TranscriptSummary
from ultramon.testing import FakeClock

AT = "2026-11-21T20:28:51Z"
NOW = 1_795_305_600.0


def surveyed(machine, **options):
    """Add up a machine's transcripts."""
    with TranscriptIndex(None) as index:
        read = list(index.summarize(client_files(machine.environ)))
        found = index.count_copies_once(read)
        return survey(found, ContextConfig(), now=NOW, **options)


def parts_of(found):
    """The parts of a survey, by source."""
    return {one.source: one for one in found.by_standing}


def test_a_part_counts_in_each_request_that_held_it():
    """What changes counts from then on; what is said is gone with its window."""
    rows = {}
    sums = StandingSums(rows)
    sums.replace([("system", 100.0), ("mcp:a", 40.0), ("mcp:a", 10.0)], is_whole=False)
    sums.say("skills", 20.0)
    sums.begin(500, 30.0, 10.0)
    sums.count()
    sums.begin(600, 30.0, 10.0)
    sums.count()
    sums.replace([("system", 100.0), ("mcp:b", 70.0)], is_whole=False)
    sums.close_window()
    sums.count()
    sums.finish()
    assert {name: StandingPart._make(row) for name, row in rows.items()} == {
        FIRST: (490.0, 1, True),
        "system": (300.0, 3, False),
        "mcp:a": (100.0, 2, False),
        "skills": (40.0, 2, False),
        "mcp:b": (70.0, 1, False),
    }


@pytest.mark.parametrize(("tokens", "scale"), [(260, 2.0), (156, 1.2), (65, 0.5), (900, None)])
def test_the_count_of_the_provider_is_shared_out_where_it_can_be(tokens, scale):
    """Only over texts that are all recorded, and of which the count can be."""
    rows = {}
    sums = StandingSums(rows)
    sums.replace([("system", 100.0)], is_whole=True)
    sums.begin(tokens, 30.0, 10.0)
    sums.count()
    sums.finish()
    expected = 100.0 * scale if scale and scale < 1.7 else 100.0
    assert rows["system"] == [pytest.approx(expected), 1, expected != 100.0]


def test_a_rewind_leaves_what_came_with_the_first_messages():
    """What a hook said later is gone; what is said again takes the place of what was there."""
    rows = {}
    sums = StandingSums(rows)
    for source in ("skills", "memory:/a", "hooks"):
        sums.say(source, 10.0)
    sums.begin(500, 30.0, 0.0)
    sums.count()
    sums.close_window(is_rewound=True)
    sums = StandingSums(rows, json.loads(json.dumps(sums.memory())))
    sums.say("skills", 15.0)
    sums.say("skills", 5.0)
    sums.count()
    sums.close_window()
    sums.count()
    sums.finish()
    held = {name: row[:2] for name, row in rows.items() if name != FIRST}
    assert held == {"skills": [30.0, 2], "memory:/a": [20.0, 2], "hooks": [10.0, 1]}


def test_a_session_that_was_rewound_holds_its_instructions_all_the_same(tmp_path):
    """They came with the first messages, which were not taken back."""
    machine = Machine(tmp_path)
    instructions, shape = held_beside("/home/dev/shop", AT)
    chain = [
        prompt("Look.", uuid="p1", parentUuid=None), instructions, shape,
        used("m1", 14_000, uuid="a1", parentUuid="p1"),
        prompt("More.", uuid="p2", parentUuid="a1"),
        used("m2", 150_000, uuid="a2", parentUuid="p2"),
        prompt("Other.", uuid="p3", parentUuid="a1"),
        used("m3", 15_000, uuid="a3", parentUuid="p3"),
    ]  # fmt: skip
    machine.write(SESSION, *chain)
    found = surveyed(machine)
    assert found.compactions == 0
    memory = parts_of(found)["memory:/home/dev/shop/CLAUDE.md"]
    assert memory.request_tokens == pytest.approx(3 * memory.tokens, abs=3)


def test_the_sources_of_one_transcript_are_bounded():
    """What is beyond them is counted as one, and a long name is cut as in the other lists."""
    rows = {}
    sums = StandingSums(rows)
    for at in range(50):
        sums.replace([(f"mcp:{at}-{one}", 10.0) for one in range(100)], is_whole=True)
        for one in range(100):
            sums.say(f"memory:/{at}/{one}{'x' * 500}", 1.0)
        sums.begin(1_100, 100.0, 0.0)
        sums.count()
        sums.close_window()
    sums.finish()
    assert len(rows) <= MAX_PARTS + 1
    assert len(str(sums.memory())) < 10_000
    assert max(map(len, rows)) <= 400
    held = sum(row[0] for name, row in rows.items() if name != FIRST)
    assert held == pytest.approx(50 * 1_100.0)
    assert rows[OTHER][2] is True, "all of it is recorded"


def test_a_server_is_used_however_many_sources_there_are(tmp_path):
    """Its results are then counted with those of others: not to be thrown out for that."""
    machine = Machine(tmp_path)
    entries = [prompt("Look."), *held_beside("/home/dev/shop", AT, servers=("github",))]
    names = [f"Tool{number}" for number in range(70)] + ["mcp__github__get_issue", "Skill"]
    for number, name in enumerate(names):
        call = {"type": "tool_use", "id": f"c{number}", "name": name, "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "open " * 9}
        asked = used(f"m{number}", 14_000 + 20 * number)
        asked["message"]["content"] = [call]
        entries += [asked, prompt([result])]
    skills = {"type": "attachment", "timestamp": AT}
    skills["attachment"] = {"type": "skill_listing", "content": "- deploy: deploys the shop. " * 9}
    machine.write(SESSION, skills, *entries, used("last", 16_000))
    parts = parts_of(surveyed(machine))
    assert (parts["mcp:github"].sessions_used, parts["skills"].sessions_used) == (1, 1)


def test_a_server_whose_name_holds_the_mark_is_one(tmp_path):
    """By what the names of its tools have in common, in definitions and calls."""
    machine = Machine(tmp_path)
    tools = (
        "my__server__get",
        "my__server__list",
        "git__issue__get",
        "git__pull__get",
        "one__a__b",
    )
    definitions = [
        {"name": f"mcp__{tool}", "description": "One call of its API. " * 30} for tool in tools
    ]
    shape = {"system": [{"type": "text", "text": "You help with code. " * 450}]}
    entry = {"type": "api-request-shape", "timestamp": AT, "shape": shape | {"tools": definitions}}
    call = {"type": "tool_use", "id": "c1", "name": "mcp__my__server__get", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "open"}
    asked = used("m1", 14_000, at=AT)
    asked["message"]["content"] = [call]
    machine.write(SESSION, prompt("Look."), entry, asked, prompt([result]), used("m2", 14_100))
    found = surveyed(machine)
    servers = {
        name: one.sessions_used for name, one in parts_of(found).items() if name and "mcp:" in name
    }
    assert servers == {"mcp:my__server": 1, "mcp:git": 0, "mcp:one": 0}
    assert "MCP my__server: get" in [source_name(one.name, found) for one in found.by_source]


def test_sums_continue_where_they_stopped():
    """As a report does that reads only what is new."""
    rows, whole = {}, {}
    for steps in ([sums := StandingSums(rows)], [StandingSums(whole)]):
        one = steps[0]
        one.replace([("system", 100.0)], is_whole=True)
        one.begin(150, 30.0, 10.0)
        one.count()
        if one is sums:
            one = StandingSums(rows, one.memory())
        one.say("ultramon", 5.0)
        one.begin(160, 35.0, 10.0)
        one.count()
        one.finish()
    assert rows == whole
    assert rows["ultramon"][1] == 1


def test_a_report_lists_what_stands_and_what_it_costs(tmp_path):
    """Two sessions, of which one calls the server; the other one's window is emptied."""
    machine = Machine(tmp_path)
    beside = held_beside("/home/dev/shop", AT, servers=("github", "jira"))
    call = {"type": "tool_use", "id": "c1", "name": "mcp__github__get_issue", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "open"}
    asked = used("m1", 14_000, at=AT) | {}
    asked["message"]["content"] = [call]
    machine.write(SESSION, prompt("Look."), *beside, asked, prompt([result]), used("m2", 14_100))
    other = SESSION[:-1] + "0"
    machine.write(
        other, prompt("Look."), *beside, used("n1", 14_000), boundary(), used("n2", 13_950)
    )
    found = surveyed(machine, prices=PriceList(clock=FakeClock(NOW)))
    assert found.standing.tokens == pytest.approx(14_000, abs=10)
    parts = parts_of(found)
    assert {one.provenance for one in parts.values()} <= {"measured", "unknown"}
    assert (parts["mcp:github"].sessions, parts["mcp:github"].sessions_used) == (2, 1)
    assert (parts["mcp:jira"].sessions, parts["mcp:jira"].sessions_used) == (2, 0)
    assert parts["system"].sessions_used is None
    assert parts["memory:/home/dev/shop/CLAUDE.md"].tokens > 900
    # Behind the compaction the files come again, as the client writes them: here it has not.
    assert parts["system"].request_tokens == pytest.approx(4 * parts["system"].tokens, abs=4)
    costs = [one.cost_usd for one in found.by_standing]
    assert costs == sorted(costs, reverse=True)
    assert 0 < sum(costs) <= found.standing.cost_usd * 1.02 <= found.cost_usd * 1.02
    assert found.standing.request_tokens == pytest.approx(4 * 14_000, rel=0.01)


def test_a_rest_below_one_token_is_none(tmp_path):
    """Where all texts are recorded the sum of their shares is the count, but for rounding."""
    found = example_survey(example_machine(tmp_path))
    assert found.sessions == 7
    assert parts_of(found)[None].sessions == 2


def test_what_a_resume_writes_again_stands_once(tmp_path):
    """The lines keep their ids; what the client says anew has one of its own."""
    machine = Machine(tmp_path)
    instructions, shape = held_beside("/home/dev/shop", AT)
    history = [prompt("Look.", uuid="p1"), instructions | {"uuid": "i1"}, shape]
    machine.write(SESSION, *history, used("m1", 14_000))
    alone = parts_of(surveyed(machine))
    machine.write(SESSION, *history, used("m1", 14_000), used("m2", 14_100))
    found = parts_of(surveyed(machine))
    for source in ("memory:/home/dev/shop/CLAUDE.md", "system"):
        assert found[source].tokens == pytest.approx(alone[source].tokens, abs=1)
        assert found[source].request_tokens == pytest.approx(2 * alone[source].tokens, abs=2)


def test_files_of_a_host_that_records_none_are_looked_up(tmp_path):
    """As they are on the disk now: estimated, and once for each project."""
    project = tmp_path / "shop" / "api"
    (project / ".git").mkdir(parents=True)
    project.joinpath("CLAUDE.md").write_text("Run the tests. " * 100)
    tmp_path.joinpath("shop", "CLAUDE.md").write_text("Prices are in cents. " * 50)
    machine = Machine(tmp_path / "machine")
    machine.write(SESSION, prompt("Look."), used("m1", 12_000), project=str(project))
    found = surveyed(machine, memory_files=MemoryFiles(machine.environ))
    parts = parts_of(found)
    assert set(parts) == {
        None, f"memory:{project}/CLAUDE.md", f"memory:{tmp_path}/shop/CLAUDE.md",
    }  # fmt: skip
    assert parts[f"memory:{project}/CLAUDE.md"].provenance == "estimated"
    assert parts[None].provenance == "unknown"
    assert sum(one.tokens for one in parts.values()) == found.standing.tokens
    assert parts_of(surveyed(machine)).keys() == {None}


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_fork_holds_what_its_first_request_held_and_not_the_conversation(tmp_path, is_compacted):
    """Its requests hold the copied instructions too; what it copied entered a window once."""
    machine = Machine(tmp_path)
    beside = held_beside("/home/dev/shop", AT)
    history = [prompt("Look."), *beside, used("m1", 14_000), prompt("word " * 900)]
    history += [boundary(), beside[0]] if is_compacted else []
    history.append(used("m2", 150_000))
    machine.write(SESSION, *history)
    alone = surveyed(machine)
    later = "2026-11-22T20:28:51Z"
    own = [used(name, 151_000, at=later) for name in ("m3", "m4")]
    machine.write(OTHER, *history, prompt("More."), *own)
    found = surveyed(machine)
    assert found.copied_transcripts == 1
    assert found.standing.tokens == alone.standing.tokens < 14_000
    assert found.standing.request_tokens == pytest.approx(4 * 14_000, rel=0.01)
    parts, before = parts_of(found), parts_of(alone)
    assert parts.keys() == before.keys()
    for source, part in parts.items():
        assert part.provenance == before[source].provenance
    memory = "memory:/home/dev/shop/CLAUDE.md"
    for source in ("system", memory):
        assert parts[source].sessions == 2
        assert parts[source].request_tokens == pytest.approx(
            2 * before[source].request_tokens, abs=2
        )
    entered = {one.name: one.estimated_tokens for one in found.by_source}
    assert (
        entered["system"] == {one.name: one.estimated_tokens for one in alone.by_source}["system"]
    )


def test_files_that_a_session_records_are_not_looked_up_beside_them(tmp_path):
    """Else one file would count twice, or as it is now, where no request's shape is recorded."""
    project = tmp_path / "shop"
    project.mkdir()
    project.joinpath("CLAUDE.md").write_text("Rewritten since. " * 4_000)
    machine = Machine(tmp_path / "machine")
    instructions, _ = held_beside(str(project), AT)
    machine.write(SESSION, prompt("Look."), instructions, used("m1", 12_000), project=str(project))
    found = surveyed(machine, memory_files=MemoryFiles(machine.environ))
    assert parts_of(found) == parts_of(surveyed(machine))
    assert f"memory:{project}/CLAUDE.md" in parts_of(found)


def test_a_link_to_a_file_of_instructions_is_read_and_what_is_no_file_is_not(tmp_path):
    """As the host reads it; a pipe would wait for a writer, and a loop leads nowhere."""
    project = tmp_path / "shop"
    project.mkdir()
    project.joinpath("AGENTS.md").write_text("Run the tests. " * 100)
    project.joinpath("CLAUDE.md").symlink_to("AGENTS.md")
    project.joinpath("CLAUDE.local.md").symlink_to("CLAUDE.local.md")
    os.mkfifo(tmp_path / "CLAUDE.md")
    files = MemoryFiles({"CLAUDE_CONFIG_DIR": str(tmp_path)})
    ((path, tokens),) = files("claude-code", str(project))
    assert path == str(project / "CLAUDE.md")
    assert tokens > 200


@pytest.mark.parametrize(("host", "used"), [("claude-code", 0), ("codex", None)])
def test_skills_are_unused_only_where_a_use_would_be_seen(host, used):
    """Codex reads one as any other file: to throw the list out for that would be wrong."""
    summary = TranscriptSummary(host, SESSION, reports=2)
    summary.standing = {FIRST: [900.0, 1, True], "skills": [200.0, 2, False]}
    _, parts = standing_costs([StandingAgent(0, None, summary, None, 0)])
    (skills,) = [one for one in parts if one.source == "skills"]
    assert (skills.sessions, skills.sessions_used) == (1, used)
