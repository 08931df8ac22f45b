"""Helpers of the NeMo checks."""
