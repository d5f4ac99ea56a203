"""The files of tokens and secrets: private, whole, believed only where no other could write."""

from __future__ import annotations

import inspect
import logging
import os
import stat
import subprocess
import sys
import traceback
from contextlib import closing

import pytest
from helpers.requirements import NOBODY, as_nobody, directory_of_nobody, require_root

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import (
    ConfigurationError,
    StateCorruptError,
    StateDirectoryError,
    StateWriteError,
    UltramonError,
)
from ultramon.testing.contract.states import start
from ultramon.tokens import (
    ADMIN_TOKEN,
    HOOK_SECRET,
    TOKEN_FILE,
    mint_token,
    read_token,
    server_secret,
    write_token,
)

TOKEN = "um_" + "A" * 43
SECRET = "s" * 43


SHOW = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
from ultramon.backends.local.backend import LocalBackend
from ultramon.tokens import mint_token, revoke_tokens, verify_token, server_secret
backend = LocalBackend(sys.argv[1])
token = mint_token("scout-1", backend=backend)
secret = server_secret(sys.argv[1], "admin.token")
assert verify_token(token, backend=backend) == "scout-1"
print(backend.credentials.find("x"), repr(backend), repr(backend.credentials), file=sys.stderr)
revoke_tokens("scout-1", backend=backend)
print(token, secret)
"""


def test_no_log_holds_a_token(tmp_path):
    """At the finest level, over the whole life of one."""
    state = str(tmp_path / "state")
    with closing(LocalBackend(state)) as backend:
        start(backend)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", SHOW, state],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    for secret in done.stdout.split():
        assert len(secret) >= 43
        assert secret[3:20] not in done.stderr


def test_no_refusal_holds_a_token(tmp_path, caplog):
    """Neither message nor chain nor log of what can go wrong with one at hand."""
    caplog.set_level(logging.DEBUG)
    backend = MemoryBackend()
    start(backend)
    token = mint_token("scout-1", backend=backend)
    (tmp_path / "directory").mkdir()
    wide = tmp_path / "wide"
    wide.write_text(token)
    wide.chmod(0o644)
    short = tmp_path / "short"
    write_token(short, token[:20])
    refusals = [
        lambda: write_token(tmp_path / "directory", token),
        lambda: write_token(tmp_path / "missing" / "token", token),
        lambda: read_token({TOKEN_FILE: str(wide)}),
        lambda: read_token({TOKEN_FILE: str(short)}),
        lambda: mint_token("scout-1", "stranger", backend=backend),
    ]
    for refusal in refusals:
        with pytest.raises(UltramonError) as caught:
            refusal()
        told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
        assert token[3:20] not in told
    assert token[3:20] not in caplog.text


def test_a_token_goes_through_a_file_of_its_own(tmp_path):
    """Written 0600 under every umask, over whatever was there, and read back."""
    path = tmp_path / "token"
    path.write_text("before")
    path.chmod(0o666)
    before = os.umask(0)
    try:
        write_token(path, TOKEN)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == TOKEN + "\n"
    assert read_token({TOKEN_FILE: str(path)}) == TOKEN
    assert os.listdir(tmp_path) == ["token"]


def test_without_the_variable_there_is_no_token():
    """Empty is as good as not set."""
    assert read_token({}) is read_token({TOKEN_FILE: ""}) is None


def test_a_token_is_read_from_the_environment_of_the_process(tmp_path, monkeypatch):
    """Also with a home directory in its path, and with the line end of another system."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(TOKEN_FILE, "~/token")
    write_token(tmp_path / "token", f"{TOKEN}\r")
    assert read_token() == TOKEN
    assert inspect.signature(read_token).parameters["environ"].default is os.environ


def test_a_token_file_that_is_not_there_is_named(tmp_path):
    """The variable is at fault, and says so."""
    with pytest.raises(ConfigurationError, match="a file that is there") as caught:
        read_token({TOKEN_FILE: str(tmp_path / "missing")})
    assert (caught.value.name, caught.value.source) == (TOKEN_FILE, "environment")


def plant_wide(mode):
    def plant(path):
        path.write_text(SECRET)
        path.chmod(mode)

    return plant


def plant_link(path):
    (path.parent / "victim").write_text(SECRET)
    (path.parent / "victim").chmod(0o600)
    path.symlink_to(path.parent / "victim")


def plant_second_name(path):
    plant_wide(0o600)(path)
    os.link(path, path.parent / "second")


def plant_foreign(path):
    require_root()
    plant_wide(0o600)(path)
    os.chown(path, NOBODY, NOBODY)


def plant_content(content):
    def plant(path):
        path.write_bytes(content)
        path.chmod(0o600)

    return plant


UNSAFE = {
    "readable by the group": (plant_wide(0o640), r"others could read it \(mode 0640\)"),
    "readable by all": (plant_wide(0o604), r"others could read it \(mode 0604\)"),
    "writable by all": (plant_wide(0o602), r"others could read it \(mode 0602\)"),
    "a symlink": (plant_link, "not a regular file"),
    "a symlink to nothing": (lambda path: path.symlink_to("missing"), "not a regular file"),
    "a second name": (plant_second_name, "has a second name"),
    "a directory": (lambda path: path.mkdir(0o700), "not a regular file"),
    "a pipe": (lambda path: os.mkfifo(path, 0o600), "not a regular file"),
    "somebody else's": (plant_foreign, f"belongs to user {NOBODY}"),
    "too large": (plant_content(b"s" * 5_000), "has 5,000 bytes, at most 4,096"),
}
EMPTY = {
    "empty": b"",
    "a line end": b"\n",
    "too short": b"s" * 31,
    "two words": b"s" * 20 + b" " + b"s" * 20,
    "two lines": SECRET.encode() + b"\n" + SECRET.encode(),
    "NULs": b"\0" * 43,
    "not ASCII": b"\xff" * 43,
}


