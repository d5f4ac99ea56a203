"""The URL of a database: the driver's part, ultramon's options, and the URL without password."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from ultramon.errors import ConfigurationError

SCHEMES = ("postgresql", "postgres")
DEFAULT_SCHEMA = "ultramon"
CONNECT_SECONDS = 3
_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")
_SCHEMA_PARAMETER = "schema"
# PostgreSQL keeps names that begin with pg_ for itself.
_SCHEMA_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_HOST_AND_PORT = re.compile(r"(\[[^]]*\]|[^:]*)(?::[0-9]*)?")
_SECRETS = ("password", "sslpassword")
_SOMEWHERE = "wherever the service is"
_HIDDEN = "postgresql://…"
_ALLOWED = (
    "postgresql://user:password@host:port/database?name=value, with / ? # @ : % in user and"
    " password written as %2F %3F %23 %40 %3A %25"
)
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_DEFAULTS = {
    "application_name": "ultramon",
    "connect_timeout": str(CONNECT_SECONDS),
    # Without these a statement would wait for minutes behind a cut cable.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}


class Address(NamedTuple):
    """Where a store is."""

    conninfo: str
    """The URL for the driver, password included."""
    shown: str
    """The URL without its password."""
    schema: str
    """The schema that holds the tables."""

    def sql(self, statement: str) -> str:
        """Return a statement with ``ultramon.`` replaced by the schema.

        One that serves SQLite too has ``main.`` in its place, and ``?`` for its values.
        """
        if "main." in statement:
            statement = statement.replace("main.", "ultramon.").replace("?", "%s")
        return statement.replace("ultramon.", f'"{self.schema}".')


def parse_address(url: str, source: str = "argument") -> Address:
    """Parse the URL of a database.

    Connections to other machines are encrypted and their server's certificate is checked
    (``sslmode=verify-full``), unless the URL says otherwise.

    Args:
        url: ``postgresql://user@host:5432/database?schema=ultramon``; everything that libpq
            understands may stand behind the question mark, ``schema`` is ultramon's.
        source: Where it comes from, for errors.

    Raises:
        ConfigurationError: It is no such URL, or names no possible schema.
    """
    try:
        parts = urlsplit(url)
        hosts = _hosts(parts.netloc)
        given = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
        if parts.scheme not in SCHEMES or parts.fragment or "@" in parts.path:
            raise ValueError("not the URL of a database")
    except ValueError as error:
        raise ConfigurationError("backend", _HIDDEN, _ALLOWED, source) from error
    schema = given.pop(_SCHEMA_PARAMETER, DEFAULT_SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema):
        allowed = "1 to 63 of a-z 0-9 _, a letter or _ first, not pg_ first"
        raise ConfigurationError("schema", schema, allowed, source)
    shown_query = {key: value for key, value in given.items() if key not in _SECRETS}
    if schema != DEFAULT_SCHEMA:
        shown_query[_SCHEMA_PARAMETER] = schema
    settings = {**_DEFAULTS, **given}
    if not all(map(_is_here, _all_hosts(hosts, given))):
        settings.setdefault("sslmode", os.environ.get("PGSSLMODE") or "verify-full")
        if settings["sslmode"] == "verify-full" and "PGSSLROOTCERT" not in os.environ:
            settings.setdefault("sslrootcert", _system_authorities())
    location = parts.netloc
    if parts.password is not None:
        user = quote(unquote(parts.username or ""), safe="")
        location = f"{user}:…@{location.rpartition('@')[2]}"
    return Address(
        _url(parts.netloc, parts.path, settings), _url(location, parts.path, shown_query), schema
    )


def _hosts(location: str) -> list[str]:
    """Return the hosts of a URL, which may name several.

    Raises:
        ValueError: A port is no number: a part of a password, more likely.
    """
    hosts = []
    for one in location.rpartition("@")[2].split(","):
        found = _HOST_AND_PORT.fullmatch(one)
        if found is None:
            raise ValueError("not a host and a port")
        hosts.append(unquote(found[1]).strip("[]"))
    return hosts


def _all_hosts(hosts: list[str], given: dict[str, str]) -> list[str]:
    """Return every host that libpq may connect to."""
    if "host" in given:
        hosts = given["host"].split(",")
    elif hosts == [""]:
        hosts = os.environ.get("PGHOST", "").split(",")
    addresses = given.get("hostaddr") or os.environ.get("PGHOSTADDR", "")
    return [*hosts, *addresses.split(","), *([_SOMEWHERE] if "service" in given else [])]


def _is_here(host: str) -> bool:
    # A path is that of a Unix socket, and a name with @ that of an abstract one.
    return host in _LOOPBACK or host.startswith(("/", "@"))


def _url(location: str, path: str, settings: dict[str, str]) -> str:
    # libpq takes a plus sign for one, not for a space.
    query = urlencode(settings, quote_via=quote)
    return f"postgresql://{location}{path}{'?' if query else ''}{query}"


def _system_authorities() -> str:
    """Return the file with the authorities that this system trusts.

    The driver's own idea of them, ``system``, is that of the OpenSSL it brings along, which looks
    in a directory that no system has.
    """
    import ssl

    found = ssl.get_default_verify_paths().cafile
    return found or next((path for path in _AUTHORITIES if os.path.exists(path)), "system")
