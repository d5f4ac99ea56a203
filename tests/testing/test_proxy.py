"""The network of the tests, where a test or a soak relies on how it fails."""

import socket

import pytest
from helpers.proxy import Proxy


def test_a_network_can_reset_and_half_open_its_connections():
    """A reset is an error for the client; of a half-open connection it learns nothing at first."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = Proxy(listening.getsockname()[1])
        try:
            with (
                socket.create_connection(("127.0.0.1", proxy.port)) as client,
                listening.accept()[0] as server,
            ):
                client.sendall(b"?")
                assert server.recv(1) == b"?"
                proxy.half_open()
                assert server.recv(1) == b""
                client.sendall(b"question")
                client.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    client.recv(1)
                client.settimeout(None)
                proxy.reset_half_open()
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
            with (
                socket.create_connection(("127.0.0.1", proxy.port)) as client,
                listening.accept()[0] as server,
            ):
                client.sendall(b"?")
                assert server.recv(1) == b"?"
                proxy.reset_all()
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
        finally:
            proxy.close()