@pytest.mark.parametrize(("plant", "reason"), UNSAFE.values(), ids=UNSAFE.keys())
@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_token({TOKEN_FILE: str(path)}),
        lambda path: server_secret(str(path.parent), path.name),
    ],
    ids=["of an agent", "of the server"],
)
def test_a_file_that_others_could_have_touched_is_no_secret(tmp_path, plant, reason, read):
    """It is refused with its path, what is wrong and what to do, and left as it is."""
    directory = tmp_path / "state"
    directory.mkdir(0o700)
    path = directory / ADMIN_TOKEN
    plant(path)
    before = path.lstat()
    with pytest.raises(StateDirectoryError, match=reason) as caught:
        read(path)
    assert caught.value.path == str(path)
    assert str(caught.value).endswith("another")
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("content", EMPTY.values(), ids=EMPTY.keys())
def test_a_file_without_a_secret_opens_nothing(tmp_path, content):
    """An empty secret would let in a caller that sends none."""
    plant_content(content)(tmp_path / HOOK_SECRET)
    with pytest.raises(StateCorruptError, match="holds no secret of 32 to 512"):
        server_secret(str(tmp_path), HOOK_SECRET)


def test_secrets_are_made_once_and_stay(tmp_path):
    """Each in a private file of its name, under every umask; nothing is left beside them."""
    directory = tmp_path / "missing" / "state"
    before = os.umask(0o777)
    try:
        secrets = [server_secret(str(directory), name) for name in (ADMIN_TOKEN, HOOK_SECRET)]
    finally:
        os.umask(before)
    assert len(set(secrets)) == 2
    assert all(len(secret) == 43 for secret in secrets)
    again = [server_secret(str(directory), name) for name in (ADMIN_TOKEN, HOOK_SECRET)]
    assert again == secrets
    assert sorted(os.listdir(directory)) == [ADMIN_TOKEN, HOOK_SECRET]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())]
    assert modes == [0o700, 0o600, 0o600]


def test_a_secret_of_ones_own_is_taken(tmp_path):
    """To give several servers one secret, a person writes the file."""
    plant_content(b"my-own-secret-of-32-characters!!\n")(tmp_path / ADMIN_TOKEN)
    assert server_secret(str(tmp_path), ADMIN_TOKEN) == "my-own-secret-of-32-characters!!"


def test_a_directory_that_others_may_write_to_keeps_no_secret(tmp_path):
    """A user who may write to it could replace the file."""
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(StateDirectoryError, match="others may write to it"):
        server_secret(str(directory), ADMIN_TOKEN)
    assert os.listdir(directory) == []


def test_a_lock_that_is_no_file_is_named(tmp_path):
    """The system refuses; no secret is made."""
    (tmp_path / f"{ADMIN_TOKEN}.lock").mkdir()
    with pytest.raises(StateWriteError, match="cannot be locked: Is a directory"):
        server_secret(str(tmp_path), ADMIN_TOKEN)
    assert os.listdir(tmp_path) == [f"{ADMIN_TOKEN}.lock"]


ASK = """
import sys
from ultramon.tokens import server_secret
print("ready", flush=True)
sys.stdin.readline()
for round in range(40):
    print(server_secret(f"{sys.argv[1]}/{round}", "admin.token"))
"""


def test_processes_that_start_at_once_have_one_secret(tmp_path):
    """One of them makes it, all of them read the same."""
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for _ in range(4)
    ]
    for process in asking:
        assert process.stdout.readline() == "ready\n"
    for process in asking:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].split() for process in asking]
    assert [process.returncode for process in asking] == [0] * 4
    assert answers == [answers[0]] * 4
    assert len(set(answers[0])) == 40
    assert all(os.listdir(tmp_path / str(number)) == [ADMIN_TOKEN] for number in range(40))


def test_an_ordinary_user_can_use_what_it_made(tmp_path):
    """Where root's rights do not help: made, read again, and kept from everybody else."""
    code = (
        "import sys; from ultramon.tokens import server_secret\n"
        "print(server_secret(sys.argv[1], 'admin.token'))"
    )
    with directory_of_nobody() as home:
        state = home / "state"
        said = [
            subprocess.run(
                [*as_nobody(), sys.executable, "-c", code, str(state)],
                capture_output=True,
                encoding="utf-8",
                check=True,
            ).stdout
            for _ in range(2)
        ]
        assert said[0] == said[1]
        assert (state / ADMIN_TOKEN).read_text() == said[0]
        assert (state / ADMIN_TOKEN).stat().st_uid == NOBODY
        with pytest.raises(StateDirectoryError, match=f"belongs to user {NOBODY}"):
            server_secret(str(state), ADMIN_TOKEN)
