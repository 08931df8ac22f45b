"""Tiny servers and throw-away projects."""
