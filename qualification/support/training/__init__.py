"""Helpers of the training checks."""
