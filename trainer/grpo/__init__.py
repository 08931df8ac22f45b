"""GRPO through a gym: trainer, environment, ways to sample, run directory."""
