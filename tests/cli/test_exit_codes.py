import pytest

from ultramon.alerts.config import STATUSES
from ultramon.cli.exit_codes import ExitCode
from ultramon.relay.runs.result import BUDGET, FAILED, GAVE_UP, INTERRUPTED, REFUSED


def test_every_status_of_alerts_is_the_name_of_its_code():
    """A status that had none would look like a failure of the command."""
    assert [ExitCode.of(status).name.lower() for status in STATUSES] == list(STATUSES)


@pytest.mark.parametrize(
    ("kind", "code"), [(BUDGET, 5), (REFUSED, 6), (INTERRUPTED, 130), (FAILED, 1), (GAVE_UP, 1)]
)
def test_a_stop_of_a_relay_has_a_code_by_its_kind(kind, code):
    """Kinds without a code of their own are failures."""
    assert ExitCode.of(kind) == code
