"""`ultramon serve` as people run it: where it says it is, that it is the only one, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys

import httpx
import pytest
from helpers.program import environment, loaded_by, run
from helpers.running_server import ServeProgram, Serving, make_certificate

from ultramon import __version__
from ultramon.errors import StateCorruptError
from ultramon.server.server_file import only_server, read_server_file

TIMEOUT_SECONDS = 30


def test_it_says_where_it_listens_and_takes_it_back():
    """In words on stderr, in `server.json` for programs; SIGTERM ends it with 0."""
    with ServeProgram() as served:
        assert served.said[1].endswith(f"{served.state_directory / 'admin.token'}\n")
        facts = read_server_file(str(served.state_directory))
        assert facts == {
            "url": served.url,
            "host": "127.0.0.1",
            "port": int(served.url.rpartition(":")[2]),
            "pid": served.process.pid,
            "startedAt": facts["startedAt"],
            "version": __version__,
        }
        assert httpx.get(f"{served.url}/health").json() == {
            "status": "ok",
            "version": __version__,
        }
        assert served.admin.get("/nowhere").status_code == 404
        with socket.create_connection(("127.0.0.1", facts["port"])) as stranger:
            stranger.sendall(b"\x00\x01\r\n\r\n")
            assert b" 400 " in stranger.recv(1_000)
        assert served.stop() == 0
        assert served.rest() == ""  # strangers cannot fill a log
        assert read_server_file(str(served.state_directory)) is None
        assert not (served.state_directory / "server.json").exists()


def test_programs_read_where_it_listens_from_stdout():
    """One line of JSON, with the file of the token; nothing on stderr."""
    command = [sys.executable, "-m", "ultramon", "serve", "--port", "0", "--json"]
    state = os.environ["ULTRAMON_STATE_DIR"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(ULTRAMON_STATE_DIR=state),
    ) as process:
        said = json.loads(process.stdout.readline())
        assert said == {
            **read_server_file(state),
            "adminTokenFile": os.path.join(state, "admin.token"),
        }
        process.terminate()
        assert process.communicate(timeout=TIMEOUT_SECONDS) == (b"", b"")
        assert process.returncode == 0


def test_its_files_are_for_this_user_alone():
    """Under a umask that would let everybody read them, too."""
    before = os.umask(0)
    try:
        with ServeProgram() as served:
            names = ("admin.token", "hook.secret", "server.json", "server.lock")
            modes = {name: (served.state_directory / name).stat().st_mode for name in names}
            assert {mode & 0o777 for mode in modes.values()} == {0o600}
            assert served.state_directory.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_state_directory_has_one_server():
    """The second one says where the first one is, and does it no harm."""
    with ServeProgram() as served:
        second = run("serve", "--port", "0", ULTRAMON_STATE_DIR=str(served.state_directory))
        assert second.returncode == 1
        assert f"another server runs for this directory at {served.url}; stop it" in second.stderr
        assert read_server_file(str(served.state_directory))["url"] == served.url
        assert served.admin.get("/nowhere").status_code == 404


def test_a_killed_server_leaves_nothing_that_matters():
    """What it wrote about itself says nothing without its lock, though its process id may live."""
    with ServeProgram() as served:
        state = str(served.state_directory)
        token = (served.state_directory / "admin.token").read_text()
        served.process.kill()
        served.rest()
        left = json.loads((served.state_directory / "server.json").read_text())
        left["pid"] = os.getpid()
        (served.state_directory / "server.json").write_text(json.dumps(left))
        assert read_server_file(state) is None
    with ServeProgram() as again:
        assert read_server_file(state)["url"] == again.url
        assert (again.state_directory / "admin.token").read_text() == token


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_does_not_hold_up_the_end(number):
    """It ends like any other answer, and the server with it."""
    with ServeProgram() as served, served.admin.stream("GET", "/events/stream") as stream:
        assert stream.status_code == 200
        served.process.send_signal(number)
        for _ in stream.iter_bytes():
            pass
        assert served.process.wait(TIMEOUT_SECONDS) == 0


def test_a_second_signal_ends_it_at_once():
    """A second signal ends it without waiting for an unfinished request."""
    with ServeProgram() as served:
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as half:
            token = served.admin.headers["authorization"]
            half.sendall(
                f"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {token}\r\n"
                "Expect: 100-continue\r\nContent-Type: application/json\r\n"
                "Content-Length: 2\r\n\r\n".encode()
            )
            assert half.recv(100).startswith(b"HTTP/1.1 100 ")  # now it waits for the body
            served.process.send_signal(signal.SIGTERM)
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                except ConnectionRefusedError:
                    break
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
        assert not (served.state_directory / "server.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "to be reached from others, give a certificate: --tls-cert FILE"),
        (["--host", "monitor.example"], "must be an address of this machine alone"),
        (["--allow-host", "*"], "one name or address"),
        (["--tls-cert", __file__], "a certificate and its key (--tls-key) in PEM"),
    ],
)
def test_what_would_not_be_safe_is_not_started(arguments, said):
    """One line says what is allowed and what to do; nothing listens and nothing is left behind."""
    done = run(
        "serve", "--port", "0", *arguments, ULTRAMON_STATE_DIR=os.environ["ULTRAMON_STATE_DIR"]
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert read_server_file(os.environ["ULTRAMON_STATE_DIR"]) is None


def test_a_key_without_a_certificate_is_a_mistake():
    """Not a reason to serve without either."""
    done = run("serve", "--tls-key", __file__)
    assert (done.returncode, "--tls-key needs --tls-cert" in done.stderr) == (2, True)


def test_a_port_that_is_taken_is_one_line():
    """It names the address and the way out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--port", port, ULTRAMON_STATE_DIR=os.environ["ULTRAMON_STATE_DIR"])
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: 127.0.0.1:{port}: address already in use; choose another --port\n"
    )


