"""Servers as processes: start, readiness, log, stop, and a reaper that leaves none behind."""
