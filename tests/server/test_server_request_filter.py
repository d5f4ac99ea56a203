"""The request filter: host, origin, size and rate of requests."""

from __future__ import annotations

import json
import logging
from functools import partial

import pytest
from helpers.running_server import Serving, Wire
from hypothesis import given
from hypothesis import strategies as st

from ultramon.errors import ConfigurationError
from ultramon.server.http import request_filter
from ultramon.server.http.request_filter import MAX_BODY_BYTES, allowed_hosts
from ultramon.server.logs import LineFormatter
from ultramon.server.rate_limits import MAX_BUCKETS, TokenBuckets
from ultramon.testing import FakeClock
from ultramon.tokens import mint_token

OWN = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
HOSTS = {
    "127.0.0.1:{port}": 200,
    "localhost:{port}": 200,
    "LocalHost:{port}": 200,
    "[::1]:{port}": 200,
    "evil.example": 421,
    "evil.example:{port}": 421,
    "127.0.0.1": 421,
    "127.0.0.1:1": 421,
    "127.0.0.1:{port}.evil.example": 421,
    "127.0.0.1.evil.example:{port}": 421,
    "localhost.:{port}": 421,
    "a@localhost:{port}": 421,
    "0.0.0.0:{port}": 421,
    "*": 421,
    "": 421,
    "127.0.0.1:{port}, evil.example": 421,
}
LINES = {
    "Origin: http://127.0.0.1:{port}": 200,
    "Origin: http://localhost:{port}": 200,
    "Origin: http://evil.example": 403,
    "Origin: http://127.0.0.1:1": 403,
    "Origin: http://127.0.0.1": 403,
    "Origin: https://127.0.0.1:{port}": 403,
    "Origin: http://127.0.0.1:{port}.evil.example": 403,
    "Origin: null": 403,
    "Origin:": 403,
    "Sec-Fetch-Site: same-origin": 200,
    "Sec-Fetch-Site: none": 200,
    "Sec-Fetch-Site: same-site": 403,
    "Sec-Fetch-Site: cross-site": 403,
    "Sec-Fetch-Site: else": 403,
    "Content-Encoding: gzip": 415,
    "Content-Encoding: identity": 415,
    "Content-Length: 0": 200,
}
KINDS = {
    "Content-Type: application/json": 404,
    "content-type: Application/JSON": 404,
    "Content-Type: application/json; charset=utf-8": 404,
    'Content-Type: application/json;charset="UTF-8"': 404,
    "Content-Type: application/json; charset=latin-1": 415,
    "Content-Type: application/jsonp": 415,
    "Content-Type: text/plain": 415,
    "Content-Type: text/plain; application/json": 415,
    "Content-Type: application/x-www-form-urlencoded": 415,
    "Content-Type: multipart/form-data": 415,
    "X-None: 1": 415,
    "Content-Type: application/json\r\nContent-Type: text/plain": 415,
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    with Serving(directory=tmp_path_factory.mktemp("front") / "state") as serving:
        yield serving


@pytest.fixture
def wire(serving):
    with Wire(serving) as wire:
        yield wire


def refused(answer, status):
    """Check that a request was refused as every refusal is: in words, and for good."""
    found, headers, body = answer
    assert found == status
    assert headers["connection"] == "close"
    assert json.loads(body)["detail"]
    return True


@pytest.mark.parametrize("host", HOSTS)
def test_a_request_must_name_this_server(serving, wire, host):
    """A page that points a name of its own at this machine gets nothing through it."""
    wire.request(host=host.format(port=serving.port))
    answer = wire.answer()
    if HOSTS[host] == 200:
        assert answer[0] == 200
    else:
        assert refused(answer, HOSTS[host])
        assert wire.is_closed()


def test_without_exactly_one_host_nothing_is_answered(serving, wire):
    """No Host, in the version that allows it, and two of them, which the parser refuses."""
    wire.send(b"GET /health HTTP/1.0\r\n\r\n")
    assert refused(wire.answer(), 421)
    with Wire(serving) as other:
        other.request("GET", "/health", "Host: evil.example")
        assert refused(other.answer(), 400)


@pytest.mark.parametrize("line", LINES)
def test_a_request_must_not_come_from_a_page_elsewhere(serving, wire, line):
    """Browsers say whose page sends a request, and cannot be made to lie; nor is a body packed."""
    wire.request("GET", "/health", line.format(port=serving.port))
    assert wire.answer()[0] == LINES[line]


@pytest.mark.parametrize("line", KINDS)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_write_is_json(serving, wire, method, line):
    """What a form or a page without permission can send is not taken as a write."""
    token = f"Authorization: Bearer {serving.services.admin_token}"
    wire.request(method, "/nowhere", line, token, "Content-Length: 2", body=b"{}")
    assert wire.answer()[0] == KINDS[line]


def test_a_write_without_a_body_needs_no_content_type(serving):
    """There is nothing to misread."""
    assert serving.admin.post("/nowhere").status_code == 404


def test_no_page_is_ever_given_permission(serving, wire):
    """A preflight request of another origin is never allowed."""
    wire.request(
        "OPTIONS",
        "/agents",
        f"Origin: http://localhost:{serving.port}",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization",
    )
    status, headers, _ = wire.answer()
    assert status in (401, 405)
    assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [("/health", None, 200), ("/nowhere", None, 401), ("/health", "evil.example", 421)],
)
def test_every_answer_says_how_it_may_be_used(wire, path, host, status):
    """Not kept, not guessed at, not framed; nor does it say what software answers."""
    wire.request("GET", path, host=host)
    found, headers, _ = wire.answer()
    assert found == status
    assert {name: headers[name] for name in OWN} == OWN
    assert "server" not in headers


