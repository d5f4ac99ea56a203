"""Recordings of agents on the disk: found, recognised, read and summed up; never written."""
