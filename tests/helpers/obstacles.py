"""Puts things in the way of files that are read or written, as an attacker or accident would."""

import os
import socket


def plant(kind, path, victim):
    """Put something at a path that is no regular file of its own; links lead to the victim."""
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "link in a circle":
        path.symlink_to(path)
    elif kind == "link to nowhere":
        path.symlink_to(victim.with_name("nowhere"))
    elif kind == "hard link":
        path.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir(mode=0o700)
    elif kind == "socket":
        # A socket's whole path may be too long for the system.
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    else:
        assert kind == "device"
        path.symlink_to("/dev/zero")
