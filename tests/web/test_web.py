"""The page's walls and its contents, asked over a real socket."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest
from helpers.html import HOSTILE, Parsed
from helpers.observed_agents import NOW, observed, session
from helpers.planted_transcripts import OTHER, SESSION, Machine, used
from helpers.postgres_network import wait_until
from helpers.program import CAPTURES
from helpers.web_page import WebServing

from ultramon.backends.local.backend import LocalBackend
from ultramon.notices.message import Draft
from ultramon.pictures.elements import to_html
from ultramon.recordings.transcript_summary import FilledWindow
from ultramon.state.agent_rows import summarize
from ultramon.state.event_words import EVENT_TYPES
from ultramon.state.plan_limits import FIVE_HOURS, PlanLimits, plan_limit
from ultramon.state.record import encode_state
from ultramon.system.processes import this_machine
from ultramon.system.wording import field, moment
from ultramon.testing import FakeClock, make_record, simulate
from ultramon.testing.clock import START
from ultramon.testing.samples import make_event
from ultramon.tokens import METRICS_TOKEN, rotate_server_secret, server_secret
from ultramon.web.event_reader import EventReader, _read
from ultramon.web.fillings import FillingReader
from ultramon.web.gate import CONTENT_POLICY
from ultramon.web.logins import LINK_SECONDS, LOGIN_SECONDS, MAX_LOGINS, Logins, make_code
from ultramon.web.pages.agent import AgentFacts, Filling, _facts, _filled
from ultramon.web.pages.event_list import shown_name
from ultramon.web.pages.jobs import lives_of
from ultramon.web.views import FleetView, Readers

PATHS = ["/", "/agent?id=scout", "/jobs", "/jobs?run=default", "/events"]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(str(tmp_path / "state"))
    yield backend
    backend.close()


@pytest.fixture
def serving(backend, clock):
    with WebServing(backend, clock=clock) as serving:
        yield serving


@pytest.fixture
def make(ultramon_monitor, backend, clock):
    """Start an agent in the store that is served."""

    def start(agent_id, **options):
        options.setdefault("context_limit_tokens", 10_000)
        return ultramon_monitor(agent_id, backend=backend, clock=clock, **options)

    return start


def test_a_link_logs_in_once_and_the_cookie_is_the_session(serving, clock):
    """HttpOnly, SameSite=Strict, for this port; the same link again is refused."""
    client, link = serving.stranger(), serving.link(clock.now())
    answer = client.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"ultramon-web-{serving.port}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={LOGIN_SECONDS}"} <= set(
        cookie.split("; ")
    )
    assert "Secure" not in cookie  # over TLS it is; here a browser would not send it
    assert client.get("/").status_code == 200
    other = serving.stranger()
    assert other.get(link).status_code == 403
    assert other.get("/").status_code == 401


def test_a_link_and_a_session_end_by_themselves(serving, clock):
    """The link after five minutes, the session after twelve hours."""
    late = serving.link(clock.now())
    clock.advance(LINK_SECONDS)
    assert serving.stranger().get(late).status_code == 403
    client = serving.visitor(clock.now())
    clock.advance(LOGIN_SECONDS - 1)
    assert client.get("/").status_code == 200
    clock.advance(1)
    assert client.get("/").status_code == 401


@pytest.mark.parametrize(
    "change",
    [
        lambda code: code[:-1] + ("0" if code[-1] != "0" else "1"),
        lambda code: f"{int(code.partition('.')[0]) + 60}.{code.partition('.')[2]}",
        lambda code: code.rpartition(".")[0],
        lambda code: "",
        lambda code: "é" + code,
        lambda code: code * 10,
        lambda code: make_code("another start", START),
    ],
)
def test_a_forged_link_logs_nobody_in(change):
    """Whatever is changed in a link, it is refused; unchanged it works."""
    logins, code = Logins("key", FakeClock()), make_code("key", START)
    assert logins.redeem(change(code)) is None
    assert logins.redeem(code) is not None


def test_prometheus_scrapes_it_with_its_token_alone(backend, clock, make, tmp_path):
    """Neither nothing nor a session opens the metrics, and their token opens no page."""
    monitor = make("scout")
    monitor.report_usage(input_tokens=4_200)
    monitor.update_heartbeat()
    directory = str(tmp_path / "state")
    with WebServing(backend, clock=clock, state_directory=directory) as serving:
        visitor = serving.visitor(clock.now())
        assert [client.get("/metrics").status_code for client in (serving.stranger(), visitor)] == [
            401,
            401,
        ]
        token = server_secret(directory, METRICS_TOKEN)
        scraper = serving.stranger(Authorization=f"Bearer {token}")
        assert 'ultramon_context_tokens{agent_id="scout"' in scraper.get("/metrics").text
        assert scraper.get("/").status_code == 401
        rotate_server_secret(directory, METRICS_TOKEN)
        assert scraper.get("/metrics").status_code == 401
        token = server_secret(directory, METRICS_TOKEN)
        scraper = serving.stranger(Authorization=f"Bearer {token}")
        assert scraper.get("/metrics").status_code == 200


def test_looking_ahead_does_not_use_a_link_up(serving, clock):
    """Browsers and chat programs fetch links before anybody clicks them."""
    link, client = serving.link(clock.now()), serving.stranger()
    assert client.head(link).status_code == 403
    assert client.get(link, headers={"Sec-Purpose": "prefetch;prerender"}).status_code == 403
    assert client.get(link).status_code == 303


def test_sessions_are_counted():
    """The oldest one ends when there are too many."""
    logins = Logins("key", FakeClock())
    cookies = [logins.redeem(make_code("key", START)) for _ in range(MAX_LOGINS + 1)]
    assert [logins.find(cookie) is None for cookie in cookies] == [True] + [False] * MAX_LOGINS


@pytest.mark.parametrize("path", [*PATHS, *(f"/live{path}" for path in PATHS), "/nowhere"])
def test_without_a_session_nothing_is_shown(serving, make, path):
    """Not even whether a path or an agent exists."""
    make("scout", label="secret")
    answer = serving.stranger(Cookie=f"ultramon-web-{serving.port}=guess").get(path)
    assert answer.status_code == 401
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),  # a server on another port
        ({}, 200),
    ],
)
@pytest.mark.parametrize("path", ["/", "/static/style.css"])
def test_a_request_must_name_this_server_and_come_from_its_own_page(
    serving, clock, headers, status, path
):
    """A session does not help a page of somebody else."""
    assert serving.visitor(clock.now()).get(path, headers=headers).status_code == status


def test_every_answer_has_the_content_policy(serving, clock):
    """Scripts and styles are files of the server; nothing inline runs, no text becomes code."""
    client = serving.visitor(clock.now())
    answers = [client.get(path) for path in ("/", "/nowhere", "/static/htmx.min.js", "/login")]
    answers.append(serving.stranger().get("/"))
    for answer in answers:
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers
    assert "unsafe" not in CONTENT_POLICY


def test_signing_out_ends_the_session(serving, clock):
    """Also for a copy of the cookie, and for the page that is being followed."""
    client = serving.visitor(clock.now())
    with client.stream("GET", "/live/") as followed:
        lines = followed.iter_lines()
        assert next(lines).startswith("data: ")
        copy = serving.stranger(Cookie="; ".join(f"{k}={v}" for k, v in client.cookies.items()))
        assert copy.get("/").status_code == 200
        assert serving.stranger().post("/logout").status_code == 401
        assert copy.post("/logout").status_code == 200
        assert copy.get("/").status_code == 401
        for _ in lines:
            pass  # ends, for the session has


def test_open_pages_are_counted_per_session(serving, clock):
    """The seventeenth is refused; one that is closed makes room."""
    client = serving.visitor(clock.now())

    def status():
        with client.stream("GET", "/live/") as answer:
            return answer.status_code

    with ExitStack() as held:
        for _ in range(15):
            held.enter_context(client.stream("GET", "/live/"))
        with client.stream("GET", "/live/"):
            assert status() == 429
        wait_until(lambda: status() == 200)


def test_behind_a_proxy_with_tls_the_cookie_is_secure(backend, clock):
    """Host is the proxy's name without a port, and Origin is checked against its scheme."""
    with WebServing(
        backend, clock=clock, names=["monitor.example"], proxies=["127.0.0.1"]
    ) as serving:
        headers = {"Host": "monitor.example", "X-Forwarded-Proto": "https"}
        answer = serving.stranger(**headers).get(serving.link(clock.now()))
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Host-ultramon-web-{serving.port}=")
        assert "Secure" in cookie.split("; ")
        client = serving.stranger(**headers, Cookie=cookie.partition(";")[0])
        assert client.get("/", headers={"Origin": "https://monitor.example"}).status_code == 200
        assert client.get("/", headers={"Origin": "http://monitor.example"}).status_code == 403


