"""The client's settings files: edited member by member, read with suspicion, replaced whole."""

from __future__ import annotations

import json
import os
import stat

import pytest
from helpers.client_home import OTHER_HOOKS, SHAPES, json_objects, json_values
from hypothesis import given
from hypothesis import strategies as st

from ultramon.errors import StateCorruptError, StateWriteError
from ultramon.hosts.claude_code.install.commands import (
    EVENTS,
    HOOK_SCRIPT,
    STATUS_LINE_SCRIPT,
    mentions,
    recognise,
    script_path,
)
from ultramon.hosts.claude_code.install.settings import Settings, find_layers
from ultramon.hosts.install.hook_commands import command_line
from ultramon.hosts.install.hook_settings import MAX_SETTINGS_BYTES
from ultramon.hosts.install.json_edit import JsonText, comparable

HOOK = script_path(HOOK_SCRIPT)
COMMAND = command_line("/usr/bin/python3", HOOK, "/state/claude-code.json")
LINE = command_line("/usr/bin/python3", script_path(STATUS_LINE_SCRIPT), "/state/claude-code.json")

layouts = st.sampled_from(
    [
        {"indent": None, "separators": (",", ":")},
        {"indent": None},
        {"indent": 2},
        {"indent": "\t"},
        {"indent": 4, "ensure_ascii": False},
        {"indent": 0},
    ]
)


def written(data):
    """The settings with our hooks and status line in them."""
    settings = Settings("/nowhere/settings.json", data)
    settings.put_hooks(COMMAND)
    if not isinstance(settings.get("statusLine"), dict):
        settings.put_status_line(LINE)
    return settings


@given(value=json_objects, layout=layouts, added=json_values, data=st.data())
def test_what_is_added_to_a_text_can_be_taken_out_without_a_trace(value, layout, added, data):
    """Adding a member to any object, however it is written, and removing it gives the old text."""
    text = json.dumps(value, **layout)
    document = JsonText(text)
    document.add((), added, "ours alone")
    assert json.loads(document.text) == {**value, "ours alone": added}
    assert list(json.loads(document.text)) == [*value, "ours alone"]
    document.remove(("ours alone",))
    assert json.loads(document.text) == value
    if value:
        assert document.text == text


@given(value=json_objects.filter(bool), layout=layouts, data=st.data())
def test_replacing_and_removing_leaves_every_neighbour_alone(value, layout, data):
    """A member that is replaced or removed takes nothing else with it."""
    key = data.draw(st.sampled_from(list(value)))
    document = JsonText(json.dumps(value, **layout))
    document.replace((key,), {"new": [1, {}]})
    assert json.loads(document.text) == {**value, key: {"new": [1, {}]}}
    document.remove((key,))
    assert json.loads(document.text) == {k: v for k, v in value.items() if k != key}


@given(items=st.lists(json_values, max_size=4), layout=layouts, data=st.data())
def test_arrays_grow_at_their_end_and_shrink_anywhere(items, layout, data):
    """Appending to an array and removing any index does what a list does."""
    document = JsonText(json.dumps({"list": items}, **layout))
    document.add(("list",), "new")
    grown = [*items, "new"]
    assert document.get("list") == grown
    index = data.draw(st.integers(0, len(items)))
    document.remove(("list", index))
    del grown[index]
    assert document.get("list") == grown


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1, "b": 2}', '{"a":1.0,"b":2e0}', True),
        ('{"a": "\\u00e9"}', '{"a": "é"}', True),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": []}', '{"a": {}}', False),
        ('{"a": null}', "{}", False),
    ],
)
def test_two_texts_say_the_same_whatever_their_spelling(one, other, same):
    """Spelling does not count; order, kinds and values do."""
    assert (comparable(one) == comparable(other)) is same


@pytest.mark.parametrize("shape", SHAPES)
def test_our_entries_come_and_everything_else_stays(shape):
    """Whatever the file looked like, all it said before it still says, in its order."""
    before = Settings("/nowhere/settings.json", SHAPES[shape])
    after = Settings("/nowhere/settings.json", written(SHAPES[shape]).data)
    assert {hook.event for hook in after.our_hooks()} == set(EVENTS)
    after.drop_hooks(frozenset(before.get("hooks") or ()) | {"hooks"})
    if "statusLine" not in before.document.text:
        after.restore_status_line(None, existed=False)
    if "hooks" not in before.document.text:
        after.document.remove(("hooks",))
    if shape != "status line null":
        assert after.says_the_same_as(SHAPES[shape])


