"""After a compaction the conversation holds what a person pinned, word for word."""

import pytest
from helpers import program

from real_client.api import Reply, bash, marked

pytestmark = pytest.mark.real_client

RULE = "Never touch  the `migrations`\nfolder."
INSTRUCTION = marked("fill the window,\n  then  stop")


def test_the_request_after_a_compaction_holds_rules_instruction_and_tasks(install, api, states):
    """They stand behind the summary, once, and nowhere before."""
    installed = install("--pins")
    done = program.run(
        "host", "pin", RULE, "--project", installed.project, "--state-dir", states.directory
    )
    assert done.returncode == 0, done.stderr
    api.play(
        bash(20_000, "echo 1"),
        bash(70_000, "echo 2"),
        # compacted here
        bash(15_000, "echo 3"),
        Reply(16_000, "Done."),
    )
    session = installed.run(INSTRUCTION, CLAUDE_CODE_AUTO_COMPACT_WINDOW="100000")
    assert session.result["result"] == "Done."
    assert len(api.compactions()) == 1
    given = (
        f"Rules that the user has pinned, word for word:\n1. {RULE}\n"
        f"The user's last instruction, word for word:\n{INSTRUCTION}\n"
        "Context window compacted at "
    )
    assert [turn.count(given) for turn in api.turns()] == [0, 0, 1, 1]
    assert api.turns()[2].fresh(given)
