"""Connections: heads that never end, bodies that lie, and who gives way when places run out."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
from helpers.running_server import Serving, Wire, make_certificate

from ultramon.server.http.authentication import MAX_UNAUTHENTICATED_REQUESTS
from ultramon.server.http.connections import MAX_CONNECTIONS, BoundedProtocol
from ultramon.server.http.request_filter import MAX_HEAD_BYTES, MAX_HEADERS

JSON = "Content-Type: application/json"
POST = b"POST /nowhere HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: {host}\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n{}", 400),
    "a length with a sign": (POST + b"Content-Length: +2\r\n\r\n{}", 400),
    "a hexadecimal length": (POST + b"Content-Length: 0x2\r\n\r\n{}", 400),
    "a length in words": (POST + b"Content-Length: two\r\n\r\n{}", 400),
    "an empty length": (POST + b"Content-Length:\r\n\r\n{}", 400),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "two lengths in one line": (POST + b"Content-Length: 2, 3\r\n\r\n{}", 400),
    "an enormous length": (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}", 400),
    "a large length": (POST + b"Content-Length: 104857600\r\n\r\n{}", 413),
    "length and chunks": (
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        400,
    ),
    "packed chunks": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "another encoding": (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    "two encodings": (
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        501,
    ),
    "a chunk that is none": (CHUNKED + b"zz\r\n", 400),
    "a negative chunk": (CHUNKED + b"-2\r\n{}\r\n", 400),
    "a chunk of unending size": (CHUNKED + b"f" * 100 + b"\r\n", 400),
    "a chunk without its end": (CHUNKED + b"2\r\n{}0\r\n\r\n", 400),
    "an unending extension": (CHUNKED + b"2;" + b"x" * 2 * MAX_HEAD_BYTES, 431),
    "no method": (b"\x00\x01\x02\r\n\r\n", 400),
    "no version": (b"GET /health\r\nHost: {host}\r\n\r\n", 400),
    "the version after": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 421),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a space before the colon": (GET + b"X-A : 1\r\n\r\n", 400),
    "a NUL in a value": (GET + b"X-A: \x00\r\n\r\n", 400),
    "a space in the target": (b"GET /a b HTTP/1.1\r\nHost: {host}\r\n\r\n", 400),
    "a target beyond ASCII": (b"GET /\xff HTTP/1.1\r\nHost: {host}\r\n\r\n", 400),
    "a long line": (GET + b"X-A: " + b"x" * 2 * MAX_HEAD_BYTES, 431),
    "a long target": (b"GET /" + b"x" * 2 * MAX_HEAD_BYTES, 431),
    "a megabyte of head": (GET + b"X-A: " + b"x" * (1 << 20) + b"\r\n\r\n", 431),
    "too many fields": (GET + b"X-A: 1\r\n" * MAX_HEADERS + b"\r\n", 431),
    "very many fields": (GET + b"X-A: 1\r\n" * 10_000 + b"\r\n", 431),
    "a line that ends in LF": (b"GET /health HTTP/1.1\r\nHost: {host}\nX-A: 1\r\n\r\n", 400),
    "a head that ends in LF": (GET + b"X-A: 1\r\n\n", 400),
    "nothing but LF": (b"GET /health HTTP/1.1\nHost: {host}\n\n", 400),
    "a folded line": (GET + b"X-A: 1\r\n 2\r\n\r\n", 400),
    "a line folded with a tab": (GET + b"X-A: 1\r\n\t2\r\n\r\n", 400),
    "a folded length": (POST + b"Content-Length:\r\n 2\r\n\r\n{}", 400),
    "chunks that end in LF": (CHUNKED + b"2\r\n{}\r\n0\r\n\n", 400),
    "a trailer that ends in LF": (CHUNKED + b"2\r\n{}\r\n0\r\nX-A: 1\n\r\n", 400),
    "a folded trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX-A: 1\r\n 2\r\n\r\n", 400),
    "two tokens": (GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400),
    "two secrets": (GET + b"X-SM-Hook-Secret: a\r\nX-SM-Hook-Secret: a\r\n\r\n", 400),
    "an absolute target": (b"GET http://evil.example/ HTTP/1.1\r\nHost: {host}\r\n\r\n", 401),
    "a tunnel": (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", 421),
    "another protocol": (
        b"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n\r\n",
        200,
    ),
}


class Hasty(BoundedProtocol):
    """Waits for no client."""

    head_seconds = idle_seconds = stall_seconds = 0.2


class Impatient(BoundedProtocol):
    """Waits long for a request, and not for a reader."""

    head_seconds = idle_seconds = 600.0
    stall_seconds = 0.2


class Narrow(BoundedProtocol):
    """Has few places, and leaves time to fill them."""

    max_connections = 4
    head_seconds = idle_seconds = 600.0


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    with Serving(directory=tmp_path_factory.mktemp("protocol") / "state") as serving:
        yield serving


@pytest.fixture
def hasty(tmp_path):
    with Serving(directory=tmp_path / "hasty", protocol=Hasty, body_seconds=0.2) as serving:
        yield serving


@pytest.fixture
def narrow(tmp_path):
    serving = Serving(directory=tmp_path / "narrow", protocol=Narrow)
    with ExitStack() as serving.wires, serving:
        yield serving


def bearer(serving):
    return f"Authorization: Bearer {serving.services.admin_token}"


def known(serving):
    """Return a connection on which a token was proved."""
    wire = serving.wires.enter_context(Wire(serving))
    wire.request("GET", "/nowhere", bearer(serving))
    assert wire.answer()[0] == 404
    return wire


def is_answered(wire):
    return wire.request() and wire.answer() is not None


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_request_gets_its_answer_and_the_door(serving, name):
    """Lies about lengths, unending heads and other protocols: a status in time, never a hang."""
    data, status = MALFORMED[name]
    with Wire(serving) as wire:
        wire.send(data.replace(b"{host}", f"127.0.0.1:{serving.port}".encode()))
        found, headers, body = wire.answer()
        assert found == status
        if status not in (200, 401):
            assert headers["connection"] == "close"
            assert headers["cache-control"] == "no-store"
            assert json.loads(body)["detail"]
            assert wire.is_closed()
    assert serving.anybody.get("/health").status_code == 200


def test_a_length_that_is_too_small_ends_the_connection(serving):
    """What is left over is read as the next request, which it is not."""
    with Wire(serving) as wire:
        wire.request(
            "POST",
            "/nowhere",
            bearer(serving),
            JSON,
            "Content-Length: 2",
            body=b'{}{"a":1}\r\n\r\n',
        )
        assert wire.answer()[0] == 404
        assert wire.answer()[0] == 400
        assert wire.is_closed()


def test_requests_sent_at_once_are_answered_in_their_order(serving):
    """Pipelining: each gets its own answer, and a bad one ends it for those after it."""
    with Wire(serving) as wire:
        host = f"Host: 127.0.0.1:{serving.port}\r\n"
        token = f"{bearer(serving)}\r\n"
        wire.send(
            (
                f"GET /health HTTP/1.1\r\n{host}\r\n"
                f"POST /nowhere HTTP/1.1\r\n{host}{token}{JSON}\r\nContent-Length: 2\r\n\r\n{{}}"
                f"GET /nowhere HTTP/1.1\r\n{host}\r\n"
                "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"
                f"GET /health HTTP/1.1\r\n{host}\r\n"
            ).encode()
        )
        assert [wire.answer()[0] for _ in range(4)] == [200, 404, 401, 421]
        assert wire.is_closed()


@pytest.mark.parametrize("begun", [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: a\r\nX"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_that_does_not_come_is_not_waited_for(hasty, begun, is_first):
    """Neither on a new connection nor on one that has asked before; nor is the next request."""
    with Wire(hasty) as wire:
        if not is_first:
            assert is_answered(wire)
        wire.send(begun)
        assert wire.is_closed()


def test_a_body_that_does_not_come_is_not_waited_for(hasty):
    """Also where no body is expected, and where nothing of it ever comes."""
    for method in ("GET", "POST"):
        with Wire(hasty) as wire:
            wire.request(method, "/health", JSON, "Content-Length: 5")
            assert wire.answer()[0] == 408
            assert wire.is_closed()


def test_a_peer_that_does_not_read_is_given_up(tmp_path):
    """Answers that are not read are not kept for ever."""
    with (
        Serving(directory=tmp_path / "hasty", protocol=Hasty, send_buffer_bytes=4_096) as serving,
        Wire(serving, receive_buffer_bytes=4_096) as wire,
    ):
        request = f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\n\r\n"
        wire.send(request.encode() * 900)
        assert wire.wait_until_reset()
        assert serving.anybody.get("/health").status_code == 200


@pytest.mark.parametrize("answers", [1, 5], ids=["a short answer", "long ones"])
def test_a_peer_that_reads_byte_by_byte_is_given_up(tmp_path, answers):
    """Also where the whole answer waits for it already, and nothing waits to be written."""
    with (
        Serving(
            directory=tmp_path / "slow", protocol=Impatient, send_buffer_bytes=4_096
        ) as serving,
        Wire(serving, receive_buffer_bytes=4_096) as wire,
    ):
        for number in range(20):
            serving.services.posted.start(f"agent-{number}", 0.0)
        for _ in range(answers):
            wire.request("GET", "/agents", bearer(serving))
        while not wire.wait_until_reset(seconds=0.01):
            wire.read(1)
        assert serving.anybody.get("/health").status_code == 200


def test_requests_without_a_token_are_bounded_per_connection(serving):
    """The last one says that it is, those behind it are not answered; sent at once or not."""
    get = f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\n"
    wrong = "Authorization: Bearer um_nonsense\r\n"
    for lines in ("\r\n", f"{wrong}\r\n"):
        with Wire(serving) as wire:
            wire.send(f"{get}{lines}".encode() * 3 * MAX_UNAUTHENTICATED_REQUESTS)
            answers = [wire.answer() for _ in range(MAX_UNAUTHENTICATED_REQUESTS)]
            assert [answer[1].get("connection") for answer in answers] == [
                *[None] * (MAX_UNAUTHENTICATED_REQUESTS - 1),
                "close",
            ]
            assert wire.answer() is None


def test_a_valid_token_makes_room_for_further_requests(serving):
    """The limit is on unauthenticated requests in a row."""
    with Wire(serving) as wire:
        for _ in range(3):
            for _ in range(MAX_UNAUTHENTICATED_REQUESTS - 1):
                wire.request("GET", "/health")
                assert wire.answer()[0] == 200
            wire.request("GET", "/nowhere", bearer(serving))
            assert wire.answer()[0] == 404
        for _ in range(3 * MAX_UNAUTHENTICATED_REQUESTS):
            wire.request("GET", "/nowhere", bearer(serving))
            assert "connection" not in wire.answer()[1]


def test_a_handshake_that_does_not_come_is_not_waited_for(tmp_path):
    """Over TLS the handshake has as much time as a head, and keeps no other from its own."""
    certfile, keyfile = make_certificate(tmp_path)
    tls = {"certfile": certfile, "keyfile": keyfile}
    with Serving(directory=tmp_path / "hasty", protocol=Hasty, **tls) as serving:
        for begun in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET /health HTTP/1.1\r\n\r\n"):
            with Wire(serving) as wire:
                wire.send(begun)
                assert wire.answer() is None
        assert serving.trusting(certfile).get("/health").status_code == 200


def test_a_handshake_takes_a_place_like_a_head(tmp_path):
    """The oldest of those who do not even shake hands give way, too."""
    certfile, keyfile = make_certificate(tmp_path)
    tls = {"certfile": certfile, "keyfile": keyfile}
    serving = Serving(directory=tmp_path / "narrow", protocol=Narrow, **tls)
    with ExitStack() as wires, serving:
        own = serving.trusting(certfile, serving.services.admin_token)
        assert own.get("/nowhere").status_code == 404
        others = [wires.enter_context(Wire(serving)) for _ in range(10)]
        assert all(wire.answer() is None for wire in others[:7])
        assert serving.trusting(certfile).get("/health").status_code == 200
        assert own.get("/nowhere").status_code == 404
        assert own.post("/nowhere", json="x" * 1_000_000).status_code == 404
        assert len(serving.server.server_state.connections) <= Narrow.max_connections


def test_300_heads_that_drip_leave_a_good_client_its_answers(serving):
    """While each sends a byte now and then, others are answered; 5 s later all of them are gone."""
    with ExitStack() as wires:
        attackers = [wires.enter_context(Wire(serving)) for _ in range(MAX_CONNECTIONS + 44)]
        for wire in attackers:
            wire.send(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Drip: ")
        while any([wire.send(b"x") for wire in attackers]):
            with Wire(serving) as good:
                assert is_answered(good)
            assert serving.admin.get("/nowhere").status_code == 404
            assert len(serving.server.server_state.connections) <= MAX_CONNECTIONS


def test_the_oldest_who_proved_nothing_gives_way(narrow):
    """A connection that proved a token keeps its place, however many others come."""
    own = known(narrow)
    others = [narrow.wires.enter_context(Wire(narrow)) for _ in range(10)]
    assert all(wire.is_closed() for wire in others[:7])
    assert is_answered(own)
    assert all(is_answered(wire) for wire in others[7:])


def test_a_token_that_is_not_valid_proves_nothing(narrow):
    """A client with an invalid token is unknown like any other."""
    liar = narrow.wires.enter_context(Wire(narrow))
    liar.request("GET", "/nowhere", "Authorization: Bearer um_nonsense")
    assert liar.answer()[0] == 401
    for _ in range(4):
        narrow.wires.enter_context(Wire(narrow))
    assert liar.is_closed()


def test_where_all_are_known_the_one_that_asks_nothing_gives_way(narrow):
    """A newcomer gets in, at the cost of the connection that was idle and came first."""
    first, *others = [known(narrow) for _ in range(4)]
    assert is_answered(narrow.wires.enter_context(Wire(narrow)))
    assert first.is_closed()
    assert all(is_answered(wire) for wire in others)


def test_where_all_are_known_and_wait_a_newcomer_must(narrow):
    """No answer to an authenticated client is broken off; free slots are used."""
    streams = [known(narrow) for _ in range(4)]
    for wire in streams:
        wire.request("GET", "/events/stream", bearer(narrow))
        assert wire.answer()[0] == 200
    with Wire(narrow) as newcomer:
        assert newcomer.is_closed()
    streams[0].__exit__()
    for _ in range(10_000):
        with Wire(narrow) as newcomer:
            if is_answered(newcomer):
                break
    else:
        pytest.fail("the place was not given to anybody")
