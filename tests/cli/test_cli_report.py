"""`ultramon report` on a machine where agents have worked, and where they have not."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import DATA, ROOT
from helpers.html import HOSTILE, Parsed
from helpers.planted_transcripts import (
    OTHER,
    PROJECT,
    SESSION,
    Machine,
    busy_machine,
    example_machine,
    example_survey,
    held_beside,
    used,
)
from helpers.program import CAPTURES, PROGRAM, draw, environment, run, run_process
from helpers.requirements import as_nobody, directory_of_nobody
from helpers.transcript_lines import prompt

from ultramon import ContextConfig
from ultramon.cli.views.report_page import report_page
from ultramon.cli.views.report_screen import print_report, used_words
from ultramon.hosts.registry import host_names
from ultramon.recordings.clients import client_files
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.survey import survey
from ultramon.recordings.survey_models import StandingCost


@pytest.fixture
def busy(tmp_path):
    """A machine on which agents have worked."""
    return busy_machine(tmp_path)


ALL_DAYS = ("--days", "36500")
"""What is planted here has fixed times."""


def report(machine, *options, days=ALL_DAYS, **changes):
    """Run a report about a machine."""
    return run("report", *days, *options, **machine.environ | changes)


def test_the_page_of_the_documentation_shows_the_real_screen(tmp_path, capsys, monkeypatch):
    """What docs/report.md shows is what a terminal of 80 columns shows."""
    monkeypatch.setenv("COLUMNS", "80")
    print_report(example_survey(example_machine(tmp_path)))
    shown = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert f"```text\n{shown}```" in page


def test_files_of_instructions_are_told_apart_by_their_ends(tmp_path, capsys, monkeypatch):
    """Among the sources, too, where a long path is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    machine = Machine(tmp_path)
    project = "/home/dev/a-long-name-of-a-folder/and-another-one/shop"
    beside = held_beside(project, "2026-11-21T20:28:51Z")
    machine.write(SESSION, prompt("Look."), *beside, used("m1", 14_000), project=project)
    with TranscriptIndex(None) as index:
        found = index.summarize(client_files(machine.environ))
        known = survey(found, ContextConfig(), now=1_795_305_600.0)
        known = known.model_copy(
            update={"by_source": [one for one in known.by_source if project in (one.name or "")]}
        )
        print_report(known)
    row = next(row for row in capsys.readouterr().out.splitlines() if row.endswith("100 %"))
    assert row.split()[0].startswith("~")
    assert row.split()[0].endswith("shop/CLAUDE.md")


def test_a_report_from_the_index_looks_at_the_files_of_instructions_anew(tmp_path):
    """One that was shortened, made or deleted counts as it is now, whatever the transcripts say."""
    project = tmp_path / "shop"
    (project / ".git").mkdir(parents=True)
    instructions, local = project / "CLAUDE.md", project / "CLAUDE.local.md"
    instructions.write_text("Run the tests. " * 400)
    machine = Machine(tmp_path / "machine")
    machine.write(SESSION, prompt("Look."), used("m1", 12_000), project=str(project))

    def held():
        found = report_json(machine, "--days", "3000")
        return {one["source"]: one["tokens"] for one in found["byStanding"] if one["source"]}

    first = held()
    assert first == held()
    instructions.write_text("Run the tests. " * 200)
    assert held() == {
        f"memory:{instructions}": pytest.approx(first[f"memory:{instructions}"] / 2, abs=1)
    }
    local.write_text("Prices are in cents. " * 50)
    assert held().keys() == {f"memory:{instructions}", f"memory:{local}"}
    instructions.unlink()
    assert held().keys() == {f"memory:{local}"}


