"""An installation that an earlier ultramon made, planted in a home of its own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys

from helpers import DATA
from helpers.program import environment, run
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts.install.hook_commands import package_directory
from ultramon.hosts.install.interpreter import this_interpreter

CASES = {
    f"{name}, {path.stem.removeprefix('installations-')}": case
    for path in sorted(DATA.glob("installations-*.json"))
    for name, case in json.loads(path.read_bytes()).items()
}
PLACES = ("--project", "--local", "--plugin", "../plugin")
"""Options that say where an installation is."""
_MARK = re.compile("@MARK ([^@]+)@")
_COMMENT = re.compile("^ *//.*", re.MULTILINE)
_HOMES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "QWEN_HOME", "GEMINI_CLI_HOME")
_EVENTS = {"gemini": "BeforeAgent"}
_LEFT = ("hook.secret", "journal.", "subagents")
"""What an installation does not own: secrets of a server, what is known about agents."""


class EarlierInstallation:
    """A home with what one case holds, planted where nothing is.

    Args:
        case: As `scripts/record_installations.py` keeps it.
        root: An empty directory.
    """

    def __init__(self, case, root):
        self.host, self.options, self.root = case["host"], case["options"], root
        self.before = case["before"]
        for folder in ("home", "project"):
            (root / folder).mkdir()
        self.python = this_interpreter()
        files = json.dumps(case["files"])
        if "exec '@PYTHON@'" in files:
            subprocess.run(
                [sys.executable, "-m", "venv", "--without-pip", root / "a python"], check=True
            )
            self.python = str(root / "a python" / "bin" / "python")
        for path, text in self.before.items():
            self._write(path, text, 0o644)
        self.clean = self.tree()
        for path, file in json.loads(self._here(files)).items():
            self._write(path, file["text"], int(file["mode"], 8))
        hooks = [path for path in case["files"] if not path.startswith("state/")]
        self.settings = root / hooks[-1]

    def as_home(self, monkeypatch):
        """Make this the home of the present process too, and its Python that of the case."""
        monkeypatch.setattr(sys, "executable", self.python)
        monkeypatch.chdir(self.root / "project")
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        return self

    def _write(self, path, text, mode):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(text)
        file.chmod(mode)

    def _here(self, text):
        names = {"@PACKAGE@": package_directory(), "@PYTHON@": self.python, "@ROOT@": self.root}
        for name, found in names.items():
            text = text.replace(name, str(found))
        return _MARK.sub(
            lambda mark: hashlib.sha256(os.fsencode(self.root / mark[1])).hexdigest()[:12], text
        )

    @property
    def variables(self):
        home, states = self.root / "home", self.root / "state"
        return {
            "HOME": str(home),
            "ULTRAMON_STATE_DIR": str(states),
            "ULTRAMON_NO_RESIDENT": "1",
            **dict.fromkeys(_HOMES, ""),
        }

    def tree(self):
        """The files of the client, and ultramon's own that a removal takes away."""
        return {
            str(path.relative_to(self.root)): (path.stat().st_mode & 0o777, path.read_bytes())
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
            and (parts := path.relative_to(self.root).parts)[0] != "a python"
            and not (parts[0] == "state" and parts[1].startswith(_LEFT))
        }

    def installed(self):
        """The same, without what tells one installation from the next one."""
        tree = self.tree()
        path = f"state/{self.host}.json"
        mode, text = tree[path]
        choices = json.loads(text)
        del choices["installedAt"]
        return {**tree, path: (mode, choices)}

    def run(self, *arguments):
        done = run(*arguments, **self.variables)
        assert done.returncode == 0, done.stderr
        return done

    def findings(self):
        """What the doctor finds fault with, by what it asked."""
        done = run("doctor", self.host, "--json", **self.variables)
        found = json.loads(done.stdout)["findings"]
        return {one["check"]: one for one in found if one["status"] != "ok"}

    def commands(self):
        """The commands of the hooks, each once."""
        hooks = json.loads(_COMMENT.sub("", self.settings.read_text()))["hooks"]
        return {
            hook["command"]
            for entries in hooks.values()
            for entry in entries
            for hook in entry["hooks"]
            if "command" in hook and "/opt/other/" not in hook["command"]
        }

    def call(self, session_id):
        """Run the hook as the client does; return whether it has reported a session."""
        event = _EVENTS.get(self.host, "UserPromptSubmit")
        payload = {"hook_event_name": event, "session_id": session_id, "prompt": "begin"}
        (command,) = self.commands()
        done = subprocess.run(
            ["sh", "-c", command],
            input=json.dumps(payload).encode(),
            env=environment(**self.variables),
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return session_id in StateDirectory(str(self.root / "state")).list_ids()
