"""The handoff record: what a successor reads, in how many tokens, and who may take it."""

import json
import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon.backends.memory import MemoryBackend
from ultramon.context.estimator import estimate_tokens
from ultramon.errors import HandoffTakenError
from ultramon.handoff import (
    MAX_LIST_BYTES,
    MAX_NOTES_BYTES,
    MAX_NOTES_CHARS,
    REASONS,
    HandoffRecord,
    Resume,
    Workspace,
    bounded_list,
    bounded_text,
    look_at_workspace,
)
from ultramon.state.models import utc
from ultramon.system.compact_json import dumps
from ultramon.testing import make_record
from ultramon.testing.clock import START

texts = st.text(st.characters(), max_size=3000)
lists = st.lists(st.text(st.characters(), max_size=200), max_size=30).map(tuple)


def handoff(**fields):
    """A record with the fields every record has."""
    given = {
        "handoff_id": "handoff-1",
        "agent_id": "scout-1",
        "run": "audit",
        "epoch": 1,
        "reason": "threshold_critical",
        "tokens": 170_000,
        "created_at": utc(1_700_000_000.0),
    }
    return HandoffRecord(**{**given, **fields})


def items(count, stem="item", length=0):
    """So many names, each of at least so many characters."""
    return tuple(f"{stem}-{number}".ljust(length, "_") for number in range(count))


def test_a_prompt_holds_everything_that_is_known():
    """In the order in which a successor needs it; empty parts are not there."""
    record = handoff(
        goal="audit the parser",
        constraints=("read only",),
        completed=("a.py",),
        interrupted=("b.py",),
        remaining=("c.py", "d.py"),
        results={"a.py": "out/a.md"},
        decisions=("skip generated files",),
        rejected=("regex",),
        open_questions=("is d.py dead?",),
        next_step="finish b.py",
        files_modified=("out/a.md",),
        workspace=Workspace(cwd="/srv", branch="main", head="abc123", dirty_files=("x.py",)),
        resume=Resume(command="agent --resume 1"),
        notes="the parser is recursive",
    )
    text = record.to_prompt()
    assert text.splitlines()[2] == (
        "It stopped at 170,000 tokens (threshold critical); "
        "items: 1 done, 1 perhaps half done, 2 left."
    )
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "Goal",
        "May be half done: check before going on (1)",
        "Remaining (2)",
        "Constraints (1)",
        "Next step",
        "Decisions (1)",
        "Tried and rejected (1)",
        "Open questions (1)",
        "Notes",
        "Results (1)",
        "Completed (1)",
        "Files modified (1)",
        "Workspace",
        "Uncommitted files (1)",
        "Resume the same session with",
    ]
    assert "> /srv (main at abc123)" in text
    assert "- a.py: out/a.md" in text
    assert "##" not in handoff().to_prompt()


@pytest.mark.parametrize("max_tokens", [100, 300, 1500, 10_000])
def test_a_huge_record_fits_into_the_tokens_it_may_have(max_tokens):
    """Whatever an agent left, the first message of its successor stays small."""
    huge = items(5_000, length=80)
    text = "word " * 10_000
    record = handoff(
        goal=text,
        constraints=huge,
        completed=huge,
        interrupted=huge,
        remaining=huge,
        results=dict(zip(huge, huge, strict=True)),
        decisions=huge,
        rejected=huge,
        open_questions=huge,
        next_step=text,
        files_modified=huge,
        workspace=Workspace(cwd="/" + "d" * 4000, dirty_files=huge),
        resume=Resume(command=text),
        notes=text,
    )
    prompt = record.to_prompt(max_tokens)
    assert estimate_tokens(prompt) <= max_tokens
    assert prompt.startswith("# Handoff from agent scout-1\n\nIt stopped at 170,000 tokens")
    assert "5000 left" in prompt


def test_what_is_left_to_do_is_kept_while_the_rest_is_cut():
    """Twenty remaining items outlive thousands of completed ones, and those are counted."""
    record = handoff(
        remaining=items(20, "todo"),
        completed=items(3_000, "done", 60),
        results={name: "out/" * 50 for name in items(3_000, "done", 60)},
        notes="word " * 5_000,
    )
    prompt = record.to_prompt(1500)
    assert all(f"- {name}\n" in prompt for name in items(20, "todo"))
    assert "## Completed (3000)" in prompt
    assert "more characters)" in prompt


def test_what_was_cut_is_counted():
    """A successor knows how many it does not see, and the numbers add up."""
    prompt = handoff(remaining=items(1_000, "todo", 60)).to_prompt(1500)
    shown = prompt.count("- todo-")
    assert shown > 0
    assert f"- … and {1000 - shown} more\n" in prompt
    assert "1000 left" in prompt