def report_json(machine, *options):
    """What a report says, as JSON."""
    done = report(machine, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_report_fits_a_screen_of_80_by_24(busy):
    """On a real terminal, with ten sessions and more: the prompt below included."""
    for number in range(12):
        session = f"{number:08x}-aaaa-4333-8444-555555555555"
        busy.write(
            session, prompt("Hi."), used("m", 10_000 + 1_000 * number), project="/home/dev/web"
        )
    _, screen, code = draw("report", *ALL_DAYS, columns=80, rows=24, **busy.environ)
    assert code == 0
    assert screen[0].startswith(
        "36,500 days · 17 sessions, 3 subagents in 4 projects · claude-code, codex"
    )
    shown = [line for line in screen if line]
    head = next(number for number, line in enumerate(shown) if line.startswith("worst  "))
    assert " ".join(shown[head].split()) == (
        "worst cost peak compacted subagents host began with id"
    )
    assert shown[head - 1].endswith("see: ultramon replay ID")
    assert shown[-1].split() == ["web", "$0.06", "10", "%", "claude-code", "Hi.", "00000009"]
    assert screen[23] == ""
    sessions = len(shown) - head - 1
    # The lines of what stands in every request take the places of sessions.
    standing = sum("first word" in line for line in screen)
    standing += sum(" estimated " in line or " unknown " in line for line in screen)
    assert (sessions + standing, standing) == (10, 3)


def test_the_head_says_how_often_a_plan_was_used_up_and_how_long_that_held(busy):
    """Only where it was; a line of the table of sources makes room for it."""
    assert "plan" not in report(busy, COLUMNS="80").stdout
    height = len(report(busy, COLUMNS="80").stdout.splitlines())
    refused = used("e1", 0, at="2026-11-21T08:00:00Z", error="rate_limit", isApiErrorMessage=True)
    refused["message"]["model"] = "<synthetic>"
    answered = used("m10", 9_000, at="2026-11-21T09:50:00Z")
    busy.write(OTHER, refused, refused, answered, project="/home/dev/blog")
    shown = report(busy, COLUMNS="80").stdout.splitlines()
    assert "  plan         usage limit hit 2x, 1 h 50 waited" in shown
    assert len(shown) == height
    facts = report_json(busy)
    assert (facts["planHits"], facts["planWaitSeconds"]) == (2, 6_600.0)


def test_the_screen_says_what_the_transcripts_say(busy):
    """Counts, a lower bound, what is unknown, and what filled the windows."""
    text = report(busy, COLUMNS="80").stdout
    assert "compacted    2 of 5 sessions, 0 of 3 subagents; 1 request refused" in text
    assert "thrown away  at least 259k tokens by 2 compactions" in text
    assert "subagents    1 back empty (1 unknown), 1 within 5 % of the limit" in text
    assert "Read" in text
    assert "shop/a.py" in text
    assert f"1x 120k     1 of 3  claude-code  Look into ~  {SESSION[:10]}\n" in text
    assert "; see: ultramon replay ID\n" in text


def test_the_line_of_a_session_shows_it_again(busy):
    """What the report prints is run as it stands, and finds the session and its subagents."""
    lines = [line for line in report(busy).stdout.splitlines() if "ultramon replay" in line]
    assert len(lines) == 5
    command = lines[1].partition("ultramon ")[2].split()
    done = run(*command, **busy.environ)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{SESSION}\n")
    assert f"{SESSION}.a1" in done.stdout


def test_a_row_says_what_its_session_is_about_where_there_is_room(tmp_path, capsys, monkeypatch):
    """Beside an id where the command leaves no room; a lone host stands in the title alone."""
    machine = Machine(tmp_path)
    asked = "Move the orders to the new schema and keep the old one readable."
    machine.write(SESSION, prompt(asked), used("m", 9_000))
    found = example_survey(machine)
    rows = {}
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_report(found)
        rows[columns] = capsys.readouterr().out.splitlines()[-2:]
    command = f"ultramon replay {SESSION[:8]}"
    assert rows[60][1] == f"shop   11-21  $0.03   5 %  Move the orders to the~  {SESSION[:8]}"
    assert rows[80][1] == f"shop   11-21  $0.03   5 %  Move the orders to the new~  {command}"
    assert rows[120][1].endswith(f"  {asked}  {command}")
    assert " ".join(rows[80][0].split()) == "worst last cost peak began with see it again"
    hidden = [one.model_copy(update={"first_prompt": None}) for one in found.worst_sessions]
    monkeypatch.setenv("COLUMNS", "80")
    print_report(found.model_copy(update={"worst_sessions": tuple(hidden)}))
    assert capsys.readouterr().out.splitlines()[-1] == f"shop   11-21  $0.03   5 %  {command}"


def test_an_id_of_several_transcripts_names_them(busy):
    """Replaying asks for more of the id, and an unknown one is a usage error."""
    done = run("replay", SESSION[:8], **busy.environ)
    assert done.returncode == 4
    assert f"{OTHER}.jsonl" in done.stderr
    done = run("replay", "ffffffff", **busy.environ)
    assert done.returncode == 2
    assert "no transcript on this machine has an id like it" in done.stderr


def test_the_json_holds_the_documented_fields(busy):
    """docs/report.md names every field, and no other."""
    document = report_json(busy)
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    table = page.partition("| field |")[2]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in row.split("|")[1].replace("`", "").replace(" ", "").split(",")
    }
    used_names = set(document)
    for name in (
        "bySource", "byStanding", "byProject", "byModel", "byDay", "worstSessions",
    ):  # fmt: skip
        used_names |= set(document[name][0])
    used_names |= set(document["spent"]) | set(document["priceData"])
    assert named == used_names | {"reason"}


