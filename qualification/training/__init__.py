"""Checks of policies and training."""
