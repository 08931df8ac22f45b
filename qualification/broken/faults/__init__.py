"""Trainers with one bug each, by what they get wrong; ``qualification.broken.trainers`` puts them together."""
