"""Recorded runs of the six built-in hosts, as `ultramon.testing.HostContract` plays them."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

from helpers.claude_replay import Replay
from helpers.codex_session import CodexRun, CodexSession
from helpers.copilot_session import CopilotRun, CopilotSession
from helpers.gemini_session import GeminiRun, GeminiSession
from helpers.hooked_session import HookedSession
from helpers.opencode_plugin import LIMITS, Plugin, prompt, recorded_messages, reply, texts_in
from helpers.opencode_session import plant, session_id
from helpers.players import FULL, CopilotPlayer, GeminiPlayer, QwenPlayer
from helpers.qwen_session import NEW, QwenRun, QwenSession
from helpers.recorded_run import in_epoch
from ultramon.context.ladder import Ladder
from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.testing import ClientProcess, HostCall, HostRun
from ultramon.testing.host_run import COMPACTION, FILLS, STAYS, SUBAGENTS, TASKS

TODOS = [("read", "completed"), ("write", "in_progress")]
PLAN = [("read", "done"), ("write", "in_progress")]
"""A list as hosts keep it, and as a state has it."""


def is_end(value):
    """Whether an answer ends the turn."""
    value = value or {}
    return value.get("continue") is False or value.get("interrupt") is True


def text_of(value):
    """What an agent reads of an answer."""
    value = value or {}
    return value.get("hookSpecificOutput", value).get("additionalContext", "")


class Play(HostRun):
    """A run of a host by the calls of its hook, which a process of its own makes.

    Args:
        session: The client's home, or a recorded run in one.
        session_id: The session.
        words: Of the client's command line.
        facts: Attributes of a `HostRun`.
    """

    def __init__(self, session, session_id, *words, **facts):
        self.session, self.session_id, self.state = session, session_id, session.state
        session.caller = self.client = ClientProcess(*words)
        self.__dict__ |= facts

    def choose(self, warning=None, critical=None, **choices):
        if warning is not None:
            choices["ladder"] = Ladder.default(warning, critical, round_percent=True)
        self.session.choose(**choices)

    def kill(self):
        self.client.kill()

    close = kill


class Recorded(Play):
    """A recorded run."""

    def calls(self):
        while len(self.session.answers) < len(self.session.calls):
            payload, answer = self.session.step()
            self.transcript = self.path_of(payload)
            yield HostCall(self.named(payload), text_of(answer.value), is_end(answer.value))

    def path_of(self, payload):
        """The transcript of the session."""
        return payload.get("transcript_path") or self.transcript

    def named(self, payload):
        """The agent that is answered."""
        agent_id = payload.get("agent_id")
        return f"{self.session_id}.{agent_id}" if agent_id else self.session_id


class Played(Play):
    """A client that plays replies for as long as it is let."""

    def __init__(self, player, session_id, *words):
        readings = {session_id: in_epoch(1, *range(FULL, FULL + 1 + REPLIES_TO_RETURN))}
        super().__init__(player.session, session_id, *words, readings=readings, returns_at=200_000)
        self.player = player
        player.session.environ["CLAUDE_PID"] = str(self.client.pid)  # others do not look at it

    def calls(self):
        for number in range(9):
            for answer in self.player.play(FULL + number):
                yield HostCall(self.session_id, text_of(answer.value), is_end(answer.value))


class Called(Play):
    """Calls of a hook that need no transcript."""

    def __init__(self, session, *payloads, **facts):
        super().__init__(session, "s", **facts)
        self.payloads = payloads

    def calls(self):
        for payload in self.payloads:
            yield HostCall("s", text_of(self.session.run({"session_id": "s"} | payload).value))


# --- Claude Code


class ClaudePlayer:
    """Claude Code, which plays a reply with a tool."""

    def __init__(self, path):
        self.session = HookedSession(path)
        self.session.choose = self.session.freeze

    def play(self, tokens):
        """One reply, and what is said when its tool has run."""
        return [self.session.tool(tokens)]


class ClaudePlay(Recorded):
    """A recorded run of Claude Code, or some of its calls."""

    def __init__(self, path, run, readings, *, names=(), calls=None, **facts):
        self.replay = Replay(path, run, names)
        if calls is not None:
            self.replay.calls = [self.replay.calls[number] for number in calls]
            for call in self.replay.calls[:]:
                if call["stdin"]["hook_event_name"] in ("Stop", "SessionEnd"):
                    call["transcript_state_at_hook"] = {}  # of replies that are left out
        session = self.replay.session
        session.choose = session.freeze
        name = session.session_id
        readings = {f"{name}{one}": found for one, found in readings.items()}
        super().__init__(session, name, readings=readings, **facts)
        session.environ["CLAUDE_PID"] = str(self.client.pid)
        self.transcript = str(session.transcript.with_stem(name))

    def calls(self):
        for call in self.replay.calls:
            _, answer = self.replay.step()
            yield HostCall(self.named(call["stdin"]), text_of(answer.value), is_end(answer.value))


CLAUDE_TASKS = [
    ("read the parser", "done"),
    ("write all the tests", "pending"),
    ("read the parser (#3)", "in_progress"),
    ("count the files", "done"),
    ("add them up", "in_progress"),
]
"""What is left of those of the session and of its subagent, which share the list."""


def play_claude(path, scenario):
    """A run of Claude Code."""
    limits = {"limits": (200_000, 200_000)}
    if scenario == FILLS:
        readings = {"": in_epoch(1, 20_012, 121_014, 196_014)}
        return ClaudePlay(path, "r2", readings, calls=[*range(11), 31, 32], **limits)
    if scenario == SUBAGENTS:
        names = ["3af70d39_main", "7d20f82f_main", "subagent"]
        readings = {
            "": in_epoch(1, 20_012, 140_515, 150_516),
            ".af6998b0130708aa9": in_epoch(1, 8_009, 170_311),
        }
        return ClaudePlay(path, "r6", readings, names=names, calls=range(16))
    if scenario == COMPACTION:
        readings = {
            "": [*in_epoch(1, 20_012, 121_014), *in_epoch(2, 196_014), *in_epoch(3, 9_014, 9_516)]
        }
        return ClaudePlay(path, "r3", readings, names=["main"])
    if scenario == STAYS:
        return Played(ClaudePlayer(path), "session")
    return ClaudePlay(path, "r7", {}, tasks=CLAUDE_TASKS)


# --- Codex


def play_codex(path, scenario):
    """A run of Codex."""
    if scenario == FILLS:
        run = CodexRun(path, "plain")
        name, limits = run.calls[0]["stdin"]["session_id"], (258_400, 258_400)
        readings = {name: in_epoch(1, 21_000, 64_000, 118_000, 171_000, 205_000)}
        return Recorded(run, name, "exec", readings=readings, limits=limits)
    if scenario == SUBAGENTS:
        run = CodexRun(path, "subagents")
        name = run.calls[0]["stdin"]["session_id"]
        readings = {
            name: in_epoch(1, 31_000, 42_000, 55_000, 61_000),
            f"{name}.01a20330-9cf3-71a1-9dae-1a1f63ef3963": in_epoch(1, 7_000, 140_000, 188_000),
            f"{name}.01a20330-a197-7363-a42e-92d73e9417ac": in_epoch(1, 9_000, 23_000),
        }
        return Recorded(run, name, "exec", readings=readings)
    if scenario == COMPACTION:
        run = CodexRun(path, "compact")
        name = run.calls[0]["stdin"]["session_id"]
        before, after = (30_000, 96_000, 151_000), (12_000, 40_000, 52_000)
        readings = {name: [*in_epoch(1, *before), *in_epoch(2, *after)]}
        return Recorded(run, name, "exec", readings=readings)
    if scenario == TASKS:
        plan = [{"step": name, "status": status} for name, status in TODOS]
        call = {"hook_event_name": "PostToolUse", "tool_name": "update_plan"}
        call |= {"tool_input": {"plan": plan}, "tool_response": "ok"}
        return Called(CodexSession(path), call, tasks=PLAN)
    return None


# --- Copilot CLI


class CopilotPlay(Recorded):
    """A recorded run of Copilot CLI."""

    def __init__(self, path, name, readings, **facts):
        run = CopilotRun(path, name)
        readings = {f"{run.session_id}{one}": found for one, found in readings.items()}
        super().__init__(run, run.session_id, readings=readings, **facts)
        folder = run.sessions / run.session_id
        (folder / f"inuse.{self.client.pid}.lock").write_text(str(self.client.pid))
        self.transcript = str(folder / "events.jsonl")

    def path_of(self, payload):
        return self.transcript


SCHEMA = """CREATE TABLE todos (id TEXT PRIMARY KEY, title TEXT NOT NULL, description TEXT,
    status TEXT DEFAULT 'pending' CHECK(status IN ('pending', 'in_progress', 'done', 'blocked')),
    created_at TEXT DEFAULT (datetime('now')), updated_at TEXT DEFAULT (datetime('now')))"""
"""As Copilot CLI makes it."""


def play_copilot(path, scenario):
    """A run of Copilot CLI."""
    if scenario in (FILLS, COMPACTION):
        before, after = (60_000, 79_000, 80_500, 81_500), (21_000, 21_500)
        readings = {"": [*in_epoch(1, *before), *in_epoch(2, *after)]}
        return CopilotPlay(path, "compaction", readings, limits=(80_000, 100_000))
    if scenario == SUBAGENTS:
        readings = {
            "": in_epoch(1, 30_000, 35_000),
            ".9d7b994f-aa7c-416c-9412-e6a2659f3d80": in_epoch(1, 61_000, 68_000),
            ".9717dde0-8ffc-4ca4-b8ad-cc8b3e001ace": in_epoch(1, 12_000, 15_000),
        }
        return CopilotPlay(path, "nested", readings)
    if scenario == STAYS:
        return Played(CopilotPlayer(path, {}), "s")
    session = CopilotSession(path)
    folder = session.sessions / "s"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").touch()
    with closing(sqlite3.connect(folder / "session.db")) as database, database:
        database.execute(SCHEMA)
        rows = [("a", "write a", "done"), ("b", "write b", "in_progress")]
        database.executemany("INSERT INTO todos (id, title, status) VALUES (?, ?, ?)", rows)
    call = {"hook_event_name": "PostToolUse", "tool_name": "sql", "cwd": "/home/user/project"}
    call |= {"tool_input": {"query": "SELECT * FROM todos"}, "timestamp": "2026-11-26T22:00:00Z"}
    return Called(session, call, tasks=[("write a", "done"), ("write b", "in_progress")])


# --- Gemini CLI


class GeminiPlay(Recorded):
    """A recorded run of Gemini CLI, whose calls name the session alone."""

    def __init__(self, path, name, readings, **facts):
        run = GeminiRun(path, name)
        session_id = run.calls[0]["stdin"]["session_id"]
        readings = {f"{session_id}{one}": found for one, found in readings.items()}
        super().__init__(run, session_id, readings=readings, **facts)

    def named(self, payload):
        return None


def play_gemini(path, scenario):
    """A run of Gemini CLI."""
    if scenario == FILLS:
        readings = {"": in_epoch(1, 22_000, 130_000, 301_000, 470_000, 512_000)}
        return GeminiPlay(path, "plain", readings, limits=(1_048_576, 1_048_576))
    if scenario == SUBAGENTS:
        readings = {
            "": in_epoch(1, 33_000, 52_000, 61_000),
            ".3358df89-c3ac-4a35-91cb-db56b63eb22a": in_epoch(1, 9_000, 410_000, 444_000),
        }
        return GeminiPlay(path, "subagent", readings)
    if scenario == COMPACTION:
        first = in_epoch(1, 15_000, 31_000, 45_000)
        readings = {"": [*first, *in_epoch(2, 7_300), *in_epoch(3, 9_100)]}
        return GeminiPlay(path, "compress", readings)
    if scenario == STAYS:
        return Played(GeminiPlayer(path, {}), "main")
    todos = [{"description": name, "status": status} for name, status in TODOS]
    call = {"hook_event_name": "AfterTool", "tool_name": "write_todos"}
    call |= {"tool_input": {"todos": todos}, "tool_response": {}}
    return Called(GeminiSession(path), call, tasks=PLAN)


# --- opencode


class OpencodePlay(HostRun):
    """A recorded run of opencode: its plugin in a process of Node, its database as it grows.

    Args:
        path: A folder for the client's home.
        monkeypatch: As a test has it.
        name: Of the recorded database.
        readings: By the names of subagents' sessions.
        replies: Instead of the recorded messages, of the session.
        facts: Attributes of a `HostRun`.
    """

    def __init__(self, path, monkeypatch, name, readings, replies=(), **facts):
        self.plugin = Plugin(path, monkeypatch)
        self.state = self.plugin.states
        self.file = path / "data" / "opencode" / "opencode.db"
        self.database = plant(self.file, name, keep_open=True)
        self.session_id = session_id(self.file)
        self.transcript = f"{self.file}/{self.session_id}"
        query = "SELECT id, title FROM session WHERE parent_id IS NOT NULL"
        self.children = dict(self.database.execute(query).fetchall())
        messages = recorded_messages(self.file, self.session_id, *self.children)
        self.parts = self.database.execute("SELECT message_id, data FROM part").fetchall()
        self.limits_said = LIMITS
        self.is_played = bool(replies)
        if replies:
            self.limits_said = {"limit": {"context": 1_000_000, "output": 8_000}}
            asked = prompt("msg", self.session_id) | {"time": {"created": 0}}
            made = [reply(f"msg_{at}", tokens, self.session_id) for at, tokens in replies]
            messages = [asked, *made]
        moments = [
            (at, order == "completed" or one["role"] == "user", one)
            for one in messages
            for order, at in one["time"].items()
        ]
        self.moments = sorted(moments, key=lambda moment: moment[0])
        with self.database:
            self.database.execute("DELETE FROM message")
        self.readings = {
            self.session_id + (one and f".{one}"): found for one, found in readings.items()
        }
        self.texts = []
        self.__dict__ |= facts

    def choose(self, **choices):
        self.plugin.home.install(**choices)

    def calls(self):
        plugin = self.plugin
        plugin.start().begin(self.session_id)
        for name, title in self.children.items():
            info = {"id": name, "parentID": self.session_id, "title": title}
            plugin.event("session.created", sessionID=name, info=info)
        before = {}
        for _, is_written, info in self.moments:
            name = info["sessionID"]
            shown = before.setdefault(name, [])
            if not is_written and info.get("summary"):
                plugin.call("experimental.session.compacting", {"sessionID": name})
                shown.clear()
            elif not is_written:
                call = self._request(name, shown)
                yield call
                if call.ends:
                    return
                plugin.limits(name, **self.limits_said)
            else:
                shown.append(info)
                self._write(info)
        yield from self._end()

    def _write(self, info):
        """A message is there; where it is a reply, the tools have run that launched subagents."""
        if self.is_played:
            now = int(time.time() * 1_000)
            info["time"] = {"created": now, "completed": now}
        at = info["time"]["created"]
        row = info["id"], info["sessionID"], at, at, json.dumps(info)
        with self.database:
            self.database.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
        if info["role"] == "assistant":
            self.plugin.event("message.updated", sessionID=info["sessionID"], info=info)
        for message_id, data in self.parts:
            part = json.loads(data) | {"sessionID": info["sessionID"]}
            if message_id == info["id"] and part.get("tool") == "task":
                self.plugin.event("message.part.updated", part=part)

    def _request(self, name, shown):
        """The model is asked; the texts of earlier requests are in it again."""
        messages = [{"info": info, "parts": []} for info in shown]
        done = self.plugin.call("experimental.chat.messages.transform", {}, {"messages": messages})
        texts = texts_in(done["output"]["messages"])
        new = [one for one in texts if one not in self.texts]
        self.texts += new
        agent_id = name if name == self.session_id else f"{self.session_id}.{name}"
        return HostCall(agent_id, "\n".join(new), bool(done["aborted"]))

    def _end(self):
        plugin = self.plugin
        if self.tasks:
            todos = [{"content": name, "status": status} for name, status in TODOS]
            tool = {"tool": "todowrite", "sessionID": self.session_id, "callID": "c"}
            plugin.call("tool.execute.after", tool | {"args": {"todos": todos}})
        plugin.event("session.idle", sessionID=self.session_id)
        self.settle()
        yield HostCall(self.session_id)
        plugin.close()
        yield HostCall(self.session_id)

    def settle(self):
        self.plugin.settled()

    def kill(self):
        self.plugin.close(kills=True)

    def close(self):
        self.plugin.end()
        self.database.close()


def play_opencode(path, monkeypatch, scenario):
    """A run of opencode."""
    if scenario in (FILLS, COMPACTION):
        # No request has followed the reply of 91,960 tokens: the client compacted at once.
        readings = {"": [*in_epoch(1, 60_000, 91_900), *in_epoch(2, 9_000, 9_500)]}
        limits = (92_000, 100_000)
        return OpencodePlay(path, monkeypatch, "compaction", readings, limits=limits)
    if scenario == SUBAGENTS:
        readings = {
            "": in_epoch(1, 30_000, 33_000, 35_000),
            "ses_dee1843fbffebszgbiuoeLi97A": in_epoch(1, 61_000, 88_000),
            "ses_dee184071ffedWRJMvPFJjDtqp": in_epoch(1, 12_000, 15_000),
        }
        return OpencodePlay(path, monkeypatch, "subagents", readings)
    if scenario == TASKS:
        return OpencodePlay(path, monkeypatch, "plain_then_continue", {}, tasks=PLAN)
    replies = [(number, FULL + number) for number in range(9)]
    facts = {"replies": replies, "returns_at": 200_000}
    return OpencodePlay(path, monkeypatch, "plain_then_continue", {}, **facts)


# --- Qwen Code


def play_qwen(path, scenario):
    """A run of Qwen Code on one prompt."""
    if scenario == FILLS:
        run = QwenRun(path, NEW, "plain")
        name = run.calls[0]["stdin"]["session_id"]
        readings = {name: in_epoch(1, 21_000, 64_000, 118_000, 205_000)}
        return Recorded(run, name, "-p", readings=readings, limits=(850_000, 1_000_000))
    if scenario == SUBAGENTS:
        run = QwenRun(path, NEW, "subagents")
        name = run.calls[0]["stdin"]["session_id"]
        readings = {
            name: in_epoch(1, 20_000, 33_000, 52_000, 61_000),
            f"{name}.general-purpose-call_3": in_epoch(1, 9_000, 110_000, 114_000),
            f"{name}.general-purpose-call_4": in_epoch(1, 7_000, 8_000),
        }
        return Recorded(run, name, "-p", readings=readings)
    if scenario == COMPACTION:
        run = QwenRun(path, NEW, "compact")
        name = run.calls[0]["stdin"]["session_id"]
        readings = {name: [*in_epoch(1, 30_000, 60_000, 75_000), *in_epoch(2, 41_000)]}
        return Recorded(run, name, "-p", readings=readings)
    if scenario == STAYS:
        return Played(QwenPlayer(path, {}), "main", "-p")
    todos = [{"id": name, "content": name, "status": status} for name, status in TODOS]
    call = {"hook_event_name": "PostToolUse", "tool_name": "todo_write"}
    call |= {"tool_input": {"todos": todos}, "tool_response": {}}
    return Called(QwenSession(path), call, tasks=PLAN)
