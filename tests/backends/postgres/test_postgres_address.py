"""The URL of a database: what the driver gets, what is shown, what is refused, what is checked."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess

import pytest
from helpers.postgres_server import Server
from helpers.program import run_process as run
from helpers.requirements import NOBODY, require_tool
from psycopg.conninfo import conninfo_to_dict

from ultramon.backends.opening import open_backend
from ultramon.backends.postgres.connection.address import parse_address
from ultramon.errors import ConfigurationError

HERE = {
    "no host": "postgresql:///db",
    "a name": "postgresql://me@localhost/db",
    "an address": "postgresql://me@127.0.0.1:5433/db",
    "IPv6": "postgresql://me@[::1]:5433/db",
    "a socket in the query": "postgresql:///db?host=/run/postgresql",
    "a socket in front": "postgresql://%2Frun%2Fpostgresql/db",
    "an abstract socket": "postgresql:///db?host=@postgresql",
}
ELSEWHERE = {
    "a name": "postgresql://me@db.example.com/db",
    "the other scheme": "postgres://me@db.example.com/db",
    "an address": "postgresql://me@192.0.2.7:5433/db",
    "IPv6": "postgresql://me@[2001:db8::7]:5433/db",
    "the second of two": "postgresql://me@localhost:5432,db.example.com:5433/db",
    "in the query": "postgresql:///db?host=db.example.com",
    "the address of a name from here": "postgresql://me@localhost/db?hostaddr=192.0.2.7",
    "a service": "postgresql:///?service=fleet",
}


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch):
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSSLROOTCERT"):
        monkeypatch.delenv(name, raising=False)


def settings(url):
    return conninfo_to_dict(parse_address(url).conninfo)


@pytest.mark.parametrize("url", HERE.values(), ids=HERE)
def test_a_connection_within_this_machine_needs_no_certificate(url):
    """Its own sockets are read by nobody else."""
    assert "sslmode" not in settings(url)


@pytest.mark.parametrize("url", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_connection_to_another_host_proves_whom_it_reaches(url):
    """Encrypted, and the certificate and its name are checked, against the system's authorities."""
    given = settings(url)
    assert given["sslmode"] == "verify-full"
    assert given["sslrootcert"]


def test_the_environment_of_the_driver_counts(monkeypatch):
    """It may name the host, and how much to check."""
    monkeypatch.setenv("PGHOST", "db.example.com")
    assert settings("postgresql:///db")["sslmode"] == "verify-full"
    assert "sslmode" not in settings("postgresql://localhost/db")
    monkeypatch.setenv("PGSSLROOTCERT", "/etc/our-authority.pem")
    assert "sslrootcert" not in settings("postgresql:///db")
    monkeypatch.setenv("PGSSLMODE", "require")
    assert settings("postgresql:///db")["sslmode"] == "require"


def test_what_the_url_says_is_not_overruled():
    """Everything that libpq understands may stand behind the question mark."""
    url = "postgresql://me@db.example.com/db?sslmode=require&connect_timeout=9&options=-c%20a%3Db"
    given = settings(url)
    assert (given["sslmode"], given["connect_timeout"], given["options"]) == (
        "require",
        "9",
        "-c a=b",
    )
    assert "sslrootcert" not in given
    assert given["application_name"] == "ultramon"
    assert given["tcp_user_timeout"] == "5000"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db.example.com/db", "postgresql://me:…@db.example.com/db"),
        ("postgres://me@db.example.com:5433/db", "postgresql://me@db.example.com:5433/db"),
        ("postgresql://:secret@localhost/db", "postgresql://:…@localhost/db"),
        ("postgresql://me:se%40cret%2F@localhost/db", "postgresql://me:…@localhost/db"),
        ("postgresql://localhost/db?password=secret", "postgresql://localhost/db"),
        ("postgresql://localhost/db?sslpassword=secret", "postgresql://localhost/db"),
        ("postgresql://localhost/db?schema=mine", "postgresql://localhost/db?schema=mine"),
        ("postgresql://localhost/db?schema=ultramon", "postgresql://localhost/db"),
    ],
)
def test_a_password_is_never_shown(url, shown):
    """The driver gets it all the same."""
    address = parse_address(url)
    assert address.shown == shown
    assert "secret" not in address.shown
    if "secret" in url:
        assert "secret" in address.conninfo


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sec#ret@localhost/db",
        "postgresql://me:sec?ret@localhost/db",
        "postgresql://me:sec/ret@localhost/db",
        "postgresql://me:5432/secret@localhost/db",
        "postgresql://me:5432?secret@localhost/db",
        "postgresql://me@[::1/db",
        "postgresql://me@localhost/db?secret",
        "postgresql+psycopg://me:secret@localhost/db",
        "mysql://me:secret@localhost/db",
    ],
)
def test_what_is_no_url_of_a_database_is_refused_without_telling_a_password(url):
    """A password whose signs were not written as %.. ends in the wrong part of the URL."""
    with pytest.raises(ConfigurationError) as caught:
        open_backend(url)
    said = str(caught.value)
    assert "ret" not in said
    assert "postgresql://user" in said
    assert str(pickle.loads(pickle.dumps(caught.value))) == said