def test_the_fleet_is_shown_as_it_is_stored(serving, make, clock):
    """Most urgent first, subagents below their session; ended ones on demand, by run or all."""
    for name, tokens, parent in (
        ("quiet", 1_000, None),
        ("full", 9_000, None),
        ("quiet.helper", 2_000, "quiet"),
    ):
        monitor = make(name, parent_id=parent)
        monitor.report_usage(input_tokens=tokens)
        monitor.update_heartbeat()
    make("other", run="elsewhere")
    make("over", run="elsewhere").stop()
    make("blank", context_limit_tokens=None, model="unheard-of").report_usage(input_tokens=70)
    client = serving.visitor(clock.now())

    def shown(path):
        return [value for _, name, value in Parsed(client.get(path).text).attributes
                if name == "data-agent"]  # fmt: skip

    assert shown("/?run=default") == ["full", "quiet", "quiet.helper", "blank"]
    assert set(shown("/?run=elsewhere")) == {"other"}
    assert set(shown("/?run=elsewhere&all=1")) == {"other", "over"}
    page = client.get("/?limit=1").text
    assert shown("/?limit=1") == ["full"]
    assert "4 less urgent ones are not shown" in page
    assert "90 %" in page
    assert "1 ended agent" in page
    assert client.get("/?limit=none").status_code == 422
    assert client.get("/agent").status_code == 422
    assert client.get("/agent?id=nobody").status_code == 404
    assert client.get("/agent?id=../../etc/passwd").status_code == 404