def test_a_body_may_have_one_mebibyte(serving):
    """The limit itself is taken; one byte more is refused before it is sent."""
    body = b'"' + b"x" * (MAX_BODY_BYTES - 2) + b'"'
    kind = {"Content-Type": "application/json"}
    assert serving.admin.post("/nowhere", content=body, headers=kind).status_code == 404
    with Wire(serving) as wire:
        wire.request(
            "POST",
            "/nowhere",
            "Content-Type: application/json",
            f"Content-Length: {MAX_BODY_BYTES + 1}",
        )
        assert refused(wire.answer(), 413)
        assert wire.is_closed()


def test_an_endless_body_is_cut_off(wire):
    """Chunks are counted as they come; the connection ends with the answer."""
    wire.request("POST", "/nowhere", "Content-Type: application/json", "Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    while wire.send(chunk):
        pass
    assert refused(wire.answer(), 413)


def test_one_body_that_lags_behind_is_given_up(tmp_path):
    """A client that sends less than it announced gets 408 and loses its slot."""
    with Serving(directory=tmp_path / "other", body_seconds=0.2) as serving, Wire(serving) as wire:
        wire.request(
            "POST", "/nowhere", "Content-Type: application/json", "Content-Length: 3", body=b"{}"
        )
        assert refused(wire.answer(), 408)
        assert wire.is_closed()


@pytest.fixture
def unfilled(monkeypatch, tmp_path):
    """A server whose buckets never fill again: on a slow machine that is faster than a test."""
    stopped = partial(TokenBuckets, clock=lambda: 0.0)
    monkeypatch.setattr(request_filter, "TokenBuckets", stopped)
    with Serving(directory=tmp_path / "state") as serving:
        yield serving


def test_an_agent_that_floods_is_slowed_and_no_other(unfilled):
    """Its own token has a bucket of its own; the admin and the hooks of many agents have none."""
    unfilled.services.posted.start("flood", unfilled.services.clock.now())
    unfilled.services.posted.start("calm", unfilled.services.clock.now())
    floods = unfilled.client(mint_token("flood", backend=unfilled.backend))
    answers = [floods.get("/nowhere") for _ in range(201)]
    assert {answer.status_code for answer in answers[:-1]} == {404}
    refusal = answers[-1]
    assert refusal.status_code == 429
    assert refusal.headers["retry-after"] == "1"
    assert "too many requests" in refusal.json()["detail"]
    calm = unfilled.client(mint_token("calm", backend=unfilled.backend))
    assert calm.get("/nowhere").status_code == 404
    for client in (unfilled.admin, unfilled.hooks):
        assert {client.get("/hooks/nowhere").status_code for _ in range(250)} == {404}


def test_a_line_about_a_request_is_one_line_and_only_text(serving, caplog):
    """What a caller writes into a path is neither a format nor a second line; queries stay out."""
    caplog.set_level(logging.INFO, "ultramon.server")
    path = "/%s%n{0.__class__}%0a2026-01-01%20CRITICAL%1b[2J?secret=1"
    with Wire(serving) as wire:
        wire.request("GET", path, "X-Fake: CRITICAL")
        wire.answer()
        wire.request("GET", "/" + "x" * 5_000)
        wire.answer()
        wire.request()  # a line is written right behind its answer
        wire.answer()
    # Of a test before there may be a line, too: it is written behind the answer.
    lines = [record.getMessage() for record in caplog.records]
    first, second = (line for line in lines if line.startswith(("GET /%s", "GET /xxx")))
    assert first.startswith("GET /%s%n{0.__class__}%0a2026-01-01%20CRITICAL%1b[2J 401 ")
    assert len(second) < 300


def test_a_log_record_is_one_line_whatever_is_in_it():
    """A record with line ends, control characters and a traceback cannot pass for several."""
    try:
        raise ValueError("a\nb\x1b[2J")
    except ValueError as error:
        kind = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "%s", ("x\r\ny\u2028z",), kind)
    line = LineFormatter().format(record)
    assert " ERROR x\\x0d\\x0ay\\u2028z\\x0aTraceback" in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("names", "has", "lacks"),
    [
        ([], "127.0.0.1:8420", "127.0.0.1"),
        (["Monitor.Example"], "monitor.example:8420", "monitor.example"),
        (["monitor.example:443"], "monitor.example:443", "monitor.example:8420"),
        (["[fe80::1]"], "[fe80::1]:8420", "[fe80::1]"),
    ],
)
def test_more_names_can_be_allowed(names, has, lacks):
    """Each with the port of the server, or with its own."""
    hosts = allowed_hosts("http", 8420, names)
    assert has in hosts
    assert lacks not in hosts


