"""A resident whose code is not the one on disk any more, or is that of another copy."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from helpers.hooked_session import tokens_at
from helpers.resident_session import ResidentSession, opened, until

import ultramon
from ultramon.hosts.doctor_context import WARNING, DoctorContext
from ultramon.hosts.examine.resident import check_resident
from ultramon.hosts.installed_choices import InstalledChoices
from ultramon.hosts.resident.forwarder import MAGIC, PACKAGE, SIZE_DIGITS, encode_request
from ultramon.hosts.resident.loaded_code import LoadedCode

OURS = Path(ultramon.__file__).parent
OLD, NEW = "Context window: ", "Changed window: "


class CopiedSession(ResidentSession):
    """A session whose hooks, and so its resident, are those of a copy of the package."""

    def __init__(self, path):
        self.package = path / "copy" / "ultramon"
        shutil.copytree(OURS, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        super().__init__(path)

    def command(self):
        python, *options, script, choices, resident = super().command()
        script = self.package / Path(script).relative_to(OURS)
        return [python, *options, str(script), choices, resident]


@pytest.fixture
def copied(tmp_path):
    with closing(CopiedSession(tmp_path)) as session:
        yield session


def change(path):
    """Edit a file in place, to one of the same size and time."""
    before = os.stat(path)
    path.write_text(path.read_text().replace(OLD, NEW))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = os.stat(path)
    assert (found.st_size, found.st_ino) == (before.st_size, before.st_ino)


def replace(path):
    """Put another file in its place, as an upgrade does, of the same size and time."""
    other = path.with_suffix(".new")
    shutil.copy2(path, other)
    change(other)
    os.replace(other, path)


@pytest.mark.parametrize("edit", [change, replace])
def test_the_next_hook_is_answered_by_the_code_that_is_on_disk(copied, edit):
    """By its own process at once, and then by a resident that has loaded it, with one version."""
    copied.begin()
    assert OLD in copied.tool(tokens_at(34)).text
    facts = copied.facts()
    assert facts["calls"] == 1
    edit(copied.package / "context" / "note.py")
    # Python itself goes by size and time; an upgrade takes the compiled files away.
    shutil.rmtree(copied.package / "context" / "__pycache__")
    assert NEW in copied.tool(tokens_at(24)).text
    until(lambda: copied.place.running() is None, "the old one stays")
    copied.call("SessionStart", source="clear")
    copied.facts()
    assert NEW in copied.tool(tokens_at(34)).text
    newer = copied.facts()
    assert newer["version"] == facts["version"] == ultramon.__version__
    assert newer["build"] != facts["build"]
    assert (newer["calls"], newer["refused"], copied.failures()) == (1, 0, [])


def test_a_copy_that_was_made_later_takes_over(tmp_path):
    """One that was made earlier is refused, and does everything itself."""
    with opened(tmp_path) as session:
        pid = session.begin()
        later = tmp_path / "later" / "ultramon"
        shutil.copytree(OURS, later)
        for package, answer in (("/nowhere/", b"+R"), (f"{later}/", b"+V")):
            asked = session.ask("x", request=requested_by(package))
            assert asked.words() == answer
            asked.close()
        until(lambda: session.place.running() is None, f"{pid} does not end")
        assert os.listdir(session.environ["XDG_RUNTIME_DIR"]) == []


def requested_by(package):
    """A request of the code in another directory."""
    request = encode_request("claude-code hook", b"/a", b"", b"{}")
    body = request[len(MAGIC) + SIZE_DIGITS :]
    own = f"1.{PACKAGE}".encode()
    field, other = b"%d:%b" % (len(own), own), f"1.{package}".encode()
    assert body.startswith(field)
    body = b"%d:%b" % (len(other), other) + body.removeprefix(field)
    return b"%b%0*d%b" % (MAGIC, SIZE_DIGITS, len(body), body)


def test_an_earlier_copy_does_not_take_over(copied):
    """The tests' own package was there before the copy."""
    copied.begin()
    own = copied.ask("x")
    assert own.words() == b"+R"
    own.close()
    assert copied.facts()["refused"] == 1


def test_the_doctor_names_one_with_other_code(copied, monkeypatch):
    """Hooks are right all the same, and take longer."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", copied.environ["XDG_RUNTIME_DIR"])
    copied.begin()
    stored = InstalledChoices.load(str(copied.installed))
    context = DoctorContext(str(copied.project), str(copied.state), 0.0)
    (found,) = check_resident(context, stored, "resident", "ultramon install claude-code")
    assert (found.status, "runs other code" in found.message) == (WARNING, True)


def test_a_resident_of_the_first_build_makes_room():
    """It compared the numbers of versions, 0.1.0 with what it was sent, and knew nothing else."""
    sent = encode_request("x", b"/a", b"", b"")[len(MAGIC) + SIZE_DIGITS :].partition(b":")[2]
    text = sent[: len(f"1.{PACKAGE}".encode())].decode("ascii")
    assert [int(part) for part in text.split(".") if part.isdecimal()] > [0, 1, 0]


def test_code_that_nobody_touches_is_current(tmp_path):
    """Whatever is loaded later, and by whatever name it is reached."""
    code = LoadedCode()
    (tmp_path / "link").symlink_to(OURS)
    import ultramon.hosts.calls.task_list

    assert ultramon.hosts.calls.task_list.__file__ is not None
    assert code.age_beside(PACKAGE) == code.age_beside(f"{tmp_path}/link/") == 0
    assert code.age_beside("/nowhere/") == -1
