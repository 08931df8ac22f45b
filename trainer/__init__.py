"""The trainer: policies, supervised start, evaluation, and audited GRPO through a gym."""