def test_a_later_report_reads_nothing_again(busy):
    """Files of the same size and time are not opened: other bytes in them change nothing."""
    first = report_json(busy)
    for path in busy.root.rglob("*.jsonl"):
        stamp = os.stat(path)
        path.write_bytes(b"x" * stamp.st_size)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    again = report_json(busy)
    assert again | {"generatedAt": first["generatedAt"]} == first


def test_what_changed_since_the_last_report_is_in_the_next(busy, tmp_path):
    """A grown file, a new one, one that is gone, other days, other prices: nothing is old."""
    first = report_json(busy)
    busy.write(SESSION, used("late", 12_345))
    grown = report_json(busy)
    assert grown["spent"]["inputTokens"] == first["spent"]["inputTokens"] + 12_345
    gone = busy.write("99999999-aaaa-4333-8444-555555555555", used("m", 500))
    assert report_json(busy)["sessions"] == first["sessions"] + 1
    gone.unlink()
    assert report_json(busy)["sessions"] == first["sessions"]
    assert report_json(busy, "--days", "1")["sessions"] == 0
    prices = tmp_path / "prices.toml"
    prices.write_text("list_price_factor = 2")
    dearer = report_json(busy, "--prices", prices)
    assert dearer["costUsd"] == pytest.approx(2 * grown["costUsd"])
    assert dearer["priceData"]["hasOwnPrices"]
    prices.write_text("list_price_factor = 1")
    assert report_json(busy, "--prices", prices)["costUsd"] == pytest.approx(grown["costUsd"])
    assert report_json(busy)["costUsd"] == grown["costUsd"]


def test_files_that_are_left_out_are_in_the_head(busy):
    """With how many of each reason; the names of the first go to stderr."""
    for number in range(3):
        (busy.projects / f"odd{number}.jsonl").write_text('{"of": "another form"}\n')
    (busy.projects / "empty.jsonl").write_bytes(b"")
    done = report(busy)
    words = "left out     4 files: 3 of a form that ultramon does not know, 1 empty"
    assert words in done.stdout
    assert "empty.jsonl" in done.stderr


def test_a_wrong_file_of_prices_ends_the_report(busy, tmp_path):
    """Before anything is read, with the key and what is allowed."""
    path = tmp_path / "prices.toml"
    path.write_text("[usd_per_million_tokens.x]\ninput = -1\noutput = 1")
    done = report(busy, "--prices", path)
    assert done.returncode != 0
    assert "usd_per_million_tokens.x.input=-1" in done.stderr
    assert "must be a number, 0 or more" in done.stderr
    assert done.stdout == ""


def test_a_report_writes_only_its_index_and_the_daily_sums(busy):
    """No agent's state is made, and nothing below the clients' directories changes."""
    before = sorted(busy.root.rglob("*"))
    report(busy)
    after = [path for path in sorted(busy.root.rglob("*")) if path not in before]
    names = [str(path.relative_to(busy.root)) for path in after]
    index = ["cache", "cache/ultramon", "cache/ultramon/transcripts.sqlite3"]
    assert names == [*index, "state", "state/daily_sums.sqlite3"]


def test_paths_are_read_instead_of_the_clients_transcripts(busy):
    """A session's file brings its subagents; the lines name paths, whole and unfolded."""
    path = busy.projects / PROJECT.replace("/", "-") / f"{SESSION}.jsonl"
    done = report(busy, path, path.parent, COLUMNS="80")
    assert done.stdout.startswith("36,500 days · 1 session, 3 subagents in 1 project")
    assert f"\nultramon replay {path}\n" in done.stdout
    assert "no transcripts of a known host there" in report(busy, ROOT / "docs" / "img").stderr


def test_sessions_older_than_the_days_are_left_out(busy):
    """Thirty days without a number; of a path everything."""
    for path in busy.root.rglob("*.jsonl"):
        busy.age(path, 40)
    done = report(busy, days=())
    assert done.stdout == ""
    assert "8 older transcripts left out, shown with --days N" in done.stderr
    assert report_json(busy, "--days", "5000")["sessions"] == 5
    every = json.loads(report(busy, "--json", busy.projects, days=()).stdout)
    assert every["sessions"] == 2
    assert report_json(busy, "--days", "1", busy.projects)["sessions"] == 0


