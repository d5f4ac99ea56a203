"""The real Codex, pinned and cached, against a scripted stand-in for its model on loopback."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from helpers.program import run_process
from helpers.requirements import missing, require_tool
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log

VERSION = "0.169.0"
MODEL = "gpt-5.2"
RUN_SECONDS = 120
_MARK = re.compile(r"\[\[(\w+)\]\]")


def find_client():
    """Return the client's program, installed by npm once for all tests of this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ultramon-tests" / "npm" / f"codex-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "node_modules" / ".bin" / "codex"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            package = f"@openai/codex@{VERSION}"
            options = ["--no-fund", "--no-audit", "--prefix", str(folder)]
            done = subprocess.run(
                [require_tool("npm"), "install", *options, package],
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            if done.returncode:
                missing(f"npm cannot install {package}: {done.stderr[-300:]}")
    require_tool("node")
    return program


class Step:
    """One reply of the model: how many tokens the request had, and the calls or the text.

    A call is a shell command, or a tool's name and arguments, maybe with its namespace. The reply
    waits until `until` is true.
    """

    def __init__(self, tokens, *calls, text="", error=None, status=400, until=lambda: True):
        self.tokens = tokens
        self.status = status
        self.until = until
        self.calls = [("exec_command", {"cmd": c}) if isinstance(c, str) else c for c in calls]
        self.text = text or ("" if calls else "done")
        self.error = error


class Api:
    """Plays the steps of each agent, known by the first ``[[NAME]]`` in its prompts.

    The last step is played again where an agent asks more often.

    Attributes:
        requests: Of each request the agent, ``compact`` for that of a summary, and the texts that
            hooks have put into the conversation so far.
        prompts: Of each request the prompts so far.
    """

    def __init__(self, steps, compact=None):
        self._steps = steps
        self._played = dict.fromkeys(steps, 0)
        self._compact = compact or Step(100, text="[[MAIN]] summary")
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self.requests = []
        self.prompts = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                """Say nothing."""

            def do_GET(self):
                self.send(200, "application/json", b'{"data":[],"models":[]}')

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send(*outer.answer(body))

            def send(self, status, kind, data):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body):
        """Return status, type and bytes of the answer to a request."""
        name, injected = _agent_of(body), _injected(body)
        with self._lock:
            is_turn = bool(body.get("tools"))
            step = self._compact
            if is_turn:
                # The client tells a parent of a child's end in a turn that may come or not.
                own, number = self._steps[name], self._played[name]
                step = own[min(number, len(own) - 1)]
                self._played[name] = number + 1
            self.requests.append((name if is_turn else "compact", injected))
            self.prompts.append(prompts_of(body))
        deadline = time.monotonic() + RUN_SECONDS / 2
        while not step.until() and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        return self.reply(step)

    def reply(self, step):
        """Return status, type and bytes of a step."""
        if step.error is not None:
            return step.status, "application/json", json.dumps({"error": step.error}).encode()
        events = "".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in self._events(step)
        )
        return 200, "text/event-stream", events.encode()

    def _events(self, step):
        done = {"status": "completed"}
        items = [
            {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": name,
             "arguments": json.dumps(arguments), **done,
             **({"namespace": namespace[0]} if namespace else {})}
            for (name, arguments, *namespace), n in zip(step.calls, self._ids, strict=False)
        ]  # fmt: skip
        if step.text:
            content = [{"type": "output_text", "text": step.text, "annotations": []}]
            message = {"type": "message", "id": f"msg_{next(self._ids)}", "role": "assistant"}
            items.append({**message, "content": content, **done})
        usage = {"input_tokens": step.tokens, "output_tokens": 5, "total_tokens": step.tokens + 5}
        response = {"id": f"resp_{next(self._ids)}", "object": "response", "output": items}
        yield {"type": "response.created", "response": {**response, "output": []}}
        for number, item in enumerate(items):
            yield {"type": "response.output_item.done", "output_index": number, "item": item}
        yield {"type": "response.completed", "response": {**response, "usage": usage, **done}}

    def left(self):
        """How many steps of each agent nobody asked for; none of those that had all."""
        left = {name: len(own) - self._played[name] for name, own in self._steps.items()}
        return {name: count for name, count in left.items() if count > 0}

    def told(self, name):
        """What hooks have put before each request of an agent, beyond what was there before."""
        mine = [injected for agent, injected in self.requests if agent == name]
        return [
            [text for text in after if text not in before]
            for before, after in itertools.pairwise([[], *mine])
        ]


