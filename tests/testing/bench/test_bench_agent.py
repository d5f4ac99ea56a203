"""The agents of the bench as processes: each fault, by a seed that has it."""

import subprocess

import pytest
from helpers.bench_job import (
    COUNT,
    ask_to_return,
    facts,
    first_attempt,
    first_context,
    is_done,
    make_job,
    run_agent,
    seed_where,
    start_agent,
)
from helpers.waiting import until

from ultramon.handoff import SUPERVISED as OF_A_HANDOFF
from ultramon.testing.bench.agent import LOOP_TOKENS, OPENING_TOKENS, SUPERVISED, WINDOW_TOKENS
from ultramon.testing.bench.faults import CONFLICT, DIE, FILL, IGNORE, LIE, LOOP
from ultramon.testing.bench.job import CHECK, REPOSITORY

ITEM = "item-001"
LONE = "item-002"
"""With eight items the first and the fifth share a file, and no others do."""
OTHER = "item-005"


def git(job, *arguments):
    words = ["git", "-C", job.path(REPOSITORY), *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def check(job, *items):
    """The exit code of the check, and what it says."""
    done = subprocess.run(
        [job.path(CHECK), *items],
        cwd=job.path(REPOSITORY),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_reliable_agent_does_what_its_prompt_names(tmp_path):
    """In that order, each item committed; and nothing that it does not name."""
    job = make_job(tmp_path)
    code, lines, _ = run_agent(job, f"Please do {LONE} and then {ITEM}, not item-0042.")
    assert code == 0
    said = [line for line in lines if not line.startswith("TOKENS ")]
    assert said == [f"DONE {LONE}", f"DONE {ITEM}", "ALL DONE"]
    assert [item for item in job.items if is_done(job, item)] == [ITEM, LONE]
    assert git(job, "log", "--format=%s").splitlines()[:2] == [f"Do {ITEM}", f"Do {LONE}"]
    assert git(job, "status", "--porcelain") == ""
    assert check(job, ITEM) == (0, "")
    assert check(job) == (0, "")
    assert check(job, OTHER) == (1, f"not done: {OTHER}\n")


def test_a_prompt_may_come_by_stdin(tmp_path):
    job = make_job(tmp_path)
    words = [job.path("agent")]
    subprocess.run(words, input=f"{LONE}\n", text=True, cwd=job.path(REPOSITORY), check=True)
    assert is_done(job, LONE)


def test_a_prompt_without_items_is_an_error(tmp_path):
    job = make_job(tmp_path)
    code, lines, errors = run_agent(job, "Do it all.")
    assert (code, lines) == (2, [])
    assert errors == "the prompt names no item of this job\n"


def test_the_tokens_that_are_told_are_those_of_the_history(tmp_path):
    job = make_job(tmp_path)
    _, lines, _ = run_agent(job, f"{ITEM} {LONE}")
    told = [line.split() for line in lines if line.startswith("TOKENS ")]
    sizes = [one["tokens"] for one in facts(job, "request")]
    assert [int(tokens) for _, tokens, _ in told] == [sizes[2], sizes[5]]
    assert {window for *_, window in told} == {str(WINDOW_TOKENS)}
    assert sizes == sorted(sizes)
    assert sizes[0] > OPENING_TOKENS
    assert sum(one["uncached"] for one in facts(job, "request")) == sizes[-1]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_lie_is_said_to_be_done_and_is_not(tmp_path, is_late):
    """With a stub or without anything; the check sees both."""
    seed = seed_where(lambda seed: first_attempt(seed, LONE, LIE).is_late == is_late)
    job = make_job(tmp_path, LIE, seed=seed)
    code, lines, _ = run_agent(job, LONE)
    assert (code, lines[0], lines[-1]) == (0, f"DONE {LONE}", "ALL DONE")
    assert not is_done(job, LONE)
    assert check(job, LONE)[0] == 1
    assert check(job)[0] == is_late
    assert [one["item"] for one in facts(job, "lie", "did")] == [LONE]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_agent_that_dies_is_killed_in_the_middle_or_before_it_says_so(tmp_path, is_late):
    seed = seed_where(lambda seed: first_attempt(seed, LONE, DIE).is_late == is_late)
    job = make_job(tmp_path, DIE, seed=seed)
    code, lines, _ = run_agent(job, LONE)
    assert (code, lines) == (-9, [])
    assert is_done(job, LONE) == is_late
    assert len(facts(job, "did")) == is_late
    assert len(facts(job, "die")) == 1
    # Half of it is there: an orchestrator that looks for a file alone takes it for done.
    assert check(job)[0] == (not is_late)


def test_a_loop_ends_with_a_full_window_and_without_the_item(tmp_path):
    job = make_job(tmp_path, LOOP)
    code, lines, _ = run_agent(job, LONE)
    assert (code, lines) == (0, [f"LEFT {LONE}"])
    sizes = [one["tokens"] for one in facts(job, "request")]
    assert max(sizes) > WINDOW_TOKENS - LOOP_TOKENS
    assert not facts(job, "did", "said")


def test_a_loop_ends_where_it_is_asked_to_return(tmp_path):
    job = make_job(tmp_path, LOOP, request_seconds=0.3)
    process = start_agent(job, f"{LONE} {ITEM}")
    until(lambda: facts(job, "loop"), process)
    assert ask_to_return(process) == (0, [f"LEFT {LONE} {ITEM}"])
    assert len(facts(job, "request")) < 20


def test_an_agent_that_is_asked_to_return_finishes_the_item_in_hand(tmp_path):
    job = make_job(tmp_path, request_seconds=0.3)
    process = start_agent(job, f"{LONE} {ITEM}")
    until(lambda: facts(job, "began"), process)
    code, lines = ask_to_return(process)
    assert (code, lines[0], lines[-1]) == (0, f"DONE {LONE}", f"LEFT {ITEM}")


def test_an_agent_that_ignores_does_not_return(tmp_path):
    seed = seed_where(lambda seed: first_context(seed, IGNORE).ignores)
    job = make_job(tmp_path, IGNORE, seed=seed, request_seconds=0.3)
    process = start_agent(job, f"{LONE} {ITEM}")
    until(lambda: facts(job, "began"), process)
    code, lines = ask_to_return(process)
    assert (code, lines[-1]) == (0, "ALL DONE")
    assert len(facts(job, "ignore")) == 1


def test_without_the_fault_every_agent_returns():
    assert not any(first_context(seed, LIE).ignores for seed in range(100))


def test_a_full_window_may_end_the_context(tmp_path):
    """What it has done until then is done, and it says no last line."""
    seed = seed_where(lambda seed: first_context(seed, FILL).fails_when_full)
    job = make_job(tmp_path, FILL, seed=seed, count=40)
    code, lines, errors = run_agent(job, " ".join(job.items))
    assert code == 1
    assert errors == f"prompt is too long: more than {WINDOW_TOKENS} tokens\n"
    done = [item for item in job.items if is_done(job, item)]
    assert 8 < len(done) < 20
    assert sum(line.startswith("DONE ") for line in lines) in (len(done), len(done) - 1)
    assert lines[-1] != "ALL DONE"


def test_a_full_window_may_be_compacted_and_the_list_be_forgotten(tmp_path):
    """The agent says that all is done, and means what it remembers."""
    seed = seed_where(lambda seed: not first_context(seed, FILL).fails_when_full)
    job = make_job(tmp_path, FILL, seed=seed, count=40)
    code, lines, _ = run_agent(job, " ".join(job.items))
    assert (code, lines[-1]) == (0, "ALL DONE")
    forgotten = {item for one in facts(job, "fill") for item in one["items"]}
    assert forgotten
    assert {item for item in job.items if not is_done(job, item)} == forgotten
    assert all(one["tokens"] <= WINDOW_TOKENS for one in facts(job, "request"))


def test_a_compaction_without_that_fault_forgets_nothing(tmp_path):
    job = make_job(tmp_path, count=40)
    code, lines, _ = run_agent(job, " ".join(job.items))
    assert (code, lines[-1]) == (0, "ALL DONE")
    assert all(is_done(job, item) for item in job.items)


def test_a_conflict_destroys_the_work_of_the_other_item(tmp_path):
    """The check of the item passes, that of the other one fails from then on."""

    def is_wanted(seed):
        first = first_attempt(seed, ITEM, CONFLICT).overwrites
        return not first and first_attempt(seed, OTHER, CONFLICT).overwrites

    job = make_job(tmp_path, CONFLICT, seed=seed_where(is_wanted))
    assert job.shared_file(ITEM) == job.shared_file(OTHER) == "shared/file-001"
    assert job.shared_file(LONE) is None
    run_agent(job, ITEM)
    assert check(job, ITEM) == (0, "")
    run_agent(job, OTHER)
    assert check(job, OTHER) == (0, "")
    assert check(job) == (1, f"not done: {ITEM}\n")
    assert [one["items"] for one in facts(job, "spoilt")] == [[ITEM]]


def test_two_that_share_a_file_do_no_harm_without_that_fault(tmp_path):
    job = make_job(tmp_path)
    run_agent(job, f"{ITEM} {OTHER} {ITEM}")
    run_agent(job, ITEM)
    assert check(job) == (0, "")
    assert is_done(job, ITEM)
    assert is_done(job, OTHER)


def test_contexts_that_start_together_have_numbers_of_their_own(tmp_path):
    job = make_job(tmp_path)
    processes = [start_agent(job, item) for item in job.items]
    for process in processes:
        process.communicate(timeout=60)
    numbers = [one["context"] for one in facts(job, "context")]
    assert sorted(numbers) == list(range(1, COUNT + 1))


def test_an_orchestrator_that_reads_no_more_does_not_end_an_agent(tmp_path):
    job = make_job(tmp_path)
    process = start_agent(job, f"{ITEM} {LONE}")
    process.stdout.close()
    assert process.wait(60) == 0
    process.stderr.close()
    assert is_done(job, LONE)


def test_a_supervised_agent_is_known_by_the_variable_of_a_handoff():
    assert SUPERVISED == OF_A_HANDOFF