def test_with_a_certificate_it_speaks_https_beyond_this_machine(tmp_path):
    """Its own names and the allowed ones are answered, over TLS only."""
    certfile, keyfile = make_certificate(tmp_path)
    arguments = ["--host", "0.0.0.0", "--tls-cert", certfile, "--tls-key", keyfile]
    with ServeProgram(*arguments, "--allow-host", "monitor.example") as served:
        port = int(served.url.rpartition(":")[2])
        assert served.url == f"https://0.0.0.0:{port}"
        url = f"https://localhost:{port}/health"
        with httpx.Client(verify=ssl.create_default_context(cafile=certfile)) as client:
            assert client.get(url).status_code == 200
            for host, status in {f"monitor.example:{port}": 200, f"0.0.0.0:{port}": 421}.items():
                assert client.get(url, headers={"Host": host}).status_code == status
            origin = {"Origin": f"http://localhost:{port}"}
            assert client.get(url, headers=origin).status_code == 403
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{port}/health")
        assert served.stop() == 0


def test_requests_are_logged_line_by_line_when_asked_for():
    """What a caller sends cannot make a second line, nor move the cursor."""
    with ServeProgram("--log-requests") as served:
        assert httpx.get(f"{served.url}/%0aCRITICAL%s{{0}}?token=x").status_code == 401
        assert served.stop() == 0
        (line,) = served.rest().splitlines()
        assert " INFO GET /%0aCRITICAL%s" in line
        assert "token=x" not in line


def test_a_file_that_no_server_wrote_is_said_to_be_one(tmp_path):
    """While a server runs; without one the file is not read."""
    path = tmp_path / "server.json"
    for content in (b"{", b"[]", b'{"url": 1}', b"[" * 100_000):
        path.write_bytes(content)
        assert read_server_file(str(tmp_path)) is None
        with only_server(str(tmp_path)), pytest.raises(StateCorruptError, match="start the server"):
            read_server_file(str(tmp_path))
    path.unlink()
    with only_server(str(tmp_path)):
        assert read_server_file(str(tmp_path)) is None


def test_without_a_server_nothing_is_made(tmp_path):
    """A look leaves no trace."""
    assert read_server_file(str(tmp_path / "state")) is None
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_it_says_which_one_to_install(tmp_path, missing):
    """Not with a traceback."""
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from ultramon.cli import main\n"
        "main(['serve', '--port', '0'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env=environment(ULTRAMON_STATE_DIR=str(tmp_path / "state")),
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        rf"Error: ultramon serve needs {missing}: .*install .*\[server\]'\n", done.stderr
    )


def test_its_help_needs_no_extra():
    """Nothing of the server is loaded before it is started."""
    heavy = ["fastapi", "uvicorn", "httpx", "ultramon.server.main"]
    assert loaded_by(["serve", "--help"], heavy) == ""
    code = "import sys, ultramon.server.server_file; print({*sys.modules} & {'fastapi', 'uvicorn'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"set()\n"


def test_two_servers_of_two_directories_share_a_machine(tmp_path):
    """The lock is one per state directory."""
    with Serving(directory=tmp_path / "a") as one, Serving(directory=tmp_path / "b") as other:
        assert one.admin.get("/nowhere").status_code == 404
        assert other.client(one.services.admin_token).get("/nowhere").status_code == 401
