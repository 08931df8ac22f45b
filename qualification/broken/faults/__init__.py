"""Trainers with one bug each, by what they get wrong; ``gymqual.qualification.broken.trainers`` puts them together."""

STEPS = 4
"""Optimizer steps within which a bug must be found."""