def test_an_older_subagent_of_a_session_that_went_on_is_shown(tmp_path):
    """Gemini CLI keeps the files of subagents in a folder that its session's file does not name."""
    machine = Machine(tmp_path)
    chats = tmp_path / "gemini" / ".gemini" / "tmp" / "shop" / "chats"
    shutil.copytree(DATA / "hooks" / "gemini-0.61.0" / "subagent" / "chats", chats)
    (subagent,) = chats.glob("*/*.jsonl")
    machine.age(subagent, 40)
    assert report_json(machine, "--days", "30")["subagents"] == 1
    machine.age(*chats.glob("*.jsonl"), 40)
    assert report_json(machine, "--days", "30")["subagents"] == 0


def test_nothing_to_report_says_what_to_do_next(tmp_path):
    """Somebody without any client gets two ways on, and an exit code of success."""
    done = report(Machine(tmp_path))
    assert done.returncode == 0
    assert done.stdout == ""
    assert f"no transcripts of {' or '.join(host_names())} on this" in done.stderr
    assert "`ultramon report PATH`" in done.stderr
    assert "`ultramon demo`" in done.stderr
    assert report_json(Machine(tmp_path))["sessions"] == 0


def test_an_anonymous_report_names_nothing(busy, tmp_path):
    """On the screen, in JSON and on the page; ids of sessions are random and stay."""
    page = tmp_path / "r.html"
    screen = report(busy, "--anonymous").stdout
    document = report(busy, "--anonymous", "--json").stdout
    done = report(busy, "--anonymous", "--html", page)
    assert done.returncode == 0
    for text in (screen, document, page.read_text(encoding="utf-8")):
        assert "shop" not in text
        assert "blog" not in text
        assert str(tmp_path) not in text
        assert "/home" not in text
        assert SESSION[:10] in text
        assert "project 1" in text
        assert "file 1.py" in text
    named = report(busy, "--anonymous", busy.projects).stdout
    assert "ultramon replay" not in named


def page_of(machine, *options):
    """Return a report's page, parsed, with its texts as one line."""
    path = machine.root / "r.html"
    done = report(machine, "--html", path, *options)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"written: {path}\n" in done.stderr
    parsed = Parsed(path.read_text(encoding="utf-8"))
    return parsed, " ".join("".join(parsed.texts).split())


def test_the_page_says_in_a_sentence_what_it_cost_was_lost_and_to_remove(tmp_path):
    """The dearest part of the requests that can be removed, by the sessions that did not use it."""
    parsed = Parsed(report_page(example_survey(example_machine(tmp_path))))
    text = " ".join("".join(parsed.texts).split())
    assert (
        "7 sessions and 15 subagents in 3 projects cost $9.85 at list prices; 2 compactions threw "
        "away at least 293k tokens and 2 subagents came back empty; remove first: MCP github, "
        "2,664 tokens in every request, ≈ $0.66, used in 2 of 7 sessions." in text
    )
    for once in ("$9.85 at", "293k tokens", "came back empty; remove", "of 9 Nov"):
        assert text.count(once) == 1
    assert parsed.tags.count("h1") == 1


@pytest.mark.parametrize(
    ("used", "words"),
    [(None, "3 sessions"), (2, "3 sessions, used in 2"), (0, "3 sessions, never used")],
)
def test_a_part_of_every_request_says_in_how_many_sessions_it_was_used(used, words):
    """None of a part that cannot be called."""
    part = StandingCost(
        source="mcp:github", tokens=900, provenance="measured", sessions=3, sessions_used=used,
        request_tokens=90_000, cost_usd=None,
    )  # fmt: skip
    assert used_words(part, 7) == words


def test_the_page_has_a_line_for_each_session(busy):
    """Each opens what else is known of it, without a script: a timeline, and its command."""
    parsed, text = page_of(busy)
    assert "5 sessions and 3 subagents in 3 projects cost" in text
    assert "1 subagent came back empty and the provider refused 1 request as too large." in text
    assert "claude-codeshop“Look into it.”last 11-21$1.34peak 75 %compacted 1x 120k tokens" in text
    assert parsed.attributes.count(("summary", "class", "line")) == 5
    assert parsed.attributes.count(("svg", "class", "timeline")) == 5
    assert not [one for one in parsed.attributes if one[:2] == ("details", "open")]
    assert f"ultramon replay {SESSION[:10]}" in text
    assert "script" not in parsed.tags