@pytest.mark.parametrize(
    "shape", ["two spaces", "minified", "one line", "no final line end", "byte order mark",
              "unicode", "spellings of numbers", "huge numbers", "comma first", "no indentation"]
)  # fmt: skip
def test_no_other_byte_changes(shape):
    """Without ultramon's entries the very bytes are left, even where no backup was kept."""
    settings = written(SHAPES[shape])
    kept = frozenset(Settings("/x", SHAPES[shape]).get("hooks") or ())
    settings.drop_hooks(kept)
    settings.restore_status_line(None, existed=False)
    assert settings.data == SHAPES[shape]


def test_entries_are_written_the_way_the_file_is():
    """Tabs get tabs, CRLF gets CRLF, one line stays one line, a byte order mark stays first."""
    tabs = written(SHAPES["tabs"]).data.decode()
    assert '\n\t\t"SessionStart": [\n\t\t\t{\n\t\t\t\t"matcher": "*",\n' in tabs
    crlf = written(SHAPES["CRLF"]).data
    assert crlf.count(b"\n") == crlf.count(b"\r\n") > 50
    assert b"\n" not in written(SHAPES["minified"]).data
    assert b": " not in written(b'{"a":1}').data.replace(COMMAND.encode(), b"")
    assert written(SHAPES["byte order mark"]).data.startswith(b'\xef\xbb\xbf{\n  "model"')


def test_matchers_stand_where_the_client_has_them():
    """Every event but two takes a matcher; the end of a session gets less time.

    The client need not wait for the one that says nothing.
    """
    hooks = json.loads(written(b"").data)["hooks"]
    assert list(hooks) == list(EVENTS)
    for event, entries in hooks.items():
        assert len(entries) == 1
        assert entries[0].get("matcher") == (None if event in ("UserPromptSubmit", "Stop") else "*")
        (hook,) = entries[0]["hooks"]
        seconds = 5 if event == "SessionEnd" else 10
        unwaited = {"async": True} if event == "PreToolUse" else {}
        assert hook == {"type": "command", "command": COMMAND, "timeout": seconds} | unwaited


OURS = [
    COMMAND,
    f"/usr/bin/python3 -I -S {HOOK} /state/claude-code.json",
    f"python3 {HOOK}",
    f"'/a b/python' -I -S '{HOOK}' '/c d/claude-code.json'\n",
    f"{os.path.dirname(HOOK)}/../claude_code/./hook.py",
    "/gone/venv/bin/python -I -S /gone/site-packages/ultramon/hosts/claude_code/hook.py /x.json",
    "$HOME/bin/pypy3 ~/lib/ultramon/hosts/claude_code/hook.py",
    f"ULTRAMON_DISABLED=0 exec python3 {HOOK}",
    f"/usr/bin/env python3 {HOOK}",
    command_line("/opt/app/bin/snake", HOOK, "/state/claude-code.json"),
    f"/opt/app/bin/snake -IS {HOOK} /state/claude-code.json",
    "/state/claude-code.ultramon-hook",
    "python3 '/a b/claude-code.ultramon-hook'",
    "ultramon hook claude-code",
    "/opt/tool/bin/ultramon hook claude-code",
    "python3 -m ultramon hook claude-code",
    "ultramon host hook claude-code",
]
FOREIGN = [
    "",
    "python3 hook.py",
    "/usr/bin/python3 -I -S /opt/other/hosts/claude_code/hook.py",
    f"echo {HOOK}",
    f"echo -n {HOOK}",
    "/state/claude-code.ultramon-hook | tee /tmp/log",
    "echo /state/claude-code.ultramon-hook",
    "claude-code.ultramon-hook",
    f"python3 {HOOK} && echo done",
    f"python3 {HOOK} | tee /tmp/log",
    f"echo hi; python3 {HOOK}",
    f"echo hi\npython3 {HOOK}",
    f"cat {HOOK} > /tmp/copy",
    "ultramon statusline",
    "ultramon doctor",
    f"bash -c 'python3 {HOOK}'",
    "python3 -c 'unclosed",
]


