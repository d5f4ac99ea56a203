"""Webhooks: signed, at least once, to listed hosts only, without delaying each other."""

import json
import logging
import socket
import ssl
import subprocess
import threading
from contextlib import closing

import pytest
from helpers.requirements import require_tool
from helpers.webhook_receiver import Receiver, is_genuine

from ultramon import ContextConfig, create_context_monitor, queue_message, register
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.queue import queue_of
from ultramon.notices.message import Draft
from ultramon.server.workers.webhook_targets import AllowedHosts
from ultramon.server.workers.webhooks import MAX_ANSWER_BYTES, Sender, Target, Webhooks
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.testing import FakeClock

SECRET = b"0123456789abcdef"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def backend(tmp_path):
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        yield backend


@pytest.fixture
def receiver():
    with Receiver().open() as receiver:
        yield receiver


@pytest.fixture
def make_sender(backend, clock):
    """A factory of senders to a URL; by default everything that it names is listed."""
    senders = []

    def make(url, *listed, recipient="boss", lookup=None, **more):
        hosts = AllowedHosts(listed or [url.split("/")[2]], "a test", lookup=lookup)
        timeout = more.pop("timeout_seconds", 10.0)
        more = {"secret": SECRET} | more
        target = Target(recipient=recipient, url=hosts.check("url", url), **more)
        sender = Sender(target, hosts, backend=backend, clock=clock, timeout_seconds=timeout)
        senders.append(sender)
        return sender

    yield make
    for sender in senders:
        sender.close()


@pytest.fixture
def send(backend, clock):
    return lambda text="hello", recipient="boss", **more: queue_message(
        recipient, text, backend=backend, clock=clock, **more
    )


@pytest.fixture
def error(backend, clock):
    """The error with which the only notice of boss was rejected."""

    def error():
        (message,) = queue_of(backend).peek("boss", now=clock.now())
        assert not message.claim_token
        return message.last_error

    return error


def bodies(receiver):
    return [json.loads(request.body) for request in receiver.all()]


def test_a_notice_is_posted_signed_and_acknowledged(make_sender, receiver, backend, clock):
    """The receiver gets all of the notice, can check who sent it, and gets it once."""
    sender = make_sender(receiver.url)
    config = ContextConfig(context_window_tokens=200_000)
    with create_context_monitor(
        "scout-1", config, parent_id="boss", backend=backend, clock=clock
    ) as monitor:
        register("scout-1", "boss", backend=backend, clock=clock)
        monitor.report_usage(input_tokens=172_000)
        assert sender.poll() == 1
        assert sender.poll() == 0
    (request,) = receiver.all()
    notice = json.loads(request.body)
    assert (notice["recipient"], notice["agentId"]) == ("boss", "scout-1")
    assert (notice["delivery"], notice["facts"]["kind"]) == ("urgent", "level")
    assert notice["attempts"] == 1
    assert "86%" in notice["text"]
    assert "claimToken" not in notice
    assert request.path == "/hook"
    assert request.headers["Host"] == receiver.listed
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Idempotency-Key"] == str(notice["messageId"])
    assert is_genuine(request, SECRET, now=clock.now())
    assert not is_genuine(request, b"another secret!!", now=clock.now())
    assert not is_genuine(request._replace(body=b"{}"), SECRET, now=clock.now())
    assert not is_genuine(request, SECRET, now=clock.now() + 301)


HOSTILE = "<!channel> & <https://a.example|b> größer @everyone"
ESCAPED = "&lt;!channel&gt; &amp; &lt;https://a.example|b&gt; größer @everyone"
NO_MENTIONS = {"allowed_mentions": {"parse": []}}


@pytest.mark.parametrize(
    ("layout", "text", "made"),
    [
        ("slack", HOSTILE, {"text": ESCAPED}),
        ("discord", HOSTILE, {"content": HOSTILE, **NO_MENTIONS}),
        ("discord", "x" * 2_001, {"content": "x" * 1_999 + "…", **NO_MENTIONS}),
    ],
)
def test_slack_and_discord_get_the_text_as_they_read_it(
    make_sender, receiver, send, clock, layout, text, made
):
    """And it mentions nobody; it is signed like any other where there is a secret."""
    send(text)
    assert make_sender(receiver.url, format=layout).poll() == 1
    (request,) = receiver.all()
    assert json.loads(request.body) == made
    assert request.headers["Content-Type"] == "application/json"
    assert is_genuine(request, SECRET, now=clock.now())


