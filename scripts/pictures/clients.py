"""Processes that stand for Claude Code and Codex: they write transcripts and call the real hooks.

Each call runs the code of the host's hook in a process of its own, below that of its session, with
the time of the call as its clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.system.timestamps import format_time

ROOT = Path(__file__).resolve().parents[2]

_CLIENT = """
import importlib, json, os, sys, tempfile, time
clock = [0.0]
time.time = lambda: clock[0]  # before any module takes it by its name
sys.path.insert(0, sys.argv[1])
import ultramon.hosts.hook_program, ultramon.hosts.calls.handling
for line in sys.stdin:
    at, module, argv, environ, payload = json.loads(line)
    program = importlib.import_module(module)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
        given.write(payload.encode())
        given.seek(0)
        if not (pid := os.fork()):
            clock[0] = at
            os.dup2(given.fileno(), 0)
            os.dup2(answer.fileno(), 1)
            os.environ.clear()
            os.environ.update(environ)
            os._exit(program.main(argv))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answer.seek(0)
        print(json.dumps([status, answer.read().decode()]), flush=True)
"""


@dataclass
class Machine:
    """Where the clients and ultramon keep their files.

    Attributes:
        folder: The home of the user, with everything below.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.state.mkdir(parents=True, mode=0o700)
        for host in ("claude-code", "codex"):
            InstalledChoices(choices_path(str(self.state), host)).save()

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.folder / "state"

    @property
    def environ(self) -> dict[str, str]:
        """What programs need that are to see this machine and no other."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TZ": "UTC",
            "LANG": "C.UTF-8",
            "CLAUDE_CONFIG_DIR": str(self.folder / ".claude"),
            "CODEX_HOME": str(self.folder / ".codex"),
            "XDG_CONFIG_HOME": str(self.folder / ".config"),
            "XDG_CACHE_HOME": str(self.folder / ".cache"),
            "ULTRAMON_STATE_DIR": str(self.state),
            "ULTRAMON_NO_RESIDENT": "1",
        }


class Client:
    """The process of one session, which lives until `close`.

    Args:
        machine: Where it runs.
        host: ``claude-code`` or ``codex``.
    """

    def __init__(self, machine: Machine, host: str) -> None:
        self.machine, self.host = machine, host
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CLIENT, str(ROOT), host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, at: float, program: str, payload: dict[str, Any], **environ: str) -> None:
        """Have it run a program of ultramon's.

        Args:
            at: The time, epoch seconds.
            program: Module, with a `main` that takes the words of a command line.
            payload: The standard input.
            environ: More variables.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        given = self.machine.environ | {"CLAUDE_PID": str(self._process.pid)} | environ
        argv = [program, choices_path(str(self.machine.state), self.host)]
        asked = [at, program, argv, given, json.dumps(payload)]
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        status, _ = json.loads(self._process.stdout.readline())
        assert status == 0, (program, payload, status)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Conversation:
    """What a client writes of one conversation, a session's or a subagent's, and reports by hooks.

    Attributes:
        machine: Where it runs.
        project: The project's directory.
        session_id: The session's.
        model: The model that answers.
        client: The session's process; None = none runs any more, and no hook is called.
    """

    machine: Machine
    project: str
    session_id: str
    model: str
    client: Client | None = None
    _calls: int = 0
    _tokens: int = 0
    _last_at: float = 0.0

    path: Path = field(init=False)
    """The transcript."""

    def _write(self, at: float, *entries: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for entry in entries:
                file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        os.utime(self.path, (at, at))

    def _next_id(self, kind: str) -> str:
        self._calls += 1
        return f"{kind}_{self._own_id[:10]}{self._calls:04d}"

    @property
    def _own_id(self) -> str:
        """What no other conversation is named: a reply with the id of another one is a copy."""
        return self.session_id


@dataclass
class ClaudeCode(Conversation):
    """A session of Claude Code, or a subagent of one.

    Attributes:
        agent: The subagent; None = the session itself.
        standing: Lines that the first request puts before the conversation.
    """

    agent: str | None = None
    standing: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        folder = self.machine.folder / ".claude" / "projects" / self.project.replace("/", "-")
        self.path = self._session_path = folder / f"{self.session_id}.jsonl"
        if self.agent is not None:
            self.path = folder / self.session_id / "subagents" / f"agent-{self.agent}.jsonl"

    @property
    def _own_id(self) -> str:
        return self.agent or self.session_id

    def write(self, at: float, *entries: dict[str, Any]) -> None:
        """Append lines to the transcript."""
        own: dict[str, Any] = {
            "timestamp": format_time(at),
            "sessionId": self.session_id,
            "cwd": self.project,
            "version": "2.1.330",
            "isSidechain": self.agent is not None,
        }
        if self.agent is not None:
            own["agentId"] = self.agent
        self._write(at, *(entry | own for entry in entries))

    def hook(self, at: float, event: str, **members: Any) -> None:
        """Call the hook."""
        if self.client is None:
            return
        payload = {
            "session_id": self.session_id,
            "transcript_path": str(self._session_path),
            "cwd": self.project,
            "permission_mode": "default",
            "hook_event_name": event,
        }
        if self.agent is not None and event != "SessionStart":
            payload |= {"agent_id": self.agent, "agent_type": "Explore"}
        variables = {"CLAUDE_PROJECT_DIR": self.project, "CLAUDE_CODE_ENTRYPOINT": "cli"}
        self.client.run(at, "ultramon.hosts.claude_code.hook", payload | members, **variables)

    def begin(self, at: float, prompt: str) -> None:
        """Start, and take the first prompt."""
        if self.agent is None:
            self.hook(at - 30, "SessionStart", source="startup", model=self.model)
            self.hook(at, "UserPromptSubmit", prompt=prompt)
        else:
            self.hook(at, "SubagentStart")
        message = {"role": "user", "content": prompt}
        self.write(at, {"type": "user", "message": message}, *self.standing)

    def turn(
        self,
        at: float,
        tokens: int,
        tool: str,
        given: dict[str, Any],
        result: str,
        *,
        says: str = "",
        response: object = None,
        is_open: bool = False,
    ) -> None:
        """Reply with a call of a tool, which runs.

        Args:
            at: When the tool has run.
            tokens: In the window when the model was asked.
            tool: Its name.
            given: Its input.
            result: What the model reads of it.
            says: A text before the call.
            response: What the hook is given of the result.
            is_open: Whether it still runs.
        """
        call = self._next_id("toolu")
        block = {"type": "tool_use", "id": call, "name": tool, "input": given}
        self.reply(at - 2, tokens, says, block)
        asked = {"tool_name": tool, "tool_input": given, "tool_use_id": call}
        if is_open:
            self.hook(at, "PreToolUse", **asked)
            return
        answered = {"type": "tool_result", "tool_use_id": call, "content": result}
        self.write(at, {"type": "user", "message": {"role": "user", "content": [answered]}})
        self.hook(at, "PostToolUse", **asked, tool_response=response or {})

    def reply(self, at: float, tokens: int, says: str, *blocks: dict[str, Any]) -> None:
        """Write a reply."""
        cached = min(self._tokens, tokens - 4)
        grown = tokens - cached - 4
        usage = {
            "input_tokens": 4,
            "cache_creation_input_tokens": grown,
            "cache_read_input_tokens": cached,
            # A reply is part of what the next request has more.
            "output_tokens": 180 + len(says) // 4 + grown // 12,
        }
        self._tokens, self._last_at = tokens, at
        text = [{"type": "text", "text": says}] if says else []
        message = {
            "id": self._next_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": self.model.removesuffix("[1m]"),
            "content": [*text, *blocks],
            "usage": usage,
        }
        self.write(at, {"type": "assistant", "message": message, "requestedModel": self.model})

    def task(self, at: float, tokens: int, number: int, subject: str, status: str) -> None:
        """Create a task, or change the status of one."""
        name, given = "TaskUpdate", {"taskId": str(number), "status": status}
        response: dict[str, Any] = {"success": True, "taskId": str(number)}
        if status == "pending":
            name, given = "TaskCreate", {"subject": subject, "description": subject}
            response = {"task": {"id": str(number), "subject": subject}}
        self.turn(at, tokens, name, given, subject, response=response)

    def launch(self, at: float, tokens: int, agent: str, task: str, model: str) -> None:
        """Launch a subagent in the background."""
        given = {"description": task, "prompt": task, "subagent_type": "Explore"}
        response = {
            "isAsync": True,
            "status": "async_launched",
            "agentId": agent,
            "description": task,
            "resolvedModel": model,
            "prompt": task,
        }
        self.turn(at, tokens, "Agent", given, f"agentId: {agent}", response=response)

    def take_result(self, at: float, agent: str, text: str) -> None:
        """Take what a subagent returned."""
        content = [{"type": "text", "text": text}] if text else []
        result = {"type": "tool_result", "tool_use_id": "launch", "content": content}
        response = {"status": "completed", "agentId": agent, "content": content}
        message = {"role": "user", "content": [result]}
        self.write(at, {"type": "user", "message": message, "toolUseResult": response})

    def compact(self, at: float, after_tokens: int, summary: str) -> None:
        """Compact by itself."""
        self.hook(at - 20, "PreCompact", trigger="auto", custom_instructions=None)
        metadata = {
            "trigger": "auto",
            "preTokens": self._tokens,
            "postTokens": after_tokens,
        }
        boundary = {"type": "system", "subtype": "compact_boundary", "compactMetadata": metadata}
        message = {"role": "user", "content": summary}
        self.write(at, boundary, {"type": "user", "message": message, "isCompactSummary": True})
        self._tokens = 0
        self.hook(at, "SessionStart", source="compact", model=self.model)
        self.hook(at, "PostCompact", trigger="auto", compact_summary=summary)

    def ask(self, at: float, tokens: int, tool: str, given: dict[str, Any], says: str) -> None:
        """Ask for the permission to run a tool."""
        call = self._next_id("toolu")
        block = {"type": "tool_use", "id": call, "name": tool, "input": given}
        self.reply(at - 2, tokens, says, block)
        self.hook(at, "PreToolUse", tool_name=tool, tool_input=given, tool_use_id=call)
        self.hook(at, "PermissionRequest", tool_name=tool, tool_input=given)

    def question(self, at: float, tokens: int, says: str) -> None:
        """Ask the user something."""
        self.reply(at - 2, tokens, says)
        self.hook(at, "Notification", notification_type="elicitation_dialog", message=says)

    def stop(self, at: float, tokens: int, says: str) -> None:
        """End the turn with a text."""
        self.reply(at, tokens, says)
        event = "Stop" if self.agent is None else "SubagentStop"
        self.hook(at, event, stop_hook_active=False, last_assistant_message=says)

    def show_status_line(self, at: float, window_tokens: int, limits: dict[str, Any]) -> None:
        """Report the window and the limits of the plan, as the status line does."""
        if self.client is None:
            return
        payload = {
            "session_id": self.session_id,
            "transcript_path": str(self.path),
            "cwd": self.project,
            "model": {"id": self.model, "display_name": self.model},
            "workspace": {"current_dir": self.project, "project_dir": self.project},
            "version": "2.1.330",
            "context_window": {"context_window_size": window_tokens, "current_usage": None},
            "rate_limits": limits,
        }
        self.client.run(
            at,
            "ultramon.hosts.claude_code.statusline",
            payload,
            CLAUDE_PROJECT_DIR=self.project,
        )


@dataclass
class Codex(Conversation):
    """A session of Codex."""

    window_tokens: int = 258_400
    _total: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = self.machine.folder / ".codex" / "sessions"

    def write(self, at: float, kind: str, **payload: Any) -> None:
        """Append a line to the rollout."""
        stamp = {"timestamp": format_time(at), "ordinal": self._calls}
        self._write(at, stamp | {"type": kind, "payload": payload})

    def hook(self, at: float, event: str, **members: Any) -> None:
        """Call the hook."""
        if self.client is None:
            return
        payload = {
            "session_id": self.session_id,
            "turn_id": f"{self.session_id}-1",
            "transcript_path": str(self.path),
            "cwd": self.project,
            "hook_event_name": event,
            "model": self.model,
            "permission_mode": "default",
        }
        self.client.run(at, "ultramon.hosts.codex.hook", payload | members)

    def begin(self, at: float, prompt: str) -> None:
        """Start, and take the first prompt."""
        stamp = format_time(at)
        day = Path(*stamp[:10].split("-"))
        name = f"rollout-{stamp[:19].replace(':', '-')}-{self.session_id}.jsonl"
        self.path = self.path / day / name
        self.write(
            at - 30,
            "session_meta",
            session_id=self.session_id,
            id=self.session_id,
            timestamp=stamp,
            cwd=self.project,
            originator="codex_cli",
            cli_version="0.169.0",
            source="cli",
            thread_source="user",
            base_instructions={"text": "You are Codex, and work in a repository. " * 300},
        )
        self.hook(at - 30, "SessionStart", source="startup")
        self.write(at, "event_msg", type="task_started", model_context_window=self.window_tokens)
        self.write(at, "turn_context", cwd=self.project, model=self.model)
        content = [{"type": "input_text", "text": prompt}]
        self.write(at, "response_item", type="message", role="user", content=content)
        self.hook(at, "UserPromptSubmit", prompt=prompt)

    def turn(
        self,
        at: float,
        tokens: int,
        tool: str,
        given: dict[str, Any],
        result: str,
        *,
        says: str = "",
        is_open: bool = False,
    ) -> None:
        """Reply with a call of a tool, which runs; see `ClaudeCode.turn`."""
        call = self._next_id("call")
        if says:
            content = [{"type": "output_text", "text": says}]
            self.write(at - 2, "response_item", type="message", role="assistant", content=content)
        arguments = json.dumps(given)
        self.write(
            at - 2, "response_item", type="function_call", name=tool, arguments=arguments,
            call_id=call,
        )  # fmt: skip
        last = self._count(at - 2, tokens)
        name = "Bash" if tool == "exec_command" else tool
        asked = {"tool_name": name, "tool_input": given, "tool_use_id": call}
        if is_open:
            self.hook(at, "PreToolUse", **asked)
            return
        self.write(at, "response_item", type="function_call_output", call_id=call, output=result)
        self._counted(at, last)
        self.hook(at, "PostToolUse", **asked, tool_response=result[:80])

    def _count(self, at: float, tokens: int) -> dict[str, int]:
        cached = max(0, self._tokens - 200)
        last = {
            "input_tokens": tokens,
            "cached_input_tokens": min(cached, tokens),
            "cache_write_input_tokens": 0,
            "output_tokens": 160 + max(0, tokens - self._tokens) // 12,
            "reasoning_output_tokens": 60,
        }
        last["total_tokens"] = tokens + last["output_tokens"]
        self._tokens = tokens
        self._total = {name: count + self._total.get(name, 0) for name, count in last.items()}
        self.write(
            at,
            "token_usage_record",
            thread_id=self.session_id,
            session_id=self.session_id,
            response_id=self._next_id("resp"),
            usage=last,
            thread_token_usage=self._total,
        )
        return last

    def _counted(self, at: float, last: dict[str, int]) -> None:
        info = {
            "total_token_usage": self._total,
            "last_token_usage": last,
            "model_context_window": self.window_tokens,
        }
        self.write(at, "event_msg", type="token_count", info=info, rate_limits=None)

    def plan(self, at: float, tokens: int, steps: list[tuple[str, str]]) -> None:
        """Write the plan anew."""
        listed = [{"step": step, "status": status} for step, status in steps]
        self.turn(at, tokens, "update_plan", {"plan": listed}, "Plan updated")

    def stop(self, at: float, tokens: int, says: str) -> None:
        """End the turn with a text."""
        content = [{"type": "output_text", "text": says}]
        self.write(at, "response_item", type="message", role="assistant", content=content)
        self._counted(at, self._count(at, tokens))
        self.write(at, "event_msg", type="task_complete", last_agent_message=says)
        self.hook(at, "Stop", stop_hook_active=False, last_assistant_message=says)
