"""A home and a project of the client as people have them, and the program run in there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from hypothesis import strategies as st

from helpers.program import PROGRAM, environment
from ultramon.hosts.claude_code.install.install import plan_installation
from ultramon.hosts.claude_code.install.uninstall import plan_removal
from ultramon.hosts.install.plans import Choices, SetupRequest

_names = st.text(max_size=5) | st.sampled_from(("hooks of", "statusLines", "Stop"))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=12,
)
json_objects = st.dictionaries(_names, json_values, max_size=4)

OTHER_HOOKS = """{
  "permissions": {"allow": ["Bash(git *)"], "deny": []},
  "hooks": {
    "PostToolUse": [
      {
        "matcher": "*",
        "hooks": [
          {"type": "command", "command": "/opt/other/bin/observe --all", "timeout": 3},
          {"type": "command", "command": "python3 ~/.claude/hooks/lint.py"}
        ]
      }
    ],
    "PreCompact": [{"hooks": [{"type": "command", "command": "echo keep"}]}],
    "WorktreeCreate": []
  }
}
"""

SHAPES = {
    "empty file": b"",
    "blank lines": b"\n\n",
    "empty object": b"{}",
    "empty object, line end": b"{}\n",
    "empty object, space in it": b"{ \n }\n",
    "two spaces": b'{\n  "model": "opus",\n  "env": {\n    "A": "1"\n  }\n}\n',
    "four spaces": b'{\n    "model": "opus",\n    "hooks": {}\n}\n',
    "tabs": b'{\n\t"model": "opus",\n\t"hooks": {\n\t\t"Stop": []\n\t}\n}\n',
    "no indentation": b'{\n"model": "opus",\n"cleanupPeriodDays": 30\n}\n',
    "minified": b'{"model":"opus","env":{"A":"1"},"hooks":{"Stop":[{"hooks":[]}]}}',
    "one line": b'{ "model": "opus", "includeCoAuthoredBy": false }\n',
    "one member on one line": b'{"model": "opus"}\n',
    "CRLF": b'{\r\n  "model": "opus",\r\n  "hooks": {\r\n  }\r\n}\r\n',
    "no final line end": b'{\n  "model": "opus"\n}',
    "spaces around": b'\n  {\n  "model" : "opus" ,\n  "a" : [ ]\n  }  \n\n',
    "comma first": b'{ "model": "opus"\n, "env": { "A": "1" }\n}\n',
    "byte order mark": b'\xef\xbb\xbf{\n  "model": "opus"\n}\n',
    "unicode": '{\n  "zażółć": "gęślą 🦊",\n  "escaped": "\\u00e9\\ud83e\\udd8a \\/"\n}\n'.encode(),
    "lone surrogate": b'{\n  "odd": "\\ud800"\n}\n',
    "line separators": '{\n  "odd": "a\u2028b\u2029c\u0085d"\n}\n'.encode(),
    "spellings of numbers": b'{"a": 1.0, "b": 1, "c": 1e3, "d": 1E+2, "e": -0, "f": 0.10}\n',
    "huge numbers": b'{"big": ' + b"9" * 5000 + b', "far": 1e999, "deep": 1e-999}\n',
    "keys that stand twice elsewhere": b'{"env": {"A": "1", "A": "2"}}\n',
    "other tools": OTHER_HOOKS.encode(),
    "status line": b'{\n  "statusLine": {"type": "command", "command": "ccline \\"x\\"",'
    b' "padding": 0, "refreshInterval": 5}\n}\n',
    "status line, spread out": b'{\n  "statusLine": {\n    "command" : "c\\u0063line",\n'
    b'    "type": "command"\n  }\n}\n',
    "status line null": b'{"statusLine": null}\n',
    "odd entries": b'{"hooks": {"Stop": [1, null, {"hooks": 5}, {"hooks": [7, {}]}]}}\n',
    "order": b'{"z": 1, "hooks": {"Stop": [], "PreToolUse": []}, "a": {"y": 1, "b": 2}}\n',
}
"""Settings as they are found, each readable for the client."""


class ClientHome:
    """Directories of a user who has configured nothing, and our commands run in them.

    Args:
        root: An empty directory.
    """

    def __init__(self, root):
        self.home = root / "home"
        self.project = self.home / "work" / "shop"
        self.project.mkdir(parents=True)
        self.states = root / "state"
        self.settings = self.home / ".claude" / "settings.json"

    @property
    def variables(self):
        return {
            "HOME": str(self.home),
            "ULTRAMON_STATE_DIR": str(self.states),
            "CLAUDE_CONFIG_DIR": "",
        }

    def write(self, data, layer="user"):
        """Write a layer's settings; returns the path."""
        path = self.path(layer)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data, indent=2).encode())
        return path

    def path(self, layer):
        names = {"project": "settings.json", "local": "settings.local.json"}
        folder = self.home if layer == "user" else self.project
        return folder / ".claude" / names.get(layer, "settings.json")

    def run(self, *arguments, cwd=None, **changes):
        """Run the program in the project, to its end."""
        return subprocess.run(
            [PROGRAM, *map(str, arguments)],
            capture_output=True,
            encoding="utf-8",
            env=environment(**{**self.variables, **changes}),
            cwd=cwd or self.project,
            check=False,
            timeout=60,
        )

    def on_terminal(self, *arguments):
        """Start the program in the project on a terminal, for a person's answers."""
        import pexpect

        return pexpect.spawn(
            PROGRAM,
            [*map(str, arguments)],
            env=environment(**self.variables),
            cwd=self.project,
            timeout=60,
            dimensions=(24, 200),
        )

    def install(self, *arguments, **changes):
        return self.run("install", "claude-code", "--force", *arguments, **changes)

    def uninstall(self, *arguments, **changes):
        return self.run("uninstall", "claude-code", *arguments, **changes)

    def plan(self, layer="user", interpreter=sys.executable, **choices):
        """Plan an installation in this process; needs `as_home` to have been called."""
        request = self.request(layer, choices=Choices(**choices))
        return plan_installation(request, os.path.abspath(interpreter))

    def plan_removal(self, layer="user"):
        return plan_removal(self.request(layer))

    def request(self, layer, **asked):
        return SetupRequest("claude-code", str(self.project), str(self.states), layer, **asked)

    def put(self, layer="user", **choices):
        """Install in this process."""
        plan = self.plan(layer, **choices)
        plan.apply(time.time())
        return plan

    def take_out(self, layer="user"):
        """Uninstall in this process."""
        plan = self.plan_removal(layer)
        plan.apply(time.time())
        return plan

    def as_home(self, monkeypatch):
        """Make this the home of the present process too."""
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(self.project)
        return self

    def installed(self):
        return json.loads((self.states / "claude-code.json").read_text())

    def tree(self):
        """Everything below the root, with the bytes of files and the targets of links."""
        root = self.home.parent
        return {
            str(path.relative_to(root)): os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else None
            for path in sorted(root.rglob("*"))
        }
