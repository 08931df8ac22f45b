"""Helpers of the checks."""
