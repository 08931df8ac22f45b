"""Benchmarks, as ratios against a reference that is measured beside the subject."""
