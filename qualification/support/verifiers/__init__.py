"""Helpers of the Verifiers checks."""