def test_the_port_may_be_left_out_where_browsers_do():
    """Port 443 of HTTPS is not written into Host; for HTTP it is a port like another."""
    assert "localhost" in allowed_hosts("https", 443)
    assert "localhost" not in allowed_hosts("http", 443)


@pytest.mark.parametrize("name", ["*", "*.example", "", "a b", "http://a", "a:b", "a,b", "::1"])
def test_a_name_that_stands_for_several_is_refused(name):
    """There is no way to allow every Host."""
    with pytest.raises(ConfigurationError, match=r"--allow-host=.* not \*"):
        allowed_hosts("http", 8420, [name])


def test_a_bucket_gives_its_burst_and_then_its_rate():
    """200 at once, then one for each 20 ms; waiting does not save up more than the burst."""
    clock = FakeClock()
    buckets = TokenBuckets(clock=clock.monotonic)
    assert [buckets.take("a") for _ in range(201)] == [True] * 200 + [False]
    clock.advance(0.1)
    assert [buckets.take("a") for _ in range(6)] == [True] * 5 + [False]
    clock.advance(86_400)
    assert [buckets.take("a") for _ in range(201)] == [True] * 200 + [False]
    assert buckets.take("b")


def test_of_very_many_buckets_the_idlest_is_forgotten():
    """Invented keys cost a fixed amount of memory at most."""
    buckets = TokenBuckets(1.0, 1.0, clock=lambda: 0.0)
    assert buckets.take("first")
    assert buckets.take("second")
    assert not buckets.take("first")
    for number in range(MAX_BUCKETS - 1):
        buckets.take(str(number))
    assert len(buckets) == MAX_BUCKETS
    assert not buckets.take("first")
    assert buckets.take("second")


@given(st.lists(st.floats(0, 5), max_size=60), st.floats(0.1, 100), st.integers(1, 20).map(float))
def test_no_rhythm_of_asking_gets_more_than_the_rate(pauses, rate, burst):
    """However the takes are spread, no more succeed than the burst and what flowed back."""
    clock = FakeClock()
    began = clock.monotonic()
    buckets = TokenBuckets(rate, burst, clock=clock.monotonic)
    taken = 0
    for pause in pauses:
        clock.advance(pause)
        taken += buckets.take("a") + buckets.take("a")
        assert taken <= burst + (clock.monotonic() - began) * rate + 1e-6
