"""The page for tests: a real server on a socket, in a thread, and a real browser."""

import threading

import httpx
import pytest

from helpers.requirements import missing, require_tool
from ultramon.server.http.http_server import listen
from ultramon.web.logins import make_code, make_key
from ultramon.web.main import WebServer

TIMEOUT_SECONDS = 60


class WebServing:
    """Serves a page over a store within a ``with`` block, on a free port of 127.0.0.1.

    Attributes: `url`, `port`, `key`, `server`.
    """

    def __init__(self, backend, **options):
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = make_key()
        self._listening = threading.Event()
        self.server = WebServer(
            backend, listener, key=self.key, on_listening=self._listening.set, **options
        )
        self._thread = threading.Thread(target=self.server.run_here)
        self._clients = []

    def __enter__(self):
        self._thread.start()
        assert self._listening.wait(TIMEOUT_SECONDS)
        return self

    def __exit__(self, *error):
        for client in self._clients:
            client.close()
        self.stop()

    def stop(self):
        """Stop as a signal would, and wait for the end."""
        self.server.stop()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

    def link(self, now):
        """Return a link that logs in, made at that time."""
        return f"/login?code={make_code(self.key, now)}"

    def stranger(self, **headers):
        """Return a client that has no session."""
        client = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS)
        self._clients.append(client)
        return client

    def visitor(self, now):
        """Return a client that has logged in."""
        client = self.stranger()
        assert client.get(self.link(now)).status_code == 303
        return client


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium that the tests of a module share."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        missing("playwright is not installed")
    program = require_tool("chromium")
    with sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except Error as error:
            missing(f"{program} does not start: {error.message.splitlines()[0]}")
        yield found
        found.close()