def _texts(item):
    content = item.get("content")
    return [part.get("text", "") for part in content] if isinstance(content, list) else []


def _agent_of(body):
    for item in body["input"]:
        if item.get("role") == "user" and (found := _MARK.search(" ".join(_texts(item)))):
            return found.group(1)
    return "MAIN"


def prompts_of(body):
    """What users and prompts have said so far."""
    items = (item for item in body["input"] if item.get("role") == "user")
    return [text for item in items for text in _texts(item)]


def _injected(body):
    return [
        text
        for item in body["input"]
        if item.get("role") == "developer"
        for text in _texts(item)
        if text.startswith(("Context window", "[ultramon]"))
    ]


class Client:
    """A home of the client and a project, and a state directory beside them."""

    def __init__(self, path):
        self.program = find_client()
        self.home, self.project, self.states = path / "home", path / "project", path / "state"
        self.configuration = self.home / ".codex"
        for folder in (self.configuration, self.project):
            folder.mkdir(parents=True)
        self.hooks = self.configuration / "hooks.json"
        self.variables = {
            "HOME": str(self.home),
            "CODEX_HOME": str(self.configuration),
            "ULTRAMON_STATE_DIR": str(self.states),
        }

    def ultramon(self, *arguments):
        """Run ultramon beside the client."""
        return run_process(*arguments, **self.variables)

    def configure(self, api, config=""):
        """Write the client's configuration for a scripted model."""
        self.configuration.joinpath("config.toml").write_text(
            f'model = "{MODEL}"\nmodel_provider = "script"\napproval_policy = "never"\n'
            f"check_for_update_on_startup = false\n{config}\n"
            "[analytics]\nenabled = false\n[feedback]\nenabled = false\n"
            f'[model_providers.script]\nname = "script"\nbase_url = "{api.url}"\n'
            'wire_api = "responses"\nenv_key = "SCRIPT_KEY"\nrequest_max_retries = 0\n'
            f'stream_max_retries = 0\n[projects."{self.project}"]\ntrust_level = "trusted"\n'
        )

    @contextmanager
    def api(self, steps, *, config="", compact=None):
        """Serve a scripted model."""
        api = Api(steps, compact)
        self.configure(api, config)
        try:
            yield api
        finally:
            api.close()

    def environ(self):
        """The environment of the client: it reaches the scripted model and nothing else."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | self.variables | {
            "SCRIPT_KEY": "none", "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
        }  # fmt: skip

    def run(self, *arguments, trusted=True):
        """Run ``codex exec`` to its end; return the process."""
        trust = ["--dangerously-bypass-hook-trust"] if trusted else []
        return subprocess.run(
            [self.program, "exec", *trust, "--dangerously-bypass-approvals-and-sandbox",
             "--skip-git-repo-check", *arguments],
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            cwd=self.project,
            check=False,
            timeout=RUN_SECONDS,
        )  # fmt: skip

    def records(self):
        """The states of all agents."""
        directory = StateDirectory(str(self.states))
        return [directory.read(agent_id) for agent_id in directory.list_ids()]

    def has_child_ended(self):
        """Whether the hooks have seen a subagent end."""
        return any(record.parent_id and not record.active for record in self.records())

    def has_child_overflowed(self):
        """Whether a rollout says that a request was refused as too large."""
        rollouts = self.configuration.rglob("rollout-*.jsonl")
        return any("context_window_exceeded" in file.read_text() for file in rollouts)

    def failures(self):
        """The problems in the failure log."""
        path = failure_log.log_path(str(self.states), "codex")
        return [failure["problem"] for failure in failure_log.read(path)]
