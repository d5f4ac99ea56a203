"""The bundle: all code of a common call in one file, used only where it is what the sources say."""

import marshal
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.client_home import ClientHome
from helpers.hooked_session import HookedSession, encoded, tokens_at

import ultramon
from ultramon.hosts.claude_code.setup.commands import (
    HOOK_SCRIPT,
    LAUNCHERS,
    SCRIPTS,
    STATUS_LINE_SCRIPT,
)
from ultramon.hosts.code_bundle import (
    HEAD_BYTES,
    RENEW_SECONDS,
    bundle_key,
    bundle_path,
)
from ultramon.hosts.doctor import OK, DoctorContext, examine
from ultramon.hosts.launcher import Launcher

WRITE = """
import sys
sys.path.insert(0, sys.argv[1])
from ultramon.hosts.claude_code.setup.commands import SCRIPTS
from ultramon.hosts.launcher import Launcher
Launcher(SCRIPTS["hook.py"], sys.executable, sys.argv[2]).write()
"""


class LaunchedSession(HookedSession):
    """A session whose hooks are run by a launcher."""

    def __init__(self, path, script=HOOK_SCRIPT):
        super().__init__(path)
        self.freeze()
        self.launcher = Launcher(SCRIPTS[script], sys.executable, str(self.installed)).path
        self.bundle = Path(bundle_path(self.launcher))

    def make(self, script=HOOK_SCRIPT):
        Launcher(SCRIPTS[script], sys.executable, str(self.installed)).write()
        return self

    def command(self):
        return [self.launcher]

    def imported(self, payload):
        """Run the launcher; what it says, and which modules were imported one by one."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "importtime", self.launcher],
            input=encoded(payload),
            env=self.environ,
            capture_output=True,
            check=True,
        )
        lines = done.stderr.decode().splitlines()
        return done.stdout, {line.rpartition("|")[2].strip() for line in lines}

    def ours(self, event="PostToolUse"):
        """The modules of ultramon that a call imports one by one; it is stored in any case."""
        self.reply(tokens_at(90), "toolu_a")
        before = self.record().seq if self.ids() else 0
        names = self.imported(self.payload(event, tool_use_id="toolu_a", tool_name="Bash"))[1]
        assert self.record().seq == before + 1
        assert self.failures() == []
        return {name for name in names if name.startswith("ultramon")}

    def grow_old(self):
        """Let the bundle be older than what is not made anew."""
        at = time.time() - RENEW_SECONDS - 1
        os.utime(self.bundle, (at, at))


@pytest.fixture
def session(tmp_path):
    return LaunchedSession(tmp_path)


def bundled(path):
    """The modules in a bundle."""
    _, _, index = marshal.loads(path.read_bytes()[len(bundle_key()) : HEAD_BYTES])
    return {entry[0] for entry in index}


def test_a_common_call_imports_nothing_one_by_one(session):
    """And the bundle holds what such a call needs, and no module more."""
    session.make().tool(tokens_at(90))
    names = bundled(session.bundle)
    assert session.ours() == set()
    session.bundle.unlink()
    assert session.ours() == names


@pytest.mark.parametrize("event", ["PreToolUse", "UserPromptSubmit", "Stop"])
def test_other_common_calls_import_next_to_nothing(session, event):
    """They need what a tool call needs."""
    session.make().tool(tokens_at(90))
    assert session.ours(event) <= {"ultramon.hosts.claude_code.last_request"}


def test_a_status_line_imports_nothing_one_by_one(tmp_path):
    """It has a launcher of its own, and a bundle."""
    session = LaunchedSession(tmp_path, STATUS_LINE_SCRIPT).make(STATUS_LINE_SCRIPT)
    session.reply(tokens_at(90), "toolu_a")
    payload = {"session_id": session.session_id, "transcript_path": str(session.transcript)}
    session.imported(payload)
    said, names = session.imported(payload)
    assert said.startswith(b"ctx ")
    assert {name for name in names if name.startswith("ultramon")} == set()


def damaged(path, how):
    data = path.read_bytes()
    if how == "torn in the head":
        path.write_bytes(data[:700])
    elif how == "torn in the code":
        path.write_bytes(data[: len(data) // 2])
    elif how == "of another Python":
        path.write_bytes(data.replace(sys.version.encode(), b"3.99.0 (main)", 1))
    elif how == "others may write to it":
        path.chmod(0o622)
    elif how == "a link":
        path.rename(path.with_suffix(".real"))
        path.symlink_to(path.with_suffix(".real"))
    else:
        assert how == "code that fails"
        code = marshal.dumps(compile("raise KeyError", "x", "exec"))
        path.write_bytes(data[:HEAD_BYTES] + code + data[HEAD_BYTES + len(code) :])


@pytest.mark.parametrize(
    "how",
    [
        "torn in the head",
        "torn in the code",
        "of another Python",
        "others may write to it",
        "code that fails",
        "a link",
    ],
)
def test_a_damaged_bundle_is_not_used(session, how):
    """The call imports as it would without one; once the bundle is a minute old it is made anew."""
    session.make()
    damaged(session.bundle, how)
    assert "ultramon.hosts.handling" in session.ours()
    if how == "a link":  # what it leads to is nothing of an installation
        session.make()
    else:
        session.grow_old()
        assert "ultramon.hosts.handling" in session.ours()
    assert session.ours() == set()
    assert session.bundle.stat().st_mode & 0o777 == 0o600


def test_a_changed_source_runs_at_the_next_call(session, tmp_path):
    """However the file was changed; and once more from a bundle, when the old one is stale."""
    package = tmp_path / "site"
    shutil.copytree(
        Path(ultramon.__file__).parent,
        package / "ultramon",
        ignore=shutil.ignore_patterns("__pycache__", "server", "cli"),
    )
    subprocess.run(
        [sys.executable, "-I", "-c", WRITE, str(package), str(session.installed)], check=True
    )
    payload = session.payload("Stop")
    said, names = session.imported(payload)
    assert (said, "ultramon.hosts.handling" in names) == (b"", False)
    source = package / "ultramon" / "hosts" / "handling.py"
    text, found = source.read_text(), source.stat()
    for number in (1, 2):
        changed = source.with_name("new.py")
        changed.write_text(f'{text}os.write(1, b"{number}")\n')
        os.utime(changed, ns=(found.st_atime_ns, found.st_mtime_ns))
        changed.replace(source)
        shutil.rmtree(source.with_name("__pycache__"))  # Python believes the time, and this not
        assert session.imported(payload)[0] == str(number).encode()
    session.grow_old()
    session.imported(payload)
    said, names = session.imported(payload)
    assert (said, "ultramon.hosts.handling" in names) == (b"2", False)


def test_a_bundle_that_cannot_be_made_anew_is_deleted(session):
    """No call shall try in vain; without one it is not tried."""
    session.make().tool(tokens_at(90))
    data = session.bundle.read_bytes()
    session.bundle.write_bytes(data.replace(sys.version.encode(), b"3.99.0 (main)", 1))
    session.grow_old()
    limit = "import resource, sys, os; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2);"
    limit += "os.execv(sys.argv[1], sys.argv[1:])"
    session.reply(tokens_at(90), "toolu_a")
    done = session.run(session.payload("Stop"), before=[sys.executable, "-c", limit])
    assert done.stdout == b""
    assert not session.bundle.exists()
    assert [name for name in os.listdir(session.state) if name.endswith(".tmp")] == []
    assert "ultramon.hosts.handling" in session.ours()
    assert not session.bundle.exists()


def test_doctor_install_and_uninstall_know_it(tmp_path, monkeypatch):
    """Not to have it is a warning that installing cures; it goes with the installation."""
    client = ClientHome(tmp_path).as_home(monkeypatch)
    client.put(resident=False)
    bundle = client.states / f"{LAUNCHERS[HOOK_SCRIPT]}.code"
    seen = DoctorContext(str(client.project), str(client.states), time.time())
    for damage, reason in (
        (bundle.unlink, "is missing"),
        (lambda: bundle.chmod(0o606), "others may write to it"),
    ):
        damage()
        (found,) = (one for one in examine(seen) if one.status != OK)
        assert found.message == f"{bundle}: {reason}: hooks take longer to start"
        assert found.cure == "ultramon install claude-code"
        client.put(resident=False)
        assert [one for one in examine(seen) if one.status != OK] == []
    client.put(resident=True)
    assert list(client.states.glob("*.code")) == []
    assert [one.message for one in examine(seen) if one.check == "bundle"] == []
    client.put(resident=False)
    client.take_out()
    assert not client.states.exists()