@pytest.mark.parametrize("command", OURS)
def test_a_command_is_ours_by_its_script_however_it_is_spelled(command):
    """Interpreter, quoting, links, home and arguments make no difference."""
    assert recognise({"type": "command", "command": command}, HOOK_SCRIPT) is not None
    assert recognise({"type": "command", "command": command}, STATUS_LINE_SCRIPT) is None


@pytest.mark.parametrize("command", FOREIGN)
def test_a_command_that_does_anything_else_is_not_ours(command):
    """Nothing of others is taken for ours, not even when it runs ours besides."""
    assert recognise({"type": "command", "command": command}, HOOK_SCRIPT) is None


def test_a_command_in_arguments_is_recognised():
    """The form with ``args`` runs no shell, and is read as it is."""
    hook = {"type": "command", "command": "/usr/bin/python3", "args": ["-I", "-S", HOOK, "/a; b"]}
    command = recognise(hook, HOOK_SCRIPT)
    assert command is not None
    assert (command.program, command.script, command.choices_path) == (
        "/usr/bin/python3",
        HOOK,
        "/a; b",
    )


def test_a_link_to_the_script_is_the_script(tmp_path):
    """A script under another name is recognised by what it leads to."""
    link = tmp_path / "tick.py"
    link.symlink_to(HOOK)
    assert recognise({"command": f"python3 {link}"}, HOOK_SCRIPT) is not None


def test_a_wrapper_around_ours_is_noticed():
    """Chaining a status line that runs ours would run it without end."""
    script = script_path(STATUS_LINE_SCRIPT)
    for command in (
        f"bash -c 'python3 {script}'",
        f"date; python3 {script}",
        "a; ultramon statusline",
        "a; ultramon host statusline",
        "bash -c '/state/claude-code.ultramon-statusline'",
    ):
        assert recognise({"command": command}, STATUS_LINE_SCRIPT) is None
        assert mentions({"command": command}, STATUS_LINE_SCRIPT)
    assert not mentions({"command": "ccline --bar"}, STATUS_LINE_SCRIPT)


