"""Notices about agents: who receives which, when, and in which words. Pure rules, no storage."""
