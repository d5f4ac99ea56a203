"""A process that answers hook calls over a Unix socket, so that a call need not load ultramon.

Standard library only. One resident for each state directory; it runs the code of
`ultramon.hosts.calls.handling` on the same files. Nothing depends on it: a call that gets no
answer is handled by its own process, as without a resident.
"""
