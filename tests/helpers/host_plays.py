"""Recorded runs of the six built-in hosts, as `ultramon.testing.HostContract` plays them."""

from __future__ import annotations
