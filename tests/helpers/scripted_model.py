"""A scripted stand-in for the model of a client, on loopback."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RUN_SECONDS = 120
COMPACT = "compact"
"""Name of the agent whose requests are those for a summary."""
OF_ULTRAMON = ("Context window", "[ultramon]", "The user runs this job as a relay")
"""How what ultramon's hooks say to an agent begins."""
_MARK = re.compile(r"\[\[(\w+)\]\]")


class Step:
    """One reply of the model: how many tokens the request had, and the calls or the text.

    A call is a shell command, or a tool's name and arguments, maybe with its namespace. The reply
    waits until `until` is true.
    """

    def __init__(self, tokens, *calls, text="", error=None, status=400, until=lambda: True):
        self.tokens = tokens
        self.status = status
        self.until = until
        self.calls = calls
        self.text = text or ("" if calls else "done")
        self.error = error


class ScriptedModel:
    """Plays the steps of each agent, known by the first ``[[NAME]]`` in its prompts.

    The last step is played again where an agent asks more often. A subclass speaks the language of
    one provider.

    Attributes:
        requests: Of each request the agent, `COMPACT` for that of a summary, and the texts that
            hooks have put into the conversation so far.
        prompts: Of each request the prompts so far.
    """

    def __init__(self, steps, compact):
        self._steps = steps
        self._played = dict.fromkeys(steps, 0)
        self._compact = compact
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
                self.send(*outer.answer(body, self.path))

            def send(self, status, kind, data):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def prompts_of(self, body):
        """The texts of a request that people, or agents in their place, have written."""
        raise NotImplementedError

    def injected_in(self, body):
        """The texts in a request that hooks have put there."""
        raise NotImplementedError

    def shell(self, command):
        """Name and arguments of the call that runs a shell command."""
        return "run_shell_command", {"command": command, "description": "run"}

    def calls_of(self, step):
        """Name and arguments of each call of a step."""
        return [self.shell(one) if isinstance(one, str) else one for one in step.calls]

    def is_turn(self, body):
        """Whether a request is no other one than that of a turn."""
        return bool(body.get("tools"))

    def write(self, step, body, path):
        """Return status, type and bytes of a reply."""
        raise NotImplementedError

    def answer(self, body, path):
        """Return status, type and bytes of the answer to a request."""
        prompts = self.prompts_of(body)
        found = map(_MARK.search, prompts)
        name = next((one.group(1) for one in found if one), "MAIN")
        is_turn = self.is_turn(body)
        with self._lock:
            step = self._compact
            if is_turn:
                # The client tells a parent of a child's end in a turn that may come or not.
                own, number = self._steps[name], self._played[name]
                step = own[min(number, len(own) - 1)]
                self._played[name] = number + 1
            self.requests.append((name if is_turn else COMPACT, self.injected_in(body)))
            self.prompts.append(prompts)
        deadline = time.monotonic() + RUN_SECONDS / 2
        while not step.until() and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        return self.reply(step, body, path)

    def reply(self, step, body, path):
        """Return status, type and bytes of a step."""
        if step.error is not None:
            return step.status, "application/json", json.dumps({"error": step.error}).encode()
        return self.write(step, body, path)

    def left(self):
        """How many steps of each agent nobody asked for; none of those that had all."""
        left = {name: len(own) - self._played[name] for name, own in self._steps.items()}
        return {name: count for name, count in left.items() if count > 0}

    def replies_after(self, name, words):
        """How many replies an agent has made since it first read some words of a hook."""
        mine = [" ".join(injected) for agent, injected in self.requests if agent == name]
        return sum(words in text for text in mine)

    def told(self, name):
        """What hooks have put before each request of an agent, beyond what was there before."""
        mine = [injected for agent, injected in self.requests if agent == name]
        return [
            [text for text in after if text not in before]
            for before, after in itertools.pairwise([[], *mine])
        ]
