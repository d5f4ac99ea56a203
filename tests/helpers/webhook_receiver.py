"""A stranger's web server that receives webhooks."""

import hashlib
import hmac
import queue
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

DEADLINE_SECONDS = 20


class Request(NamedTuple):
    path: str
    headers: dict
    body: bytes


class Receiver:
    """What arrived, in `requests`; `answer` says what is said to it.

    `answer` is a status, a status and a Location, or a function of the request handler.
    """

    def __init__(self):
        self.requests = queue.Queue()
        self.answer = 204
        self.leaving = threading.Event()
        self.port = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def listed(self):
        return f"127.0.0.1:{self.port}"

    def next(self):
        return self.requests.get(timeout=DEADLINE_SECONDS)

    def all(self):
        """What has arrived and was not looked at yet."""
        return [self.requests.get_nowait() for _ in range(self.requests.qsize())]

    @contextmanager
    def open(self, port=0, tls=None):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.put(Request(self.path, dict(self.headers), body))
                answer = receiver.answer
                if callable(answer):
                    return answer(self)
                status, location = answer if isinstance(answer, tuple) else (answer, None)
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.send_header("Set-Cookie", "who=you")
                self.end_headers()
                return None

            do_GET = do_CONNECT = lambda self: receiver.requests.put(self.requestline)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = False
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # clients that hang up early, or trust nobody
        self.port = server.server_port
        self.leaving.clear()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.leaving.set()
            server.shutdown()
            server.server_close()
            thread.join()


def is_genuine(request, secret, *, now, tolerance_seconds=300):
    """Check a signature as a receiver does that knows only what is written of it."""
    parts = dict(part.split("=", 1) for part in request.headers["Ultramon-Signature"].split(","))
    said = b"%s.%s" % (parts["t"].encode(), request.body)
    expected = hmac.new(secret, said, hashlib.sha256).hexdigest()
    is_recent = abs(now - int(parts["t"])) <= tolerance_seconds
    return is_recent and hmac.compare_digest(parts["v1"], expected)