CORRUPT = {
    "not JSON": (b'{\n  "model": opus\n}\n', "line 2 column 12"),
    "a comment": (b'{\n  // mine\n  "model": "opus"\n}\n', "line 2 column 3"),
    "a comma too many": (b'{"model": "opus",}\n', "line 1"),
    "a second value": (b"{}\n{}\n", "line 2 column 1"),
    "an array": (b"[]\n", "not a JSON object"),
    "text": (b'"x"', "not a JSON object"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "not UTF-8": (b'{\n  "a": "\xff"\n}\n', "line 2: not UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    "hooks is an array": (b'{"hooks": []}', "hooks is not an object"),
    "hooks is null": (b'{"hooks": null}', "hooks is not an object"),
    "an event is an object": (b'{"hooks": {"Stop": {}}}', "hooks.Stop is not an array"),
    "hooks twice": (b'{"hooks": {},\n"hooks": {}}', "line 2: the key 'hooks' is there twice"),
    "an event twice": (b'{"hooks": {"Stop": [], "Stop": []}}', "'Stop' is there twice"),
    "status line twice": (b'{"statusLine": {}, "statusLine": {}}', "is there twice"),
    "too deep": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "too large": (b'{"a": "' + b"x" * MAX_SETTINGS_BYTES + b'"}', "larger than 1,048,576 bytes"),
    "cut off": (b'{\n  "model": "op', "line 2"),
}


@pytest.mark.parametrize("case", CORRUPT)
def test_what_is_no_settings_file_is_refused_with_its_line(case, tmp_path):
    """The error names the file, the line and what to do; the file stays as it is."""
    data, said = CORRUPT[case]
    path = tmp_path / "settings.json"
    path.write_bytes(data)
    with pytest.raises(StateCorruptError) as caught:
        Settings(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "nothing was changed" in str(caught.value)
    assert path.read_bytes() == data


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_is_refused_at_once(kind, tmp_path):
    """Neither a directory nor a pipe that nobody writes to can stop the program."""
    path = tmp_path / "settings.json"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(StateCorruptError, match="not a regular file"):
        Settings(str(path))


def test_saving_keeps_links_and_mode(tmp_path):
    """The file behind a link is replaced, the link and the mode stay, nothing is left over."""
    target = tmp_path / "dotfiles" / "claude.json"
    target.parent.mkdir()
    target.write_bytes(b"{}")
    target.chmod(0o640)
    link = tmp_path / "settings.json"
    link.symlink_to("dotfiles/claude.json")
    Settings(str(link)).save(b'{"a": 1}')
    assert os.readlink(link) == "dotfiles/claude.json"
    assert target.read_bytes() == b'{"a": 1}'
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["dotfiles", "settings.json"]
    assert os.listdir(target.parent) == ["claude.json"]


def test_a_link_that_leads_nowhere_gets_its_target(tmp_path):
    """A file that is missing behind a link is made there, for this user alone."""
    link = tmp_path / "settings.json"
    link.symlink_to("later/claude.json")
    Settings(str(link)).save(b"{}")
    assert link.is_symlink()
    assert stat.S_IMODE((tmp_path / "later" / "claude.json").stat().st_mode) == 0o600


def test_a_file_that_changes_meanwhile_is_not_overwritten(tmp_path):
    """What the client wrote between reading and writing is not lost."""
    path = tmp_path / "settings.json"
    path.write_bytes(b"{}")
    settings = Settings(str(path))
    path.write_bytes(b'{"model": "opus"}')
    with pytest.raises(StateWriteError, match="changed meanwhile, nothing was written"):
        settings.save(b'{"a": 1}')
    assert path.read_bytes() == b'{"model": "opus"}'
    assert os.listdir(tmp_path) == ["settings.json"]


def test_a_doubled_hook_is_made_one_and_an_outdated_one_goes():
    """Old entries are brought up to date in place: one an event, none where none is needed."""
    old = {"type": "command", "command": f"python3 {HOOK}", "timeout": 60}
    settings = Settings(
        "/x",
        json.dumps(
            {
                "hooks": {
                    "Stop": [
                        {"hooks": [{"type": "command", "command": "beep"}, old]},
                        {"hooks": [old]},
                    ],
                    "PreToolUse": [{"matcher": "Bash", "hooks": [old]}],
                    "PostToolUse": [{"hooks": [{**old, "command": "python3", "args": [HOOK]}]}],
                    "MessageDisplay": [{"matcher": "*", "hooks": [old]}],
                }
            }
        ).encode(),
    )
    settings.put_hooks(COMMAND)
    hooks = settings.get("hooks")
    fresh = {**old, "command": COMMAND}
    assert hooks["Stop"] == [{"hooks": [{"type": "command", "command": "beep"}, fresh]}]
    assert hooks["PreToolUse"] == [{"matcher": "Bash", "hooks": [fresh | {"async": True}]}]
    assert hooks["PostToolUse"] == [{"hooks": [{**fresh, "timeout": 10}]}]
    assert "MessageDisplay" not in hooks
    before = settings.data
    settings.put_hooks(COMMAND)
    assert settings.data == before


def test_foreign_hooks_in_the_same_entry_stay():
    """A hook that somebody put into our entry, or ours into theirs, stays when ours go."""
    settings = Settings("/x", OTHER_HOOKS.encode())
    settings.document.add(
        ("hooks", "PostToolUse", 0, "hooks"), {"type": "command", "command": COMMAND}
    )
    settings.drop_hooks(frozenset(("PreCompact", "WorktreeCreate")))
    assert settings.data == OTHER_HOOKS.encode()


def test_a_layer_that_is_two_is_one(tmp_path, monkeypatch):
    """In the home directory the project's settings are the user's, and count once."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    assert [layer.name for layer in find_layers(str(tmp_path))] == ["user", "local"]
    assert [layer.name for layer in find_layers(str(tmp_path / "x"))] == [
        "user",
        "project",
        "local",
    ]
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "c"))
    assert find_layers("/y")[0].path == str(tmp_path / "c" / "settings.json")
