"""Which URLs a webhook may have, and that a server with a wrong configuration does not start."""

import os
import socket
import subprocess
import sys

import pytest
from helpers.program import environment
from helpers.webhook_receiver import Receiver

from ultramon import ConfigurationError
from ultramon.server.workers.webhook_targets import AllowedHosts
from ultramon.server.workers.webhooks import read_targets

LISTED = ["hooks.example.com", "hooks.example.com:8443", "localhost:9000", "127.0.0.1:9000"]
LISTED += ["[::1]:9000", "10.1.2.3", "169.254.169.254:9000", "bücher.example", "2130706433:9000"]

ALLOWED = [
    "https://hooks.example.com",
    "https://hooks.example.com:443/a/b?c=d",
    "https://HOOKS.example.com:8443/",
    "https://bücher.example/",
    "https://10.1.2.3/",
    "http://localhost:9000/",
    "http://127.0.0.1:9000/",
    "http://[::1]:9000/",
    "http://[0:0:0:0:0:0:0:1]:9000/",
    "http://[::ffff:127.0.0.1]:9000/",
]
REFUSED = [
    ("http://169.254.169.254/latest/meta-data/", "at a host and port of webhooks.allow_hosts"),
    ("http://169.254.169.254:9000/", "at no link-local"),
    ("https://169.254.169.254:9000/", "at no link-local"),
    ("https://[::ffff:169.254.169.254]:9000/", "at no link-local"),
    ("https://localhost/", "at a host and port of webhooks.allow_hosts"),
    ("http://127.0.0.1/", "at a host and port of webhooks.allow_hosts"),
    ("http://127.0.0.2:9000/", "at a host and port of webhooks.allow_hosts"),
    ("http://2130706433:9000/", "https, unless the host is this machine"),
    ("https://hooks.example.com.evil.example/", "at a host and port of webhooks.allow_hosts"),
    ("https://evil.hooks.example.com/", "at a host and port of webhooks.allow_hosts"),
    ("https://hooks.example.com./", "at a host and port of webhooks.allow_hosts"),
    ("https://hooks.example.com:9000/", "at a host and port of webhooks.allow_hosts"),
    ("http://hooks.example.com/", "https, unless the host is this machine"),
    ("http://10.1.2.3/", "https, unless the host is this machine"),
    ("https://boss:secret@hooks.example.com/", "without a user and password"),
    ("https://hooks.example.com@evil.example/", "without a user and password"),
    ("https://hooks.example.com\\@evil.example/", "without a user and password"),
    ("file:///etc/passwd", "an https URL with a host"),
    ("gopher://hooks.example.com/", "an https URL with a host"),
    ("unix:/run/docker.sock", "an https URL with a host"),
    ("hooks.example.com/x", "an https URL with a host"),
    ("https:///x", "an https URL with a host"),
    ("", "an https URL with a host"),
    (None, "an https URL with a host"),
    ("https://hooks.example.com:port/", "a URL"),
    ("https://hooks.example.com/\n", "a URL"),
]


@pytest.mark.parametrize("url", ALLOWED)
def test_a_listed_host_may_be_posted_to(url):
    """Names and addresses in any spelling, at the listed port, else at 443 or 80."""
    assert str(AllowedHosts(LISTED, "a test").check("url", url))


@pytest.mark.parametrize(("url", "allowed"), REFUSED)
def test_any_other_url_is_refused(url, allowed):
    """What leads elsewhere, or inside, or carries a password, never becomes a target."""
    with pytest.raises(ConfigurationError, match="from a test") as caught:
        AllowedHosts(LISTED, "a test").check("url", url)
    assert allowed in caught.value.allowed


@pytest.mark.parametrize(
    "entry",
    [
        *("", "https://hooks.example.com", "hooks.example.com/x", "u@hooks.example.com", "*"),
        *("*.example.com", "a b", "h:0", "h:65536", "h:x", "10.0.0.0/8", "h?x", "h#x", 7, None),
    ],
)
def test_an_entry_is_one_host(entry):
    """No pattern, network or URL: what is listed can be counted."""
    with pytest.raises(ConfigurationError, match=r"webhooks\.allow_hosts="):
        AllowedHosts([entry], "a test")