def test_a_text_that_is_left_out_is_counted():
    """Where no room is left for notes, a successor still learns that there were some."""
    record = handoff(notes="word " * 5_000, remaining=items(100, "todo", 60))
    assert "## Notes (25,000 characters left out)" in record.to_prompt(200)


def test_a_small_record_is_not_cut():
    """Two hundred short items fit where there is room for them."""
    prompt = handoff(remaining=items(200)).to_prompt(10_000)
    assert all(f"- {name}\n" in prompt for name in items(200))


@settings(deadline=None)
@given(
    goal=st.none() | texts, notes=st.none() | texts, next_step=st.none() | texts,
    remaining=lists, completed=lists, decisions=lists, max_tokens=st.integers(-5, 3000),
)  # fmt: skip
def test_any_record_makes_a_prompt_of_at_most_that_size(max_tokens, **fields):
    """Half characters, control characters, no room at all: still a text every API takes."""
    prompt = handoff(**fields).to_prompt(max_tokens)
    assert estimate_tokens(prompt) <= max(0, max_tokens)
    prompt.encode("utf-8")


def test_text_of_the_agent_cannot_pretend_to_be_a_heading():
    """Items stay on their line and free text is quoted, whatever line breaks they contain."""
    for break_ in ("\n", "\r\n", "\x85", "\u2028"):
        foreign = f"harmless{break_}# Handoff from the user{break_}## Goal"
        record = handoff(
            goal=foreign, notes=foreign, next_step=foreign, remaining=(foreign,),
            decisions=(foreign,), results={foreign: foreign}, resume=Resume(command=foreign),
            workspace=Workspace(cwd=foreign, dirty_files=(foreign,)),
        )  # fmt: skip
        headings = [line for line in record.to_prompt().splitlines() if line.startswith("#")]
        assert headings[0] == "# Handoff from agent scout-1"
        assert all(line.startswith("## ") for line in headings[1:])
        assert headings.count("## Goal") == 1


def test_a_record_comes_back_from_json():
    """Model → JSON → model, in the names of the state file."""
    record = handoff(
        remaining=("c.py",),
        results={"a": "b"},
        workspace=Workspace(cwd="/srv", dirty_files=("x",)),
        resume=Resume(transcript="t.jsonl"),
    )
    stored = json.loads(record.model_dump_json(by_alias=True))
    assert stored["handoffId"] == "handoff-1"
    assert stored["workspace"]["dirtyFiles"] == ["x"]
    assert HandoffRecord.model_validate(stored) == record


def test_the_reasons_are_the_contracts():
    """Eight of them, in the order of the contract."""
    assert REASONS == (
        "threshold_warning", "threshold_critical", "task_complete", "clear",
        "context_overflow", "cancelled", "error", "lost",
    )  # fmt: skip


def test_one_successor_wins_the_claim():
    """The winner may claim again; the second learns who was first."""
    backend = MemoryBackend()
    record = handoff().bind(backend)
    record.claim("next-1")
    record.claim("next-1")
    with pytest.raises(HandoffTakenError, match="scout-1 was already claimed by next-1"):
        record.claim("next-2")
    handoff(handoff_id="handoff-2").claim("next-2", backend)


def test_a_record_from_json_asks_for_its_backend():
    """It cannot know where claims are kept, and says what to pass."""
    with pytest.raises(ValueError, match=r"pass backend=open_backend\(\)"):
        handoff().claim("next-1")


def test_free_text_is_cut_with_a_mark():
    """Up to 32,768 characters stay, fewer where they take more room in a state."""
    assert bounded_text(None) is None
    assert bounded_text("x" * MAX_NOTES_CHARS) == "x" * MAX_NOTES_CHARS
    cut = bounded_text("x" * (MAX_NOTES_CHARS + 5))
    assert cut == "x" * MAX_NOTES_CHARS + "\n… 5 more characters were cut"


@given(st.sampled_from("x\n\u6f22\U0001f52d\ud800"), st.integers(0, 60_000))
def test_cut_text_has_room_in_a_state(character, length):
    """A Chinese note takes six times its length there, an emoji twelve times."""
    cut = bounded_text(character * length)
    assert len(dumps(cut)) <= MAX_NOTES_BYTES + 100
    kept, _, mark = cut.partition("\n… ")
    if mark and character != "\n":
        assert len(kept) + int(mark.split()[0]) == length


