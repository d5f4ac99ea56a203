"""Installing with requests instead of processes, taking them out, and what the doctor says."""

from __future__ import annotations

import json
import os
import signal
import stat

import pytest
from click.testing import CliRunner
from helpers.client_home import OTHER_HOOKS, SECRET, SHAPES, ClientHome
from helpers.program import loaded_by
from helpers.running_server import ServeProgram, Serving

from ultramon import __version__
from ultramon.cli import cli
from ultramon.cli.output import ExitCode
from ultramon.hosts.claude_code import last_request
from ultramon.hosts.claude_code.setup.commands import EVENTS
from ultramon.hosts.claude_code.setup.http_hooks import PATH, REQUESTS
from ultramon.hosts.setup import Server
from ultramon.server.server_file import only_server, write_server_file

URL = "http://127.0.0.1:8420"
HTTP = {"via": "http", "url": URL}
FOREIGN = {"type": "http", "url": f"http://127.0.0.1:9000{PATH}", "headers": {"X-Key": "k"}}


@pytest.fixture
def client(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return ClientHome(tmp_path).as_home(monkeypatch)


@pytest.fixture
def serving(client):
    """A server in this process that says where it is, as the program does."""
    states = str(client.states)
    with Serving(directory=client.states) as serving, only_server(states):
        write_server_file(states, {"url": serving.url, "version": __version__})
        client.server = Server(serving.url, lambda: serving.services.hook_secret)
        yield serving


@pytest.fixture
def program(client):
    """`ultramon serve`, and its hooks in the settings."""
    with ServeProgram(state=client.states) as program:
        assert client.install("--via", "http").returncode == 0
        yield program


def hooks(client, layer="user"):
    """The hooks of each event as they stand in the settings."""
    settings = json.loads(client.path(layer).read_bytes())
    return {
        event: [hook for entry in entries for hook in entry["hooks"]]
        for event, entries in settings["hooks"].items()
    }


def kinds(client, layer="user"):
    return {
        event: [hook["type"] for hook in found] for event, found in hooks(client, layer).items()
    }


BY_REQUEST = {event: ["http" if event in REQUESTS else "command"] for event in EVENTS}
BY_COMMAND = {event: ["command"] for event in EVENTS}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- install


def test_tool_calls_become_requests_to_the_server_that_runs(client, serving):
    """Its address and its secret stand in the settings, which only the user can read from then."""
    path = client.write(OTHER_HOOKS.encode())
    path.chmod(0o644)
    done = client.install("--via", "http")
    assert done.returncode == 0, done.stderr
    secret = (client.states / "hook.secret").read_text().strip()
    assert hooks(client)["PreToolUse"] == [
        {
            "type": "http",
            "url": f"{serving.url}{PATH}",
            "headers": {
                "Authorization": f"Bearer {secret}",
                "X-Ultramon-Disabled": "${ULTRAMON_DISABLED}",
            },
            "allowedEnvVars": ["ULTRAMON_DISABLED"],
            "timeout": 2,
        }
    ]
    assert mode(path) == 0o600
    assert f"the hook secret is in {path}" in done.stderr
    assert secret not in done.stdout + done.stderr
    again = client.install()
    assert (again.stdout, again.returncode) == ("", 0)
    assert f"{path} is up to date" in again.stderr
    gone = client.uninstall()
    assert secret not in gone.stdout + gone.stderr
    assert path.read_bytes() == OTHER_HOOKS.encode()
    assert mode(path) == 0o644


def test_a_dry_run_makes_no_secret(client):
    """It shows the same and writes nothing."""
    before = client.tree()
    done = client.install("--via", "http", "--url", URL, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Bearer (the hook secret)" in done.stdout
    assert client.tree() == before


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_comes_back_from_requests_byte_for_byte(client, shape):
    """Requests, commands, requests again, and out: the old bytes and the old mode."""
    path = client.write(SHAPES[shape])
    path.chmod(0o644)
    before = client.tree()
    assert client.put(**HTTP).changes
    first = path.read_bytes()
    assert (SECRET.encode() in first, mode(path)) == (True, 0o600)
    assert not client.put().changes
    client.put(via="command")
    assert (SECRET.encode() in path.read_bytes(), mode(path)) == (False, 0o644)
    client.put(**HTTP)
    assert (path.read_bytes(), mode(path)) == (first, 0o600)
    client.take_out()
    assert (client.tree(), mode(path)) == (before, 0o644)


def test_the_other_choice_replaces_hooks_where_they_stand(client):
    """No event is left without one, none has two, and matchers and timeouts of a person stay."""
    client.write({"hooks": {"PreToolUse": [{"hooks": [FOREIGN]}]}})
    client.put()
    own = {event: found[-1:] for event, found in kinds(client).items()}
    assert own == BY_COMMAND
    settings = json.loads(client.settings.read_bytes())
    settings["hooks"]["PostToolUse"][0]["matcher"] = "Bash|Read"
    client.settings.write_text(json.dumps(settings))
    client.put(**HTTP)
    assert kinds(client) == BY_REQUEST | {"PreToolUse": ["http", "http"]}
    settings = json.loads(client.settings.read_bytes())
    assert settings["hooks"]["PostToolUse"][0]["matcher"] == "Bash|Read"
    settings["hooks"]["PostToolUse"][0]["hooks"][0]["timeout"] = 1
    settings["hooks"]["PostToolUse"][0]["hooks"][0]["headers"]["X-More"] = "kept"
    client.settings.write_text(json.dumps(settings))
    client.put(url="http://localhost:9000")
    (changed,) = hooks(client)["PostToolUse"]
    assert (changed["url"], changed["timeout"]) == (f"http://localhost:9000{PATH}", 1)
    assert changed["headers"]["X-More"] == "kept"
    client.put(via="command")
    assert kinds(client) == BY_COMMAND | {"PreToolUse": ["http", "command"]}
    client.take_out()
    assert json.loads(client.settings.read_bytes()) == {
        "hooks": {"PreToolUse": [{"hooks": [FOREIGN]}]}
    }


@pytest.mark.parametrize("layer", ["user", "local"])
def test_a_new_file_with_the_secret_is_private(client, layer):
    """And gone with the installation, where there was none."""
    before = client.tree()
    client.put(layer, **HTTP)
    assert mode(client.path(layer)) == 0o600
    client.take_out(layer)
    assert client.tree() == before


def test_the_secret_may_come_from_the_environment(client):
    """Then it stands in no file of the client, whose mode stays, and the file may be shared."""
    path = client.write(b"{}", "project")
    path.chmod(0o644)
    client.put("project", secret_in="environment", **HTTP)
    hook = hooks(client, "project")["PreToolUse"][0]
    assert hook["headers"]["Authorization"] == "Bearer ${ULTRAMON_HOOK_SECRET}"
    assert hook["allowedEnvVars"] == ["ULTRAMON_DISABLED", "ULTRAMON_HOOK_SECRET"]
    assert (SECRET in path.read_text(), mode(path)) == (False, 0o644)
    assert not client.put("project").changes
    client.take_out("project")
    assert path.read_bytes() == b"{}"


def test_a_mode_that_was_widened_is_a_change(client):
    """Installing again closes the file, though no byte of it changes."""
    client.put(**HTTP)
    client.settings.chmod(0o644)
    plan = client.put()
    assert (plan.changes, plan.diff(), mode(client.settings)) == (True, "", 0o600)


REFUSED = {
    "no server": (("--via", "http"), "possible while a server runs"),
    "shared": (("--via", "http", "--url", URL, "--project"), "settings that are yours alone"),
    "a plugin": (("--via", "http", "--plugin", "p"), "--plugin and --via http exclude each other"),
    "in the clear": (("--via", "http", "--url", "http://example.org"), "https only"),
    "in the clear, by address": (("--via", "http", "--url", "http://10.0.0.1:8420"), "https only"),
    "a user in it": (("--via", "http", "--url", "http://a@127.0.0.1:1"), "on this machine"),
    "a path": (("--via", "http", "--url", f"{URL}/x"), "on this machine"),
    "a query": (("--via", "http", "--url", f"{URL}/?secret=1"), "on this machine"),
    "no port": (("--via", "http", "--url", "http://127.0.0.1:99999"), "on this machine"),
    "no address": (("--via", "http", "--url", "127.0.0.1:8420"), "on this machine"),
    "an address for commands": (("--url", URL), "given with --via http only"),
    "a place for commands": (("--secret-in", "settings"), "given with --via http only"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_not_be_safe_is_refused(client, arguments, said):
    """One line says what is allowed; nothing is written, not even a secret."""
    client.write(OTHER_HOOKS.encode())
    before = client.tree()
    done = client.install(*arguments)
    assert done.returncode in (ExitCode.FAILURE, ExitCode.USAGE)
    assert said in done.stderr
    assert client.tree() == before


# --- doctor


def found(check, **changes):
    """What the doctor says of one thing: status, message, cure."""
    done = CliRunner().invoke(cli, ["doctor", "--json"], env=changes)
    return [
        (one["status"], one["message"], one["cure"])
        for one in json.loads(done.stdout)["findings"]
        if one["check"] == check
    ]


@pytest.fixture
def installed(client, serving):
    client.put(via="http")
    return client


def test_a_server_that_takes_the_requests_is_in_order(installed, serving):
    """One line, and no problem."""
    assert found("server") == [("ok", f"{serving.url} takes the requests of tool calls", None)]
    assert found("requests") == []
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 0
    assert not (installed.states / "claude-code.failures.jsonl").exists()


def test_a_server_that_was_killed_is_a_problem(client, program):
    """Since when no call was reported, and the command that starts it at the same address."""
    assert found("server")[0][0] == "ok"
    program.stop(signal.SIGKILL)
    cure = f"ultramon serve --port {program.url.rpartition(':')[2]}"
    message = "none runs: no tool call has been reported yet"
    assert found("server") == [("problem", message, cure)]
    for _ in range(2):
        last_request.note(str(client.states), 1_800_000_000.0)
    message = "none runs: no tool call has been reported since 2027-01-15T08:00:00.000Z"
    assert found("server") == [("problem", message, cure)]
    assert client.run("doctor").returncode == ExitCode.FAILURE


def test_a_server_that_accepts_and_never_answers_is_a_problem(program):
    """The doctor waits no longer than the client would."""
    os.kill(program.process.pid, signal.SIGSTOP)
    try:
        ((status, message, cure),) = found("server")
    finally:
        os.kill(program.process.pid, signal.SIGCONT)
    assert (status, cure) == ("problem", "stop it, then ultramon serve")
    assert "does not answer (timed out)" in message


def test_a_server_at_another_address_is_a_problem(installed, serving):
    """Installing again finds the new one."""
    write_server_file(str(installed.states), {"url": "https://[::1]:9", "version": __version__})
    ((status, message, cure),) = found("server")
    assert (status, cure) == ("problem", "ultramon install claude-code --via http")
    assert f"the hooks go to {serving.url}, the server listens at https://[::1]:9" in message
    installed.server = Server("https://[::1]:9", lambda: SECRET)
    installed.put()
    assert hooks(installed)["PreToolUse"][0]["url"] == f"https://[::1]:9{PATH}"


def test_a_secret_that_is_another_one_is_a_problem(installed, serving):
    """Somebody has deleted the file, and the next server made another."""
    text = installed.settings.read_text()
    secret = (installed.states / "hook.secret").read_text().strip()
    installed.settings.write_text(text.replace(secret, "another-secret"))
    ((status, message, cure),) = found("server")
    assert (status, cure) == ("problem", "ultramon install claude-code --via http")
    assert "does not know the secret" in message
    installed.put()
    assert installed.settings.read_text() == text


def test_another_version_is_a_warning(installed, serving):
    """It was upgraded and goes on running."""
    path = installed.states / "server.json"
    path.write_text(path.read_text().replace(__version__, "0.0.1"))
    ((status, message, cure),) = found("server")
    assert (status, cure) == ("warning", "stop it, then ultramon serve")
    assert f"is ultramon 0.0.1, this is {__version__}" in message


def test_a_server_file_that_makes_no_sense_is_a_problem(installed, serving):
    """It is named, and so is what writes it anew."""
    (installed.states / "server.json").write_text("[]")
    ((status, message, cure),) = found("server")
    assert (status, cure) == ("problem", "ultramon serve")
    assert "is not what a server wrote" in message


def test_a_file_that_others_can_read_is_a_problem(installed):
    """The secret stands in it."""
    installed.settings.chmod(0o644)
    assert found("requests") == [
        (
            "problem",
            f"{installed.settings}: others can read it (mode 644), with the secret",
            f"chmod 600 {installed.settings}",
        )
    ]


def test_settings_that_keep_the_client_from_the_server_are_a_problem(installed, serving):
    """The client has a list of addresses that hooks may go to."""
    installed.write({"allowedHttpHookUrls": ["https://hooks.example.com/*", 5]}, "local")
    ((status, message, cure),) = found("requests")
    assert (status, cure) == ("problem", f"add {serving.url}{PATH} there")
    assert "allowedHttpHookUrls" in message
    installed.write({"allowedHttpHookUrls": ["http://127.0.0.1:*"]}, "local")
    assert found("requests") == []


def test_a_proxy_is_a_warning(installed):
    """The client would send the secret there."""
    proxy = {"HTTPS_PROXY": "http://proxy.example:3128"}
    ((status, _, cure),) = found("requests", **proxy)
    assert (status, cure) == ("warning", "add 127.0.0.1 to NO_PROXY")
    assert found("requests", NO_PROXY="127.0.0.1", **proxy) == []


def test_a_secret_that_is_not_in_the_environment_is_a_warning(installed, serving):
    """With it the server is asked."""
    installed.put(secret_in="environment")
    ((status, message, _),) = found("requests")
    assert status == "warning"
    assert "ULTRAMON_HOOK_SECRET, which is not set here" in message
    assert found("server")[0][0] == "ok"
    secret = (installed.states / "hook.secret").read_text().strip()
    assert found("requests", ULTRAMON_HOOK_SECRET=secret) == []
    assert found("server", ULTRAMON_HOOK_SECRET=secret)[0][0] == "ok"
    assert found("server", ULTRAMON_HOOK_SECRET="wrong")[0][0] == "problem"


@pytest.mark.parametrize("command", ["doctor", "install"])
def test_neither_needs_the_packages_of_the_server(client, command):
    """Installing and asking need no extra."""
    arguments = [command] if command == "doctor" else [command, "claude-code", "--force"]
    heavy = ["fastapi", "starlette", "uvicorn", "httpx"]
    assert loaded_by(arguments, heavy, **client.variables) == ""
