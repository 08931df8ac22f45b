"""Helpers of the OpenEnv checks."""