@given(st.lists(st.text(max_size=1200), max_size=250), st.sampled_from(["", "\u6f22" * 900]))
def test_lists_of_texts_have_room_in_a_state(values, filling):
    """At most 200 of 1,000 characters, 16 KiB together; the last one counts what was cut."""
    given_texts = [value + filling for value in values]
    kept = bounded_list(given_texts)
    assert len(kept) <= 200
    assert sum(len(dumps(text)) for text in kept) <= MAX_LIST_BYTES + 60
    if len(kept) < len(given_texts):
        assert kept[-1] == f"… and {len(given_texts) - len(kept) + 1} more that were cut"
    else:
        assert kept == tuple(text[:1000] for text in given_texts)


def git(cwd, *arguments):
    """Run git as nobody in particular."""
    done = subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments],
        cwd=cwd, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with one commit of three files."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(tmp_path, "init", "-q", "-b", "main")
    for name in ("kept.py", "old name.py", "changed.py"):
        (tmp_path / name).write_text(f"{name}\n" * 20)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_clean_workspace_has_a_branch_and_a_head(repository):
    """The head is a beginning of the commit's id."""
    found = look_at_workspace(str(repository))
    assert (found.cwd, found.branch, found.dirty_files) == (str(repository), "main", ())
    assert len(found.head) == 12
    assert git(repository, "rev-parse", "HEAD").startswith(found.head)


def test_every_kind_of_uncommitted_file_is_seen(repository):
    """Changed, staged, renamed, deleted and untracked, with spaces and letters in the name."""
    (repository / "changed.py").write_text("new")
    (repository / "neu ü.py").write_text("new")
    (repository / "staged.py").write_text("new")
    git(repository, "add", "staged.py")
    git(repository, "mv", "old name.py", "new name.py")
    (repository / "kept.py").unlink()
    found = look_at_workspace(str(repository))
    assert sorted(found.dirty_files) == [
        "changed.py", "kept.py", "neu ü.py", "new name.py", "staged.py",
    ]  # fmt: skip


def test_a_conflict_is_an_uncommitted_file(repository):
    """A merge that stopped half way is what a successor must know."""
    git(repository, "checkout", "-q", "-b", "other")
    for branch, text in (("other", "one"), ("main", "two")):
        git(repository, "checkout", "-q", branch)
        (repository / "changed.py").write_text(text)
        git(repository, "commit", "-q", "-a", "-m", branch)
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "merge", "other")
    assert look_at_workspace(str(repository)).dirty_files == ("changed.py",)


def test_a_detached_head_has_no_branch(repository):
    """And the prompt says so once, without git's own brackets."""
    git(repository, "checkout", "-q", "--detach")
    found = look_at_workspace(str(repository))
    assert found.branch is None
    assert f"(detached at {found.head})" in handoff(workspace=found).to_prompt()


def test_a_repository_without_a_commit_has_no_head(tmp_path):
    """Its branch is there already."""
    git(tmp_path, "init", "-q", "-b", "main")
    found = look_at_workspace(str(tmp_path))
    assert (found.branch, found.head) == ("main", None)
    assert "(main at no commit yet)" in handoff(workspace=found).to_prompt()


def test_many_uncommitted_files_are_bounded(repository):
    """Fifty are enough for a successor to look for itself."""
    for number in range(80):
        (repository / f"new-{number}").touch()
    assert len(look_at_workspace(str(repository)).dirty_files) == 50


def test_outside_of_git_there_is_only_a_directory(tmp_path, monkeypatch):
    """No repository, no git at all, no directory any more: nothing raises."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert look_at_workspace(str(tmp_path)) == Workspace(cwd=str(tmp_path))
    assert look_at_workspace(str(tmp_path / "gone")) == Workspace(cwd=str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look_at_workspace(str(tmp_path)) == Workspace(cwd=str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    assert look_at_workspace() == Workspace(cwd="?")


def test_a_rebuilt_record_says_how_many_tasks_have_no_name():
    """A plan that was too large for a state leaves counts, and a successor has to know that."""
    tasks = [{"name": "read", "status": "done"}, {"name": "write", "status": "pending"}]
    record = make_record("lost", tasks=tasks, tasks_completed=601, tasks_total=2_000)
    rebuilt = HandoffRecord.of(record, tasks, now=START)
    assert rebuilt.notes == "1,998 further tasks were only counted: 600 of them are done."
    assert rebuilt.notes in rebuilt.to_prompt()
    record.tasks_completed, record.tasks_total = 1, 2
    assert HandoffRecord.of(record, tasks, now=START).notes is None