@pytest.mark.parametrize(
    "data",
    [b"{"]
    + [
        encode_state(make_record("broken", pid=1, pid_started_at="", **senseless), "x")
        for senseless in ({"by_source": {"s": "many"}}, {"tasks": ["x"]}, {"generation": 10**19})
    ],
    ids=["torn", "sources", "tasks", "generation"],
)
def test_a_state_that_cannot_be_read_is_named(serving, make, clock, backend, tmp_path, data):
    """On the fleet's page, and on its own."""
    make("broken")
    path = tmp_path / "state" / "subagents" / "broken.json"
    path.write_bytes(data)
    client = serving.visitor(clock.now())
    assert "broken cannot be read" in client.get("/").text
    assert "The store does not answer" in client.get("/agent?id=broken").text


@pytest.mark.parametrize("text", HOSTILE)
def test_what_agents_wrote_stays_text(serving, make, clock, backend, text):
    """In labels, plans, tasks, notes, sources, names of runs, and messages that died."""
    monitor = make("victim", label=text, goal=text)
    monitor.plan([text])
    monitor.set_current_task(text)
    monitor.track_content("words " * 9_000, source=text)
    monitor.hand_off(notes=text, next_step=text)
    # Another program may have written the state: only there these fields hold any text.
    planted = make_record("planted", run=text, cwd=f"/home/{text}", model=text, phase=text)
    backend.start_agent(
        "planted", lambda *_: (planted, []), takeover=False, now=clock.now(), machine=this_machine()
    )
    letter = text.encode("utf-8", "replace").decode()
    backend.queue.queue_message(Draft("boss", letter, sender="victim"), now=clock.now())
    client = serving.visitor(clock.now())
    for path in ("/?all=1", "/agent?id=victim", "/jobs", "/events"):
        answer = client.get(path)
        assert answer.status_code == 200
        parsed = Parsed(answer.text)
        assert parsed.tags.count("script") == 2
        assert not set(parsed.tags) & {"img", "style", "iframe", "b1"}
        scripts = [value for tag, name, value in parsed.attributes if tag == "script"]
        assert scripts == ["/static/htmx.min.js", "/static/hx-sse.min.js"]
        assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
        links = [value for _, name, value in parsed.attributes if name in ("href", "src", "action")]
        assert all(link.startswith(("/", "#")) for link in links)
    jobs = {link for link in links_of(client.get("/?all=1").text) if link.startswith("/jobs?")}
    assert len(jobs) == 2
    assert {client.get(job).status_code for job in jobs} == {200}
    assert field(text) in "".join(Parsed(client.get("/agent?id=victim").text).texts)