@pytest.mark.parametrize(
    ("text", "delivery", "priority"),
    [(HOSTILE, "urgent", "high"), (HOSTILE, "sequential", "default")],
)
def test_ntfy_gets_plain_text(make_sender, receiver, send, text, delivery, priority):
    send(text, delivery=delivery)
    assert make_sender(receiver.url, format="ntfy").poll() == 1
    (request,) = receiver.all()
    assert request.body.decode() == text
    assert request.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (request.headers["Priority"], request.headers["Title"]) == (priority, "ultramon")


def test_a_long_text_for_ntfy_is_cut_between_characters(make_sender, receiver, send):
    send("x" + "ü" * 3_000)
    assert make_sender(receiver.url, format="ntfy").poll() == 1
    (request,) = receiver.all()
    assert request.body.decode() == "x" + "ü" * 2_047


def test_without_a_secret_nothing_is_signed(make_sender, receiver, send):
    send()
    assert make_sender(receiver.url, format="slack", secret=None).poll() == 1
    (request,) = receiver.all()
    assert "Ultramon-Signature" not in request.headers
    assert "Idempotency-Key" in request.headers


def test_text_that_no_encoding_holds_arrives_escaped(make_sender, receiver, backend, clock):
    """JSON of ASCII characters only: nothing a sender writes can stop the sending."""
    queue_of(backend).queue_message(
        Draft("boss", "größer\n", facts={"half": "\ud800"}), now=clock.now()
    )
    assert make_sender(receiver.url).poll() == 1
    (request,) = receiver.all()
    assert request.body.isascii()
    assert json.loads(request.body)["facts"] == {"half": "\ud800"}


def test_only_the_chosen_modes_are_posted(make_sender, receiver, send, backend, clock):
    """The others stay in the queue for other clients of that agent."""
    send("now", delivery="urgent")
    send("later")
    assert make_sender(receiver.url, deliveries=["urgent"]).poll() == 1
    assert [notice["text"] for notice in bodies(receiver)] == ["now"]
    assert queue_of(backend).peek("boss", now=clock.now())[0].text == "later"


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503])
def test_a_refused_notice_comes_again_when_it_is_due(
    make_sender, receiver, send, clock, error, caplog, status
):
    """Every status but 2xx is a refusal; the id stays, so that a receiver can skip a repetition."""
    sender = make_sender(receiver.url)
    receiver.answer = status
    send()
    with caplog.at_level(logging.WARNING, "ultramon.server"):
        assert sender.poll() == 0
    assert error() == f"HTTP {status}"
    assert f"webhook of boss: notice 1 was not delivered: HTTP {status}" in caplog.text
    receiver.answer = 200
    clock.advance(1.9)
    assert sender.poll() == 0
    clock.advance(0.1)
    assert sender.poll() == 1
    first, second = receiver.all()
    assert "Cookie" not in second.headers
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert is_genuine(second, SECRET, now=clock.now(), tolerance_seconds=0)
    assert [json.loads(one.body)["attempts"] for one in (first, second)] == [1, 2]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(make_sender, receiver, send, error, status):
    """The notice would go to a host that is not listed."""
    with Receiver().open() as elsewhere:
        receiver.answer = (status, elsewhere.url)
        send()
        assert make_sender(receiver.url).poll() == 0
        assert elsewhere.all() == []
    assert len(receiver.all()) == 1
    assert error() == f"HTTP {status} (redirects are not followed)"