@pytest.mark.parametrize(
    ("host", "address", "is_allowed"),
    [
        ("hooks.example.com", "93.184.215.14", True),
        ("hooks.example.com", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("hooks.example.com", "10.1.2.3", True),
        ("hooks.example.com", "10.1.2.4", False),
        ("hooks.example.com", "127.0.0.1", False),
        ("hooks.example.com", "::1", False),
        ("hooks.example.com", "0.0.0.0", False),
        ("hooks.example.com", "::", False),
        ("hooks.example.com", "100.64.0.1", False),
        ("hooks.example.com", "169.254.169.254", False),
        ("hooks.example.com", "fe80::1%eth0", False),
        ("hooks.example.com", "fd00:ec2::254", False),
        ("hooks.example.com", "::ffff:10.0.0.1", False),
        ("hooks.example.com", "64:ff9b::7f00:1", False),
        ("hooks.example.com", "64:ff9b::5db8:d70e", True),
        ("hooks.example.com", "2002:7f00:1::", False),
        ("hooks.example.com", "224.0.0.1", False),
        ("hooks.example.com", "255.255.255.255", False),
        ("localhost:9000", "127.0.0.1", True),
        ("localhost:9000", "::1", True),
        ("localhost:9000", "93.184.215.14", False),
        ("localhost:9000", "10.1.2.3", False),
    ],
)
def test_a_name_leads_to_public_or_listed_addresses_only(host, address, is_allowed):
    """A name is only as good as the address behind it; localhost is this machine and no other."""
    hosts = AllowedHosts(LISTED, "a test", lookup=lambda *_, **__: [(0, 0, 0, "", (address, 0))])
    url = hosts.check("url", f"https://{host}/")
    if is_allowed:
        assert hosts.addresses(url) == [address]
    else:
        with pytest.raises(ConfigurationError, match=f"not to {address}"):
            hosts.addresses(url)


def test_an_address_is_not_looked_up():
    """Nothing can lead elsewhere what names an address itself."""
    hosts = AllowedHosts(LISTED, "a test", lookup=None)
    assert hosts.addresses(hosts.check("url", "http://[::1]:9000/")) == ["::1"]


def test_a_spelling_that_only_the_resolver_reads_as_an_address_is_refused():
    """2130706433 is 127.0.0.1 to a resolver: it is judged by where it leads."""
    hosts = AllowedHosts(["2130706433"], "a test", lookup=socket.getaddrinfo)
    with pytest.raises(ConfigurationError, match=r"not to 127\.0\.0\.1"):
        hosts.addresses(hosts.check("url", "https://2130706433/"))


TARGET = """
[webhooks]
allow_hosts = ["hooks.example.com"]
[[webhooks.targets]]
recipient = "boss"
url = "https://hooks.example.com/ultramon"
secret_file = "boss.secret"
"""


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """Write a configuration with a good secret beside it; return the file."""

    def configure(text):
        secret = tmp_path / "boss.secret"
        secret.touch(0o600)
        secret.write_text("0123456789abcdef0123456789abcdef\n")
        (tmp_path / "elsewhere").mkdir()
        path = tmp_path / "ultramon.toml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setenv("ULTRAMON_CONFIG", str(path))
        monkeypatch.chdir(tmp_path / "elsewhere")
        return path

    return configure


def test_targets_come_from_the_configuration(configure):
    """The secret is a file beside it, without the line end; a repr does not show it."""
    configure(TARGET + 'deliveries = ["urgent"]\n')
    (target,), _ = read_targets()
    assert (target.recipient, target.deliveries) == ("boss", ["urgent"])
    assert str(target.url) == "https://hooks.example.com/ultramon"
    assert target.secret == b"0123456789abcdef0123456789abcdef"
    assert "0123456789" not in repr(target)


@pytest.mark.parametrize("layout", ["slack", "discord", "ntfy"])
def test_a_service_that_checks_no_signature_needs_no_secret(configure, layout):
    text = TARGET.replace('secret_file = "boss.secret"', f'format = "{layout}"')
    configure(text)
    (target,), _ = read_targets()
    assert (target.format, target.secret) == (layout, None)


@pytest.mark.parametrize("text", ["", "[webhooks]\n", '[webhooks]\nallow_hosts = ["a.example"]\n'])
def test_without_targets_there_are_no_webhooks(configure, text):
    """The list alone sends nothing."""
    configure(text)
    assert read_targets()[0] == []


WRONG = [
    ('url = "', 'url = "x', "webhooks.targets 1 url="),
    ('url = "https://hooks.', 'url = "https://', "at a host and port of webhooks.allow_hosts"),
    ('recipient = "boss"', "", "webhooks.targets 1 recipient=None"),
    ('recipient = "boss"', 'recipient = "../boss"', "webhooks.targets 1 recipient="),
    ('secret_file = "boss.secret"', "", "webhooks.targets 1 secret_file=None"),
    ("recipient =", 'format = "slak"\nrecipient =', "one of json, slack, discord, ntfy"),
    ("boss.secret", "none.secret", "openssl rand -hex 32"),
    ("boss.secret", "elsewhere", "not a regular file"),
    ("recipient", "recipients", "[webhooks.targets 1] setting='recipients'"),
    ("allow_hosts", "allow_host", "[webhooks] setting='allow_host'"),
    ('["hooks.example.com"]', '"hooks.example.com"', "webhooks.allow_hosts="),
    ("[[webhooks.targets]]", "[webhooks.targets]", "a list"),
    ("recipient =", 'deliveries = ["fast"]\nrecipient =', "urgent, important, sequential"),
    ("recipient =", "deliveries = [[]]\nrecipient =", "urgent, important, sequential"),
    ("recipient =", "deliveries = []\nrecipient =", "urgent, important, sequential"),
    ("recipient =", 'ca_file = "none.pem"\nrecipient =', "No such file"),
    ("recipient =", 'ca_file = "boss.secret"\nrecipient =', "a file of certificates in PEM"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), WRONG)
def test_what_is_wrong_is_said_with_the_file(configure, right, wrong, message):
    """The setting, its value, the allowed values, and the file."""
    path = configure(TARGET.replace(right, wrong, 1))
    with pytest.raises(ConfigurationError) as caught:
        read_targets()
    assert message in str(caught.value)
    assert f"(from {path})" in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_may_read_is_none(configure, tmp_path, mode):
    """A reader of the secret could sign notices."""
    configure(TARGET)
    os.chmod(tmp_path / "boss.secret", mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_targets()


@pytest.mark.parametrize("text", ["", "short\n", " " * 40])
def test_a_secret_that_can_be_guessed_is_none(configure, tmp_path, text):
    """Sixteen bytes are the least."""
    configure(TARGET)
    (tmp_path / "boss.secret").write_text(text)
    with pytest.raises(ConfigurationError, match="at least 16 bytes"):
        read_targets()


def test_a_recipient_has_one_target(configure):
    """Two would share its notices, and each would miss what the other got."""
    second = TARGET[TARGET.index("[[") :]
    configure(TARGET + second)
    with pytest.raises(ConfigurationError, match=r"webhooks\.targets 2 recipient='boss'"):
        read_targets()


SERVE = [sys.executable, "-m", "ultramon", "serve", "--port", "0"]


def test_a_server_with_a_wrong_target_does_not_start(configure, tmp_path):
    """It says why and ends: a server whose notices go nowhere would look like a working one."""
    path = configure(TARGET.replace("https", "http"))
    done = subprocess.run(
        SERVE,
        env=environment(ULTRAMON_CONFIG=str(path), ULTRAMON_STATE_DIR=str(tmp_path / "state")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "https, unless the host is this machine" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "state" / "server.json").exists()


def test_a_running_server_posts(configure, tmp_path):
    """What is queued before it starts, and from another process, arrives."""
    with Receiver().open() as receiver:
        path = configure(
            TARGET.replace("hooks.example.com", receiver.listed).replace("https", "http")
        )
        settings = environment(
            ULTRAMON_CONFIG=str(path), ULTRAMON_STATE_DIR=str(tmp_path / "state")
        )
        code = "import ultramon; ultramon.queue_message('boss', 'the tests are green')"
        subprocess.run([sys.executable, "-c", code], env=settings, check=True)
        with subprocess.Popen(SERVE, env=settings, stderr=subprocess.PIPE) as server:
            try:
                assert b"the tests are green" in receiver.next().body
            finally:
                server.terminate()
                server.communicate(timeout=20)