def links_of(page):
    return [value for _, name, value in Parsed(page).attributes if name == "href"]


def test_an_agents_page_draws_its_epochs(serving, make, clock):
    """A curve for each, a mark for the compaction and the rungs, and what filled the window."""
    monitor = make("scout")
    for tokens in (2_000, 5_000, 7_500):
        clock.advance(60)
        monitor.report_usage(input_tokens=tokens)
    monitor.record_compaction(tokens_after=1_000)
    clock.advance(60)
    monitor.report_usage(input_tokens=3_000)
    monitor.track_content("words " * 400, source="tool:read")
    monitor.update_heartbeat()
    page = serving.visitor(clock.now()).get("/agent?id=scout").text
    parsed = Parsed(page)
    classes = [value for tag, name, value in parsed.attributes if name == "class"]
    assert classes.count("curve") == 2
    assert {"at compaction", "at warning", "limit"} <= set(classes)
    assert "warning 7,000" in page
    assert "read" in parsed.texts


def test_an_agents_page_counts_the_turns_to_what_the_first_line_names():
    """Compaction of a session, and the limit of a program: one fact has one name."""
    limit = {"turns": 4, "turnsLow": 2, "turnsHigh": 7, "seconds": 4.0}
    pace = {"tokensPerTurn": 1e4, "secondsPerTurn": 1.0, "limit": limit, "rungs": {}}
    values = {"usage_ratio": 0.9, "forecast": pace, "threshold_status": "critical"}
    for one, end in ((session(**values), "compaction"), (observed("scout", **values), "its limit")):
        texts = Parsed(to_html(_facts(AgentFacts(one, [], [], None, NOW)))).texts
        assert texts[texts.index(f"to {end}") + 1] == "2-7 turns"
        assert f"2-7 turns to {end}" in str(summarize([one], NOW))


def test_what_fills_a_window_is_listed_as_far_as_it_can_be_seen():
    """Parts of 0.0 % are one line; files of the agent's folder are named from there on."""
    window = FilledWindow({"tool:read": 90_000, "tool:bash": 30, "user": 9}, {}, {
        "/srv/shop/src/cart.py": 60_000, "/etc/hosts": 30_000,
    })  # fmt: skip
    page = to_html(_filled(Filling(window, "From the transcript."), "/srv/shop"))
    texts = Parsed(page).texts
    assert [one for one in texts if one.startswith("and ")] == ["and 2 smaller ones"]
    assert "39 · 0.0 %" in texts
    assert {"src/cart.py", "/etc/hosts"} <= set(texts)


def test_a_job_is_drawn_as_its_journal_tells():
    """Each kill, verification, rejection and handoff of a supervised run is a mark of its agent."""
    run = simulate(7, [f"item {n}" for n in range(20)], verify=True, fault_ratio=0.3, workers=2)
    events = [_read(event) for event in reversed(run.events)]
    lives = lives_of(events, {})
    happened = [(life.agent_id, mark.kind) for life in lives for mark in life.marks]
    wanted = {
        "items_verified": "verified",
        "items_rejected": "rejected",
        "handoff_ready": "handoff",
    }
    for event in run.events:
        if event["type"] in wanted:
            assert (event["agentId"], wanted[event["type"]]) in happened
    killed = {event["agentId"] for event in run.events if event.get("killed")}
    assert killed
    assert {life.agent_id for life in lives if life.kind == "killed"} == killed
    assert [life.begin for life in lives] == sorted(life.begin for life in lives)
    assert all(life.end is None or life.end >= life.begin for life in lives)
    assert {event.kind for event in events} <= set(EVENT_TYPES)


