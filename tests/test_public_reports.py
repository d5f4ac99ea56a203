"""Inputs made after public reports of this kind of tool, each with the values that are right.

A folder of the data is one input in a client's or a provider's own format: ``home`` is the home
directory that a command runs in, ``steps`` are what a client writes and calls.
"""

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from helpers import DATA

from ultramon import ContextConfig, create_context_monitor
from ultramon.hosts.claude_code import statusline

CASES = sorted((DATA / "public_reports").iterdir())
BIN = Path(sys.executable).parent


class Message:
    """What LangChain returns, as far as a monitor looks at it."""

    def __init__(self, given):
        self.type, self.content, self.id = "ai", "x", "1"
        self.usage_metadata = given["langchain"]
        self.response_metadata = given.get("response_metadata", {})


def filled(value):
    """Replace "@-40" by the time 40 minutes ago, and "%BIG:n%" by n letters."""
    if isinstance(value, dict):
        return {name: filled(one) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one) for one in value]
    if isinstance(value, str) and value.startswith("@"):
        at = datetime.now(UTC) + timedelta(minutes=float(value[1:]))
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, str) and value.startswith("%BIG:"):
        return "A" * int(value[5:-1])
    return value


class Machine:
    """A home directory, a state directory, and the programs that run in them."""

    def __init__(self, path, case, folder):
        self.case, self.path = case, path
        self.home, self.state = path / "home", path / "state"
        if (folder / "home").is_dir():
            shutil.copytree(folder / "home", self.home, symlinks=True)
        self.home.mkdir(exist_ok=True)
        self.state.mkdir(mode=0o700)

    def run(self, *command, given=None):
        environ = {
            "PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8",
            "ULTRAMON_STATE_DIR": str(self.state), "ULTRAMON_NO_RESIDENT": "1",
        }  # fmt: skip
        data = None if given is None else json.dumps(given).encode()
        return subprocess.run(
            command, input=data, env=environ, cwd=self.path, capture_output=True, check=False
        )

    def report(self):
        done = self.run(BIN / "ultramon", "report", "--json", "--days", "3000")
        found = json.loads(done.stdout)
        found["told"] = done.stderr.decode()
        found["projectNames"] = [one["name"] for one in found["byProject"]]
        found["fileNames"] = [one["name"] for one in found["byFile"]]
        return found

    def deleted_cwd(self):
        gone = self.path / "gone"
        command = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec ultramon {self.case['command']}"
        done = self.run("/bin/bash", "-c", command)
        return {"rc": done.returncode, "told": done.stderr.decode()}

    def live(self):
        case, session = self.case, self.case["session"]
        path = self.home / case["file"]
        path.parent.mkdir(parents=True)
        path.touch()
        payload = {"session_id": session, "transcript_path": str(path), "cwd": "/home/dev/shop"}
        answers = []
        for step in case["steps"]:
            if "append" in step:
                with path.open("ab") as out:
                    out.write(bytes(step.get("before", 0)))
                    for entry in step["append"]:
                        out.write(json.dumps(filled(entry)).encode() + b"\n")
            elif "statusline" in step:
                choices = self.state / "claude-code.json"
                program = (sys.executable, "-I", "-S", statusline.__file__, str(choices))
                self.run(*program, given={**payload, **step["statusline"]})
            else:
                given = {**payload, "hook_event_name": step["hook"], **step.get("payload", {})}
                host = case.get("host", "claude-code")
                answers.append(self.run(BIN / "ultramon", "hook", host, given=given).stdout)
        state = json.loads((self.state / "subagents" / f"{session}.json").read_bytes())
        return {**state, "warned": any(b"Context window:" in answer for answer in answers)}

    def sdk(self):
        config = ContextConfig(context_limit_tokens=200_000)
        with create_context_monitor("a", config) as monitor:
            for one in self.case["responses"]:
                action = monitor.report_response(Message(one) if "langchain" in one else one)
            return {"tokens": monitor.get_state().estimated_tokens, "level": action.level}


def meets(value, wanted):
    if not isinstance(wanted, dict):
        return value == wanted
    ((how, what),) = wanted.items()
    return what not in str(value) if how == "lacks" else what in str(value)


@pytest.mark.parametrize("folder", CASES, ids=lambda one: one.name)
def test_an_input_is_counted_as_it_is(tmp_path, folder):
    """What a report, a hook or a monitor says of it is what happened."""
    case = json.loads((folder / "case.json").read_text())
    machine = Machine(tmp_path, case, folder)
    got = getattr(machine, case["kind"].replace("-", "_"))()
    for name, wanted in case["expect"].items():
        assert meets(got.get(name), wanted), (name, got.get(name), wanted)
