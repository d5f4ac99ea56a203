"""`ultramon token`, as people, parents and scripts call it."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from contextlib import closing

import pytest
from helpers.program import run

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.exit_codes import ExitCode
from ultramon.testing.contract.states import start
from ultramon.tokens import ADMIN_TOKEN, HOOK_SECRET, TOKEN_FILE, server_secret, verify_token

PERSON = None


@pytest.fixture
def backend(tmp_path):
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        start(backend, "boss")
        start(backend, "scout-1", parent_id="boss", label="scout")
        yield backend


@pytest.fixture
def call(backend):
    """Run the command as an agent, or as a person."""

    def call(*arguments, caller=PERSON, **environ):
        environ.setdefault("CLAUDE_SESSION_MANAGER_ID", "")
        if caller is not PERSON:
            environ["ULTRAMON_AGENT_ID"] = caller
        return run("token", *arguments, ULTRAMON_STATE_DIR=backend.directory.path, **environ)

    return call


def said(done, code=ExitCode.OK):
    """What the command printed, after checking how it ended."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == ExitCode.OK else done.stderr


@pytest.mark.parametrize("name", ["scout-1", "sco", "scout"])
def test_a_person_makes_a_token_of_any_agent(call, backend, name):
    """By id, beginning or label: it is all that stdout holds."""
    done = call("mint", name)
    assert verify_token(said(done).removesuffix("\n"), backend=backend) == "scout-1"
    assert done.stderr == ""


def test_json_names_whose_token_it_is(call, backend):
    """For scripts that make several."""
    made = json.loads(said(call("mint", "scout", "--json")))
    assert made == {"agentId": "scout-1", "token": made["token"]}
    assert verify_token(made["token"], backend=backend) == "scout-1"


def test_with_a_file_the_token_is_never_printed(call, backend, tmp_path):
    """The line printed hands the file to a process; a shell takes it unchanged."""
    path = tmp_path / "a token of 'scout'"
    done = call("mint", "scout-1", "--file", path)
    token = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert verify_token(token, backend=backend) == "scout-1"
    assert said(done) == f"export {TOKEN_FILE}={shlex.quote(str(path))}\n"
    assert done.stderr == f"The token of scout-1 is in {path}\n"
    script = f"{done.stdout}printenv {TOKEN_FILE}"
    shown = subprocess.run(["sh", "-c", script], capture_output=True, encoding="utf-8", check=True)
    assert shown.stdout == f"{path}\n"
    made = json.loads(said(call("mint", "scout-1", "--file", path, "--json")))
    assert made == {"agentId": "scout-1", "path": str(path)}


def test_a_parent_keeps_its_own_token(call, backend, tmp_path):
    """The variable that names it is not where its child's is written."""
    own = tmp_path / "own"
    own.write_text("mine")
    done = call("mint", "scout-1", caller="boss", **{TOKEN_FILE: str(own)})
    assert verify_token(said(done).strip(), backend=backend) == "scout-1"
    assert own.read_text() == "mine"


RIGHTS = [
    ("boss", "scout-1", ExitCode.OK),
    ("boss", "boss", ExitCode.OK),
    ("scout-1", "scout-1", ExitCode.OK),
    ("scout-1", "boss", ExitCode.FAILURE),
    ("stranger", "boss", ExitCode.FAILURE),
]


@pytest.mark.parametrize(("caller", "agent", "code"), RIGHTS)
@pytest.mark.parametrize("action", ["mint", "rotate", "revoke"])
def test_an_agent_may_for_itself_and_its_children(call, caller, agent, code, action):
    """Who is refused learns who may."""
    answer = said(call(action, agent, caller=caller), code)
    if code != ExitCode.OK:
        verb = "revoke" if action == "revoke" else "make"
        assert f"agent {caller} may not {verb}" in answer
        assert "only that agent and its direct parent may" in answer


def test_without_a_name_the_caller_is_meant(call, backend):
    """A person has no id."""
    token = said(call("mint", caller="boss")).strip()
    assert verify_token(token, backend=backend) == "boss"
    assert said(call("revoke", caller="boss")) == "Revoked 1 token of boss\n"
    assert "no agent: name one" in said(call("mint"), ExitCode.USAGE)


def test_a_rotation_prints_the_new_token_alone(call, backend):
    """Of the caller, where none is named; as JSON with whose it is."""
    old = said(call("mint", "boss")).strip()
    new = said(call("rotate", caller="boss")).strip()
    assert [verify_token(one, backend=backend) for one in (old, new)] == [None, "boss"]
    made = json.loads(said(call("rotate", "boss", "--json")))
    assert made == {"agentId": "boss", "token": made["token"]}
    assert json.loads(said(call("rotate", "hook", "--json"))) == {
        "path": os.path.join(backend.directory.path, HOOK_SECRET)
    }
    assert "--file is for agents" in said(call("rotate", "hook", "--file", "x"), ExitCode.USAGE)


def test_revoked_tokens_are_counted(call, backend):
    """And worth nothing from then on."""
    tokens = [said(call("mint", "scout-1")).strip() for _ in range(2)]
    assert said(call("revoke", "scout")) == "Revoked 2 tokens of scout-1\n"
    assert {verify_token(token, backend=backend) for token in tokens} == {None}
    shown = json.loads(said(call("revoke", "scout", "--json")))
    assert shown == {"agentId": "scout-1", "revoked": 0}


@pytest.mark.parametrize(("action", "name"), [("admin", ADMIN_TOKEN), ("hook", HOOK_SECRET)])
def test_a_secret_of_the_server_is_shown_by_its_path(call, backend, action, name):
    """The file is made where it is missing, and what it holds is not printed."""
    path = os.path.join(backend.directory.path, name)
    done = call(action)
    assert said(done) == f"{path}\n"
    secret = server_secret(backend.directory.path, name)
    assert secret not in done.stdout + done.stderr
    assert json.loads(said(call(action, "--json"))) == {"path": path}
    assert server_secret(backend.directory.path, name) == secret
    os.chmod(path, 0o644)
    refused = said(call(action), ExitCode.FAILURE)
    assert "others could read it (mode 0644); delete it" in refused
    assert secret not in refused


MISTAKES = [
    (["mint", "nobody"], ExitCode.NOT_FOUND, "no agent nobody"),
    (["show"], ExitCode.USAGE, "No such command 'show'"),
    (["admin", "boss"], ExitCode.USAGE, "unexpected extra argument (boss)"),
    (["hook", "--file", "x"], ExitCode.USAGE, "No such option '--file'"),
    (["revoke", "boss", "--file", "x"], ExitCode.USAGE, "No such option '--file'"),
    (["mint", "boss", "--file", "/missing/x"], ExitCode.FAILURE, "No such file or directory"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), MISTAKES)
def test_a_mistake_is_named(call, arguments, code, words):
    """In one line, with an exit code of its kind."""
    assert words in said(call(*arguments), code)


def test_the_secret_is_where_the_server_looks_for_it(call, backend, tmp_path):
    """Where the states are: in the directory named, else in that of the backend."""
    other = tmp_path / "other"
    assert said(call("admin", "--state-dir", other)) == f"{other / ADMIN_TOKEN}\n"
    third = tmp_path / "third"
    url = f"file://{third}"
    assert said(call("admin", ULTRAMON_BACKEND=url)) == f"{third / ADMIN_TOKEN}\n"
    elsewhere = said(call("admin", ULTRAMON_BACKEND="memory:"))
    assert elsewhere == f"{os.path.join(backend.directory.path, ADMIN_TOKEN)}\n"
