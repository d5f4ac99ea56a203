"""A machine on which coding agents have worked, for the tests of reports about them."""

import json
import os
import shutil

from helpers.program import CAPTURES
from helpers.transcript_lines import line, prompt, reply
from ultramon import ContextConfig
from ultramon.prices.price_list import PriceList
from ultramon.recordings.clients import client_files
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.survey import survey
from ultramon.testing import FakeClock

CLAUDE = CAPTURES / "claude-code-2.1.330"
CODEX = CAPTURES / "codex-0.169.0"
SESSION = "11111111-2222-4333-8444-555555555555"
OTHER = "11111111-9999-4333-8444-555555555555"
PROJECT = "/home/dev/shop"


class Machine:
    """The directories of clients below a temporary one."""

    def __init__(self, root):
        self.root = root
        self.projects = root / "claude" / "projects"
        self.environ = {
            "CLAUDE_CONFIG_DIR": str(root / "claude"),
            "CODEX_HOME": str(root / "codex"),
            "GEMINI_CLI_HOME": str(root / "gemini"),
            "QWEN_HOME": str(root / "qwen"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "ULTRAMON_STATE_DIR": str(root / "state"),
        }

    def write(self, session, *entries, agent=None, project=PROJECT):
        """Append lines to the transcript of a session or subagent; return its path."""
        path = self.projects / project.replace("/", "-") / f"{session}.jsonl"
        if agent is not None:
            path = path.with_suffix("") / "subagents" / f"agent-{agent}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        own = {"sessionId": session, "cwd": project, "isSidechain": agent is not None}
        if agent is not None:
            own["agentId"] = agent
        with path.open("ab") as file:
            for entry in entries:
                file.write(line(entry | own))
        return path

    def age(self, path, days):
        """Let a file have been written so many days ago."""
        at = os.stat(path).st_mtime - days * 86_400
        os.utime(path, (at, at))


def used(message_id, tokens, output=10, text="Done.", at="2026-11-21T20:28:51Z", **entry):
    """A reply with a text, after which the window holds so many tokens and the reply."""
    usage = {"input_tokens": tokens, "output_tokens": output}
    content = [{"type": "text", "text": text}] if text else []
    return reply(message_id, usage, content, timestamp=at, **entry)


def read_file(path, call_id="t1", chars=8_000, at="2026-11-21T20:28:51Z"):
    """A call that opens a file, and its result."""
    call = {"type": "tool_use", "id": call_id, "name": "Read", "input": {"file_path": path}}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": "word " * (chars // 5)}
    called = reply(f"msg_{call_id}", {"input_tokens": 9_000}, [call], timestamp=at)
    return called, prompt([result])


def returned(agent, content):
    """What the launcher of a subagent is given."""
    result = [{"type": "tool_result", "tool_use_id": "launch", "content": content}]
    launched = {"status": "completed", "agentId": agent, "content": content}
    return prompt(result, toolUseResult=launched)


def boundary():
    """A compaction."""
    return {"type": "system", "subtype": "compact_boundary"}


def held_beside(project, at, servers=("github",)):
    """What a session's first request held beside its messages, as Claude Code writes it."""
    memory = {
        "/home/dev/.claude/CLAUDE.md": "Answer briefly, and say which file you mean. " * 60,
        f"{project}/CLAUDE.md": "Run the tests before you say that a task is done. " * 90,
    }
    tools = [
        {"name": name, "description": "What it does, and when to use it. " * 40}
        for name in ("Bash", "Edit", "Read", "Write")
    ]
    tools += [
        {"name": f"mcp__{server}__{verb}_{noun}", "description": "One call of its API. " * 30}
        for server in servers
        for verb in ("get", "list", "create", "update")
        for noun in ("issue", "pull_request", "review")
    ]
    files = [{"path": path, "content": text} for path, text in memory.items()]
    shape = {"system": [{"type": "text", "text": "You help with code. " * 450}], "tools": tools}
    instructions = {"type": "instructions", "files": files}
    return [
        {"type": "attachment", "timestamp": at, "attachment": instructions},
        {"type": "api-request-shape", "timestamp": at, "shape": shape},
    ]


def example_machine(root):
    """What docs/report.md shows: seven sessions in three projects, some of them in trouble."""
    machine = Machine(root)
    for number, (project, peak, at) in enumerate(
        (
            ("/home/dev/shop", 171_200, "2026-11-20T16:20:00Z"),
            ("/home/dev/shop", 158_900, "2026-11-19T09:05:00Z"),
            ("/home/dev/shop", 188_400, "2026-11-18T14:44:00Z"),
            ("/home/dev/web", 121_000, "2026-11-17T11:30:00Z"),
            ("/home/dev/web", 96_400, "2026-11-12T08:15:00Z"),
            ("/home/dev/infra", 64_000, "2026-11-09T18:00:00Z"),
            ("/home/dev/infra", 31_500, "2026-11-03T10:10:00Z"),
        )
    ):
        session = f"{0x3F2A91C4 * (number + 1) % 2**32:08x}-77aa-4c3e-9d10-5be0c1d2e3f4"
        files = ("src/orders.py", "src/api/routes.py", "tests/test_orders.py", "README.md")
        entries = [prompt("Look into it.", timestamp=at), *held_beside(project, at)]
        entries.append(used("m", 9_800, at=at))
        for name in range(len(files)):
            path, chars = f"{project}/{files[name]}", peak * 5 // (2 + 2 * name)
            entries += read_file(path, f"t{name}", chars, at)
        call = {"type": "tool_use", "id": "b", "name": "Bash", "input": {"command": "make test"}}
        log = [{"type": "tool_result", "tool_use_id": "b", "content": "ok " * (peak // 9)}]
        bash = reply("m0", {"input_tokens": peak // 2}, [call], timestamp=at)
        entries += [bash, prompt(log)]
        if number in (1, 3):
            asked = {"type": "tool_use", "id": "g", "name": "mcp__github__get_issue", "input": {}}
            issue = [{"type": "tool_result", "tool_use_id": "g", "content": "open " * 90}]
            entries += [reply("mg", {"input_tokens": peak}, [asked], timestamp=at), prompt(issue)]
        entries.append(used("m1", peak, output=900, at=at))
        if number in (0, 2):
            entries += [boundary(), used("m2", 34_000, at=at)]
        for agent in range(max(0, 5 - number)):
            name, is_lost = f"a{number}{agent}", number == 0 and agent < 2
            entries.append(returned(name, [] if is_lost else "Found it."))
            tokens = 196_300 if is_lost else 48_000 + 9_000 * agent
            task = used("s1", tokens, text="" if is_lost else "Found it.", at=at)
            machine.write(
                session, prompt("A part of it."), *held_beside(project, at),
                used("s0", 9_700, at=at), task, agent=name, project=project,
            )  # fmt: skip
        machine.write(session, *entries, project=project)
    return machine


def example_survey(machine):
    """What a machine's transcripts say of the 30 days before 22 November 2026, at its prices.

    Replies of one id count each, as they do in no report: the sessions of the example share them.
    """
    now = 1_795_305_600.0
    with TranscriptIndex(None) as index:
        found = index.summarize(client_files(machine.environ))
        prices = PriceList(clock=FakeClock(now))
        return survey(found, ContextConfig(), now=now, days=30, by_id=True, prices=prices)


def busy_machine(root):
    """Two sessions with subagents, and the recorded Codex rollouts.

    The first session was compacted once, from 150,010 tokens to 30,000; of its subagents one came
    back empty at 196,010 of 200,000 tokens, one with a text, and of one nothing is known.
    """
    machine = Machine(root)
    machine.write(
        SESSION,
        prompt("Look into it."),
        *read_file(f"{PROJECT}/a.py"),
        used("m1", 150_000),
        boundary(),
        used("m2", 30_000),
        returned("a1", []),
        returned("a2", [{"type": "text", "text": "Found it."}]),
    )
    machine.write(SESSION, prompt("Part one."), used("s1", 196_000, text=""), agent="a1")
    machine.write(SESSION, prompt("Part two."), used("s2", 40_000), agent="a2")
    machine.write(SESSION, prompt("Part three."), used("s3", 20_000), agent="a3")
    machine.write(OTHER, prompt("Hello."), used("m9", 12_000), project="/home/dev/blog")
    rollouts = root / "codex" / "sessions" / "2026" / "11" / "22"
    rollouts.mkdir(parents=True)
    for path in CODEX.glob("*.jsonl"):
        thread = json.loads(path.read_bytes().split(b"\n")[0])["payload"]["id"]
        shutil.copy(path, rollouts / f"rollout-2026-11-22T16-02-32-{thread}.jsonl")
    return machine