def test_what_a_receiver_missed_arrives_when_it_is_back(make_sender, receiver, send, clock, error):
    """An address without a listener is a refusal like any other."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    sender = make_sender(f"http://127.0.0.1:{port}/hook")
    send()
    assert sender.poll() == 0
    assert error().startswith("ConnectError: ")
    clock.advance(2)
    with Receiver().open(port) as back:
        assert sender.poll() == 1
        assert [notice["text"] for notice in bodies(back)] == ["hello"]


def test_a_poisonous_notice_dies_and_holds_no_other_up(make_sender, receiver, send, backend, clock):
    """After five refusals it is dead, which the event log says; the others arrive meanwhile."""

    def refuse_poison(handler):
        handler.send_response(500 if b"poison" in sent[-1] else 200)
        handler.end_headers()

    sent = []
    receiver.requests.put = lambda request: sent.append(request.body)
    receiver.answer = refuse_poison
    sender = make_sender(receiver.url)
    send("poison")
    send("good")
    taken = sender.poll()
    for pause in (2, 4, 8, 16, 3600):
        clock.advance(pause)
        taken += sender.poll()
    assert taken == 1
    assert [b"poison" in body for body in sent] == [True, False, True, True, True, True]
    (dead,) = queue_of(backend).dead("boss")
    assert (dead.text, dead.last_error) == ("poison", "HTTP 500")
    assert "dead_letter" in [event["type"] for event in backend.events().events]


def test_a_cancelled_notice_is_not_sent(make_sender, receiver, backend, clock):
    """What a compaction made untrue never reaches the receiver; that it was compacted does."""
    config = ContextConfig(context_window_tokens=200_000)
    with create_context_monitor(
        "scout-1", config, parent_id="boss", backend=backend, clock=clock
    ) as monitor:
        register("scout-1", "boss", backend=backend, clock=clock)
        monitor.report_usage(input_tokens=150_000)
        monitor.record_compaction(tokens_after=40_000)
        make_sender(receiver.url).poll()
    assert [notice["facts"]["kind"] for notice in bodies(receiver)] == ["epoch"]


def test_a_receiver_that_hangs_delays_no_other(make_sender, receiver, send, backend, clock, error):
    """Each target has its own thread; stopping gives back what was under way."""
    with Receiver().open() as hanging:
        hanging.answer = lambda handler: hanging.leaving.wait()
        slow = make_sender(hanging.url)
        quick = make_sender(receiver.url, recipient="other")
        send("slow")
        webhooks = Webhooks([slow, quick])
        assert json.loads(hanging.next().body)["text"] == "slow"
        for number in range(3):
            send(str(number), "other")
            assert json.loads(receiver.next().body)["text"] == str(number)
        webhooks.stop()
        assert error() == "the server stopped before the answer came"


@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_drips_runs_into_the_timeout(make_sender, receiver, send, error, part):
    """The time is that of the whole exchange: no byte now and then buys more of it."""

    def drip(handler):
        end = b"\r\n\r\n" if part == "head" else b""
        handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: " + (b"" if end else b"yes\r\n\r\n"))
        for _ in range(250):
            if receiver.leaving.wait(0.02):
                return
            handler.wfile.write(b"x")
        handler.wfile.write(end)

    receiver.answer = drip
    send()
    sender = make_sender(receiver.url, timeout_seconds=0.3)
    assert sender.poll() == 0
    assert error() == "no whole answer within 0.3 s"


def test_no_more_than_64_kib_of_an_answer_are_read(make_sender, receiver, send):
    """Its status is there already: an endless one is taken for what it is, and hung up on."""
    hung_up = threading.Event()

    def pour(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while not receiver.leaving.is_set():
                handler.wfile.write(b"x" * MAX_ANSWER_BYTES)
        except OSError:
            hung_up.set()

    receiver.answer = pour
    send()
    assert make_sender(receiver.url).poll() == 1
    assert hung_up.wait(20)


def test_proxies_of_the_environment_are_not_asked(make_sender, receiver, send, monkeypatch):
    """A proxy would look the host up again, and see what only the receiver may see."""
    with Receiver().open() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        send()
        assert make_sender(receiver.url).poll() == 1
        assert proxy.all() == []


def leads_to(*addresses):
    return lambda host, port, **_: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses
    ]


@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1",), ("10.0.0.7",), ("93.184.215.14", "127.0.0.1"), ("169.254.169.254",)],
)
def test_a_listed_name_that_leads_inside_gets_nothing(make_sender, send, error, addresses):
    """The one who owns a name decides where it leads: one wrong address is enough to refuse."""
    with Receiver().open() as inside:
        name = f"hooks.example.com:{inside.port}"
        sender = make_sender(f"https://{name}/hook", lookup=leads_to(*addresses))
        send()
        assert sender.poll() == 0
        assert inside.all() == []
    assert f"not to {addresses[-1]}" in error()


def test_localhost_works_where_it_has_two_addresses(make_sender, receiver, send):
    """The second is tried when the first refuses the connection."""
    url = f"http://localhost:{receiver.port}/hook"
    sender = make_sender(url, lookup=leads_to("127.0.0.2", "127.0.0.1"))
    send()
    assert sender.poll() == 1
    assert receiver.next().headers["Host"] == f"localhost:{receiver.port}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of hooks.example.com that certifies itself."""
    folder = tmp_path_factory.mktemp("certificate")
    path = str(folder / "both.pem")
    subprocess.run(
        [
            *(require_tool("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path, "-out", f"{path}.crt"),
            *("-subj", "/CN=hooks.example.com", "-days", "2"),
            *("-addext", "subjectAltName=DNS:hooks.example.com"),
        ],
        check=True,
        capture_output=True,
    )
    return path, f"{path}.crt"


@pytest.mark.parametrize(
    ("name", "is_trusted", "problem"),
    [
        ("hooks.example.com", True, None),
        ("hooks.example.com", False, "certificate verify failed"),
        ("other.example.com", True, "certificate verify failed"),
    ],
)
def test_the_checked_address_is_connected_to_and_the_name_is_certified(
    make_sender, send, error, certificate, name, is_trusted, problem
):
    """One look-up an attempt, whose result is used; the certificate must be that of the name."""
    key, public = certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(public, key)
    asked = []

    def lookup(host, port, **_):
        asked.append(host)
        # A second look-up leads elsewhere.
        return leads_to("127.0.0.1" if len(asked) == 1 else "127.0.0.9")(host, port)

    with Receiver().open(tls=tls) as receiver:
        url = f"https://{name}:{receiver.port}/hook"
        trust = ssl.create_default_context(cafile=public) if is_trusted else True
        sender = make_sender(
            url, f"{name}:{receiver.port}", receiver.listed, lookup=lookup, trust=trust
        )
        send()
        assert sender.poll() == (problem is None)
        hosts = [request.headers["Host"] for request in receiver.all()]
        assert hosts == ([f"{name}:{receiver.port}"] if problem is None else [])
        assert problem is None or problem in error()
    assert asked == [name]


def test_a_name_that_cannot_be_resolved_is_a_refusal(make_sender, send, error):
    """A look-up that fails may work the next time."""

    def lookup(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    send()
    assert make_sender("https://hooks.example.com/", lookup=lookup).poll() == 0
    assert "Name or service not known" in error()


def test_a_store_that_refuses_stops_no_sender(tmp_path, receiver, backend):
    """It is said, and tried again."""
    hosts = AllowedHosts([receiver.listed], "a test")
    target = Target(recipient="boss", url=hosts.check("url", receiver.url), secret=SECRET)
    queue_message("boss", "hello", backend=backend)
    journal = tmp_path / "state" / "journal.sqlite3"
    journal.rename(tmp_path / "away")
    journal.mkdir()
    seen = threading.Event()
    handler, logger = logging.Handler(), logging.getLogger("ultramon.server")
    handler.emit = lambda record: seen.set()
    logger.addHandler(handler)
    with closing(LocalBackend(str(tmp_path / "state"))) as broken:
        sender = Sender(target, hosts, backend=broken, clock=SYSTEM_CLOCK)
        webhooks = Webhooks([sender])
        assert seen.wait(20)
        journal.rmdir()
        (tmp_path / "away").rename(journal)
        assert json.loads(receiver.next().body)["text"] == "hello"
        webhooks.stop()
    logger.removeHandler(handler)