@pytest.mark.parametrize("schema", ["", "Mine", "1st", "a-b", 'a"b', "pg_mine", "x" * 64])
def test_a_schema_has_a_plain_name(schema):
    """It is written into statements and names a channel."""
    with pytest.raises(ConfigurationError, match="schema="):
        parse_address(f"postgresql://localhost/db?schema={schema}", "--backend")


def test_a_statement_of_both_databases_is_understood():
    """Its tables lie in the schema of the store, and its values are the driver's placeholders."""
    address = parse_address("postgresql://user@/database?schema=other")
    shared = "UPDATE main.messages SET state = ? WHERE id = ?"
    assert address.sql(shared) == 'UPDATE "other".messages SET state = %s WHERE id = %s'
    assert address.sql("SELECT '?' FROM ultramon.meta") == "SELECT '?' FROM \"other\".meta"


def test_the_schema_is_ours_and_not_the_drivers():
    """The driver would refuse a word that it does not know."""
    address = parse_address("postgresql://localhost/db?schema=mine")
    assert address.schema == "mine"
    assert "schema" not in address.conninfo


@pytest.fixture
def encrypted(tmp_path):
    """A server that takes encrypted connections only, under an address that is not loopback's."""
    openssl = require_tool("openssl")
    server = Server(listen="127.0.0.2", ssl="on", ssl_cert_file="own.pem", ssl_key_file="own.key")
    command = (
        f"req -x509 -newkey rsa:2048 -nodes -keyout {server.data}/own.key -days 2 -subj /CN=own"
        f" -out {server.data}/own.pem -addext subjectAltName=IP:127.0.0.2"
    )
    subprocess.run([openssl, *command.split()], check=True, capture_output=True)
    for name in ("own.key", "own.pem"):
        shutil.copy(server.data / name, tmp_path / name)
        (server.data / name).chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(server.data / name, NOBODY, NOBODY)
    (server.data / "pg_hba.conf").write_text("hostssl all all 127.0.0.0/8 trust\n")
    server.start()
    yield server.url(host="127.0.0.2").replace("&sslmode=disable", ""), str(tmp_path / "own.pem")
    server.remove()


def test_other_hosts_are_encrypted_and_checked(encrypted):
    """By the authorities of the system, or those that URL or environment name; never unchecked."""
    url, authorities = encrypted
    done = run("backend", "check", url)
    assert done.returncode == 1
    assert "certificate verify failed" in done.stdout
    assert "sslrootcert=/path/to/ca.pem" in done.stdout
    checked = "encryption: TLS, the server's certificate is checked"
    for given, changes in (
        (f"{url}&sslrootcert={authorities}", {}),
        (url, {"SSL_CERT_FILE": authorities}),
        (url, {"PGSSLROOTCERT": authorities}),
    ):
        assert checked in run("backend", "check", given, **changes).stdout
    unchecked = run("backend", "check", f"{url}&sslmode=require").stdout
    assert "warning  encryption: sslmode=require" in unchecked
