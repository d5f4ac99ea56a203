"""A machine on which coding agents have worked, for the tests of reports about them."""

import json
import os
import shutil

from helpers.program import CAPTURES
from helpers.transcript_lines import line, prompt, reply

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
            "XDG_CACHE_HOME": str(root / "cache"),
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


def read_file(path, call_id="t1", chars=8_000):
    """A call that opens a file, and its result."""
    call = {"type": "tool_use", "id": call_id, "name": "Read", "input": {"file_path": path}}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": "word " * (chars // 5)}
    return reply(f"msg_{call_id}", {"input_tokens": 9_000}, [call]), prompt([result])


def returned(agent, content):
    """What the launcher of a subagent is given."""
    result = [{"type": "tool_result", "tool_use_id": "launch", "content": content}]
    launched = {"status": "completed", "agentId": agent, "content": content}
    return prompt(result, toolUseResult=launched)


def boundary():
    """A compaction."""
    return {"type": "system", "subtype": "compact_boundary"}


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
