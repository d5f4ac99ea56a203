"""A real server for tests: the application behind its front, on a socket, in a thread."""

import contextlib
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from helpers.program import environment
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.opening import open_backend
from ultramon.server.http.http_server import listen
from ultramon.server.main import Server, make_services
from ultramon.system.environment import state_directory

TIMEOUT_SECONDS = 30


class Serving:
    """Serves within a ``with`` block, on a free port of 127.0.0.1.

    Attributes: `url`, `port`, `services`, `backend`, `state_directory`, and as clients `admin`
    (has the admin token), `hooks` (has the hook secret) and `anybody` (has nothing).

    `directory` is for a server that outlives a test: it shares nothing with the test's own.
    """

    def __init__(self, backend=None, *, directory=None, send_buffer_bytes=None, **options):
        if directory is not None:
            backend = LocalBackend(str(directory))
        self._closes = directory is not None
        self.backend = open_backend() if backend is None else backend
        self.state_directory = state_directory() if directory is None else str(directory)
        self.services = make_services(self.backend, self.state_directory)
        listener = listen("127.0.0.1", 0)
        if send_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._listening = threading.Event()
        self.server = Server(self.services, listener, on_listening=self._listening.set, **options)
        self._thread = threading.Thread(target=self.server.run_here)
        self._clients = []

    def __enter__(self):
        self._thread.start()
        assert self._listening.wait(TIMEOUT_SECONDS)
        self.admin = self.client(self.services.admin_token)
        self.hooks = self.client(self.services.hook_secret)
        self.anybody = self.client(None)
        return self

    def __exit__(self, *error):
        for client in self._clients:
            client.close()
        self.stop()
        if self._closes:
            self.backend.close()

    def stop(self):
        """Stop as a signal would, and wait for the end."""
        self.server.stop()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

    def client(self, token, **headers):
        """Return a client that sends a token with each request; None = none."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self._keep(httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS))

    def make_agent(self, agent_id, caller=None, **agent):
        """Make an agent as somebody, None = the admin; return the answer and the agent's client.

        A store that is slow to connect, on a machine that is full, is asked again.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        body = {"agentId": agent_id, **agent}
        while True:
            answer = (caller or self.admin).post("/agents", json=body)
            if answer.status_code != 503 or time.monotonic() > deadline:
                break
        assert answer.status_code == 201, answer.text
        return answer.json(), self.client(answer.json()["token"])

    def trusting(self, certfile, token=None):
        """Return a client that speaks HTTPS with the server."""
        client = httpx.Client(
            base_url=f"https://localhost:{self.port}",
            verify=ssl.create_default_context(cafile=certfile),
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_SECONDS,
        )
        return self._keep(client)

    def _keep(self, client):
        self._clients.append(client)
        return client


class Wire:
    """One connection to a server, byte by byte."""

    def __init__(self, serving, receive_buffer_bytes=None):
        self._serving = serving
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(TIMEOUT_SECONDS)
        self._socket.connect(("127.0.0.1", serving.port))
        self._unread = b""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._socket.close()

    def send(self, data):
        """Send bytes; return whether the server still takes them."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _read(self):
        try:
            data = self._socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        self._unread += data
        return bool(data)

    def answer(self):
        """Read one answer; return its status, its headers and its body, None where none comes."""
        while b"\r\n\r\n" not in self._unread:
            if not self._read():
                return None
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = httpx.Headers([line.split(": ", 1) for line in lines])
        length = int(headers.get("content-length", 0))
        while len(self._unread) < length and self._read():
            pass
        body, self._unread = self._unread[:length], self._unread[length:]
        return int(first.split()[1]), headers, body

    def is_closed(self):
        """Read until the server closes; nothing more may come."""
        while self._read():
            pass
        return not self._unread

    def request(self, method="GET", path="/health", *lines, host=None, body=b""):
        """Send one request, with the lines of its head as they are given."""
        host = f"127.0.0.1:{self._serving.port}" if host is None else host
        head = [f"{method} {path} HTTP/1.1", f"Host: {host}", *lines]
        return self.send("\r\n".join((*head, "", "")).encode("latin-1") + body)

    def read(self, count):
        """Read so many bytes at most, and forget them."""
        with contextlib.suppress(ConnectionResetError):
            self._socket.recv(count)

    def wait_until_reset(self, seconds=TIMEOUT_SECONDS):
        """Wait, without reading what came, until the server gives the connection up."""
        waiting = select.poll()
        waiting.register(self._socket, 0)
        return bool(waiting.poll(seconds * 1000))


class ServeProgram:
    """`ultramon serve` as a process of its own, on a free port, within a ``with`` block.

    Attributes: `process`, `url`, `state_directory`, `said` (the lines on stderr so far), `admin`.
    """

    def __init__(self, *arguments, state=None, **changes):
        self.state_directory = Path(os.environ["ULTRAMON_STATE_DIR"] if state is None else state)
        self._command = [sys.executable, "-m", "ultramon", "serve", "--port", "0", *arguments]
        self._environ = environment(ULTRAMON_STATE_DIR=str(self.state_directory), **changes)
        self._clients = []

    def __enter__(self):
        self.process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, encoding="utf-8", env=self._environ
        )
        self.said = [self.process.stderr.readline(), self.process.stderr.readline()]
        assert "ultramon is listening on " in self.said[0], (self.said, self.process.poll())
        self.url = self.said[0].split()[-1]
        self.admin = self.client((self.state_directory / "admin.token").read_text().strip())
        return self

    def __exit__(self, *error):
        for client in self._clients:
            client.close()
        if self.process.returncode is None:
            self.process.kill()
        self.rest()

    def client(self, token, **options):
        """Return a client that sends a token with each request."""
        headers = {"Authorization": f"Bearer {token}"}
        client = httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS, **options
        )
        self._clients.append(client)
        return client

    def stop(self, number=signal.SIGTERM):
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)

    def rest(self):
        """Wait for the end of the process; return what else it said."""
        if self.process.stderr.closed:
            return ""
        with self.process:
            return self.process.stderr.read()


def make_certificate(directory):
    """Make a certificate for localhost and its key; return both as files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certfile, keyfile = directory / "cert.pem", directory / "key.pem"
    certfile.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    keyfile.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(certfile), str(keyfile)