def test_a_column_that_no_row_fills_is_left_out(serving, make, clock):
    """Until an agent has something in it."""
    monitor = make("scout")
    client = serving.visitor(clock.now())

    def classes():
        parsed = Parsed(client.get("/").text)
        return next(v for tag, n, v in parsed.attributes if tag == "table" and n == "class")

    assert classes() == "fleet no-runway no-cost no-tasks no-doing"
    monitor.plan(["a"])
    monitor.set_current_task("a")
    monitor.update_heartbeat()
    clock.advance(2)
    wait_until(lambda: classes() == "fleet no-runway no-cost")


def test_a_lane_ends_where_its_agent_was_lost(serving, make, clock, backend):
    """Also where its run has closed it since, and where no event tells of the loss."""
    for name in ("closed", "silent"):
        make(name, run="job", lost_after_seconds=60)
    ends = [
        make_event("closed", "agent_lost", at=clock.now() + 90, run="job"),
        make_event("closed", "context_closed", at=clock.now() + 91, run="job", killed=True),
    ]
    backend.append_events(ends)
    clock.advance(3_600)
    page = serving.visitor(clock.now()).get("/jobs?run=job").text
    lanes = [value for _, name, value in Parsed(page).attributes if name == "aria-label"]
    closed, silent = (one for one in lanes if one.startswith(("closed ", "silent ")))
    assert re.match(rf"closed killed.*: {moment(START)} to {moment(START + 91)}", closed)
    assert re.match(rf"silent lost.*: {moment(START)} to {moment(START)}", silent)


def test_runs_and_events_are_called_by_names_not_by_uuids(serving, make, clock):
    """A session is its project and title; one that is gone is the beginning of its id."""
    session = "ba17179c-5afc-4579-9ee2-40c7035297ff"
    make("scout", run="nightly", label="reads the parser").plan(["a"])
    make(session, run="nightly").stop()
    client = serving.visitor(clock.now())
    jobs = Parsed(client.get("/jobs").text).texts
    assert {"nightly", "2, 1 at work", moment(clock.now())} <= set(jobs)
    shown = Parsed(client.get("/events").text).texts
    assert {"reads the parser", session} <= set(shown)
    assert shown_name(session, {}) == "ba17179c"
    assert shown_name(f"{session}.worker", {}) == "ba17179c.worker"
    assert shown_name("scout-12345678", {}) == "scout-12345678"


def test_events_are_read_once(backend, make):
    """The reader continues behind what it has; nothing is shown twice."""
    make("one")
    reader = EventReader(backend)
    assert [event.agent_id for event in reader.latest(lambda _: True, 9)] == ["one"]
    make("two").stop()
    found = reader.latest(lambda _: True, 9)
    assert [(event.agent_id, event.kind) for event in found] == [
        ("two", "agent_stopped"),
        ("two", "agent_started"),
        ("one", "agent_started"),
    ]


def test_the_copies_of_htmx_are_what_they_are_said_to_be():
    """Nobody changed a file of another project by hand."""
    import hashlib
    from importlib.resources import files

    static = files("ultramon.web").joinpath("static")
    table = re.findall(r"^\| `(\S+)` \| npm .* `([0-9a-f]{64})` \|$", static.joinpath("README.md")
                       .read_text(), re.MULTILINE)  # fmt: skip
    assert [name for name, _ in table] == ["htmx.min.js", "hx-sse.min.js"]
    for name, sha256 in table:
        assert hashlib.sha256(static.joinpath(name).read_bytes()).hexdigest() == sha256


