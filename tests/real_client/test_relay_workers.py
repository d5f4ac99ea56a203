"""A relay of several real clients at once, each in its tree; what is verified is merged."""

import subprocess

import pytest
from helpers.program import as_a_process

from real_client.client import MODEL, Client, one_at_a_time
from real_client.item_agent import ItemAgent
from real_client.item_job import GOAL, RULES, ItemJob
from ultramon.relay.choices import RelayChoices
from ultramon.relay.opening import open_relay

WINDOW = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"}


@pytest.mark.parametrize(
    ("workers", "count"), [(2, 6), pytest.param(4, 24, marks=pytest.mark.exhaustive)]
)
def test_clients_work_side_by_side_and_every_value_of_the_branch_is_green(tmp_path, workers, count):
    """Items in pairs write the end of one file: what conflicts is done again on top of it."""
    names = [f"part {number:02}" for number in range(1, count + 1)]
    pairs = {name: f"pair {number % (count // 2)}" for number, name in enumerate(names)}
    agent = ItemAgent(tmp_path / "configuration", RULES, shared=pairs)
    told = []
    try:
        with one_at_a_time():
            client = Client(tmp_path, agent)
            job = ItemJob(client.project, count)
            state = str(tmp_path / "state")
            choices = RelayChoices(
                GOAL, str(job.directory), RULES, tuple(job.items), job.check_command,
                arguments=("--model", MODEL), workers=workers, verify_all="test ! -e bad",
                program=str(client.program), max_contexts=60,
            )  # fmt: skip
            with as_a_process(client.environment(**WINDOW, ULTRAMON_STATE_DIR=state)):
                opened = open_relay("job", choices, state_directory=state)
                result = opened.relay(told.append).run()
    finally:
        agent.close()
    assert (result.work.counts.verified, result.work.lost) == (count, ()), told
    assert {one.worker for one in result.contexts} == set(range(1, workers + 1))
    assert result.merges.merged == count
    if count > 6:
        assert result.merges.conflicts > 0

    def git(*arguments):
        command = ["git", "-C", str(job.directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    for commit in git("reflog", "--format=%H", "ultramon/job").split()[:-1]:
        for path in git("ls-tree", "-r", "--name-only", commit, "notes").splitlines():
            if path.endswith(".md"):
                assert git("show", f"{commit}:{path}").startswith("code word: ")
    for pair in set(pairs.values()):
        written = git("show", f"ultramon/job:notes/{pair}").splitlines()
        assert set(written) == {name for name in names if pairs[name] == pair}
    assert git("status", "--porcelain") == ""
