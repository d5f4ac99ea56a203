"""What hosts say that they can do, and the table that is made of it."""

import runpy

import pytest
from helpers import ROOT

from ultramon.hosts.capabilities import COLUMNS, can, has_hooks, shown_by_code
from ultramon.hosts.opencode.host import OPENCODE
from ultramon.hosts.port import Capabilities, Dialect, Host, Setup
from ultramon.hosts.registry import find_hosts
from ultramon.relay.opening import launched_hosts
from ultramon.testing.contract.host import proven_columns

TABLE = runpy.run_path(str(ROOT / "scripts" / "generate_hosts_table.py"))


def test_every_column_of_the_table_is_proven():
    """A column that no test of the suite looks at could claim anything."""
    assert proven_columns() == set(COLUMNS)


@pytest.mark.parametrize("host", find_hosts().usable, ids=lambda host: host.name)
def test_what_a_host_lacks_is_what_its_code_lacks(host):
    """Each column that code decides has a reason where it is not there, and no words then."""
    shown = shown_by_code(host, has_launcher=host.name in launched_hosts())
    lacking = {name for name, is_there in shown.items() if not is_there}
    said = {*host.capabilities.lacks}
    assert said & {*shown} == (lacking if has_hooks(host) else set())
    assert not {*host.capabilities.how} & lacking
    assert said | {*host.capabilities.how} <= {*COLUMNS}


def test_the_table_of_the_page_is_fresh():
    """docs/hosts.md is as `make hosts` would write it now; each host with hooks has its page."""
    page = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    assert TABLE["render"](page) == page
    for host in TABLE["built_in"]():
        link = f"[{TABLE['name_of'](host)}]({host.name}.md)"
        assert (link in page) == has_hooks(host)


def test_of_a_host_without_hooks_only_its_files_are_there():
    """Whatever else it may have: nothing reports it while it runs."""
    host = Host("bare", "nowhere")
    host.dialect, host.setup, host.capabilities = Dialect(), Setup(), Capabilities()
    host.transcripts = OPENCODE.transcripts
    assert {name for name in COLUMNS if can(host, name, has_launcher=True)} == {"report"}
    with pytest.raises(KeyError):
        can(host, "coffee", has_launcher=False)