def test_what_filled_a_client_s_window_is_read_from_its_transcript(tmp_path, monkeypatch):
    """By source, and the same again when the file has grown; not from another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = (CAPTURES / "claude-code-2.1.330/transcript_r3_main.jsonl").read_bytes()
    path = tmp_path / "session.jsonl"
    path.write_bytes(lines[: lines.rindex(b"\n", 0, len(lines) // 2) + 1])
    reader, record = FillingReader(), make_record("session")
    half = reader.of(record, str(path)).window
    path.write_bytes(lines)
    whole = reader.of(record, str(path)).window
    assert set(half.by_source) <= set(whole.by_source)
    assert sum(whole.by_source.values()) > sum(half.by_source.values()) > 0
    record.hostname = "elsewhere"
    assert reader.of(record, str(path)) is None
    assert reader.of(make_record("session"), str(tmp_path / "missing")) is None
    assert reader.of(make_record("session", by_source={"user": 3}), None).window.by_source == {
        "user": 3
    }


def test_a_limit_of_a_plan_is_on_the_page_until_its_reset(backend, clock, tmp_path):
    """By the clock of the server, whether or not anything else has changed."""
    directory = str(tmp_path / "plans")
    readers = Readers(backend, clock, state_directory=directory)
    limit = plan_limit(FIVE_HOURS, 62, clock.now() + 600, clock.now())
    PlanLimits(directory).record("claude-code", "/srv/dev/.claude", [limit], clock.now())
    view = FleetView(None, 50, with_ended=False)
    assert "5h 62 %, resets" in to_html(view.draw(readers))
    clock.advance(600)
    assert "5h" not in to_html(view.draw(readers))


def test_the_pages_show_what_agents_and_runs_cost(serving, clock, tmp_path):
    """Of each agent whose transcript is here, of its run, and on its own page; list prices."""
    machine = Machine(tmp_path / "machine")
    reply_of_opus = used("m1", 100_000, output=0)
    reply_of_opus["message"]["model"] = "claude-opus-4-5"
    path = machine.write(SESSION, reply_of_opus)
    record = make_record(
        "session", host="claude-code", run="job", session_id=SESSION,
        extra={"claudeCode": {"transcriptPath": str(path)}},
    )  # fmt: skip
    other = make_record("other", host="claude-code", run="job", session_id=OTHER)
    states = tmp_path / "state" / "subagents"
    states.mkdir(parents=True, exist_ok=True)
    for one in (record, other):
        (states / f"{one.agent_id}.json").write_bytes(encode_state(one, one.agent_id))
    visitor = serving.visitor(clock.now())
    page = visitor.get("/?all=1").text
    assert '<td class="number cost">$0.50</td>' in page
    assert "· ≥ $0.50</span>" in page
    assert "no-cost" not in page
    assert "$0.50 (list price)" in visitor.get("/agent?id=session").text


def test_a_chain_costs_what_all_its_contexts_do(serving, clock, tmp_path):
    """One row stands for them; where rows are left out the run's sum is a lower bound."""
    machine = Machine(tmp_path / "machine")
    states = tmp_path / "state" / "subagents"
    states.mkdir(parents=True, exist_ok=True)
    for number, (name, tokens, facts) in enumerate(
        (
            ("before", 100_000, {"active": False, "outcome": "returned"}),
            ("after", 200_000, {"predecessor_id": "before"}),
            ("beside", 40_000, {}),
        )
    ):
        reply = used("m1", tokens, output=0)
        reply["message"]["model"] = "claude-opus-4-5"
        session_id = f"{SESSION[:-1]}{number}"
        path = machine.write(session_id, reply)
        memory = {"claudeCode": {"transcriptPath": str(path)}}
        record = make_record(
            name, host="claude-code", run="job", session_id=session_id, extra=memory,
            last_heartbeat=clock.now(), **facts,
        )  # fmt: skip
        (states / f"{name}.json").write_bytes(encode_state(record, name))
    visitor = serving.visitor(clock.now())
    page = visitor.get("/?all=1").text
    assert re.findall(r'class="number cost">([^<]*)<', page) == ["$1.50", "$0.20"]
    assert "· $1.70</span>" in page
    page = visitor.get("/?all=1&limit=1").text
    assert re.search(r"· ≥ \$[0-9.]+</span>", page)
