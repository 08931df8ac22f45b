"""Checks of the Verifiers gym."""