def test_the_page_says_where_nothing_was_lost_or_has_a_price(tmp_path):
    """A session of an unheard-of model, and none at all."""
    machine = Machine(tmp_path)
    assert "No session." in page_of(machine)[1]
    own = used("m", 10_000)
    own["message"]["model"] = "unheard-of"
    machine.write(SESSION, prompt("Hi."), own)
    text = page_of(machine)[1]
    assert "1 session in 1 project has no known price; nothing was thrown away." in text
    assert "Who filled the windows" in text


def hostile_machine(root):
    """Names of projects, files, tools, models and sessions that attack a page or a terminal."""
    machine = Machine(root)
    for number, text in enumerate(HOSTILE):
        call = {"type": "tool_use", "id": "t", "name": text, "input": {"file_path": text}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": text * 200}
        entry = used("m", 10_000)
        entry["message"] |= {"model": text, "content": [call]}
        path = machine.write(f"{number:032x}", entry, prompt([result]))
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        for line in lines:
            line |= {"sessionId": text, "cwd": text}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return machine


def test_hostile_names_attack_neither_page_nor_terminal(tmp_path):
    """Escapes are shown, tags are text, and a line that is copied runs one command."""
    machine = hostile_machine(tmp_path)
    page = tmp_path / "r.html"
    report(machine, "--html", page)
    parsed = Parsed(page.read_text(encoding="utf-8"))
    assert not {"script", "img", "a", "b"} & set(parsed.tags)
    assert parsed.tags.count("style") == 1
    assert not {name for _, name, _ in parsed.attributes} & {"src", "href", "onload", "onerror"}
    assert "<script>alert(1)</script>" in " ".join(parsed.texts)
    done = report(machine)
    assert done.returncode == 0
    assert all(char.isprintable() or char == "\n" for char in done.stdout)
    json.loads(report(machine, "--json").stdout)


def test_recorded_transcripts_are_reported_without_a_client(tmp_path):
    """The captures themselves, by path: what a replay says of each, added up."""
    found = report_json(Machine(tmp_path), CAPTURES)
    assert (found["sessions"], found["subagents"]) == (7, 2)
    assert (found["compactions"], found["overflows"]) == (5, 1)
    assert found["brokenLines"] == 0


def test_a_broken_line_is_counted_and_said(busy):
    """The rest of the transcript is in the report."""
    path = busy.write(SESSION, prompt("x"))
    with path.open("ab") as file:
        file.write(b'{"type":"assistant","message":7}\n')
    done = report(busy)
    assert done.returncode == 0
    assert "1 line could not be read" in done.stderr


def test_what_may_not_be_read_is_named():
    """A folder and a file without rights, and a cache that cannot be written: said, not guessed."""
    with directory_of_nobody() as root:
        machine = busy_machine(root)
        secret = machine.projects / "-secret"
        secret.mkdir(mode=0o700)
        locked = machine.write(OTHER, prompt("x"), project="/locked")
        locked.chmod(0o600)
        (root / "cache").mkdir(mode=0o755)
        subprocess.run(["chmod", "a+rx", *root.rglob("*/")], check=True)
        secret.chmod(0o700)
        for path in root.rglob("*.jsonl"):
            path.chmod(0o600 if path == locked else 0o644)
        done = subprocess.run(
            [*as_nobody(), PROGRAM, "report", *ALL_DAYS, "--json"],
            capture_output=True,
            encoding="utf-8",
            env=environment(**machine.environ, HOME=str(root)),
            cwd="/",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["sessions"] == 5
        assert f"left out {secret}: cannot be listed: Permission denied" in done.stderr
        assert f"left out {locked}: Permission denied" in done.stderr
        assert "nothing is kept for the next report" in done.stderr
        assert str(root / "cache") in done.stderr


def test_a_page_that_cannot_be_written_is_an_error(busy, tmp_path):
    """One line that names the file."""
    done = report(busy, "--html", tmp_path / "none" / "r.html")
    assert done.returncode == 1
    assert str(tmp_path / "none" / "r.html") in done.stderr


def test_a_disabled_ultramon_still_reports(busy):
    """ULTRAMON_DISABLED silences agents, not what a person calls."""
    assert report(busy, ULTRAMON_DISABLED="1").stdout.startswith("36,500 days · 5 sessions")


def test_the_installed_program_reports(busy):
    """As people call it, in a pipe."""
    done = run_process("report", *ALL_DAYS, **busy.environ)
    assert done.returncode == 0
    assert done.stdout.startswith("36,500 days · 5 sessions, 3 subagents")
    assert Path(busy.environ["XDG_CACHE_HOME"], "ultramon", "transcripts.sqlite3").is_file()
