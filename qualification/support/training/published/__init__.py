"""TRL's published examples of agents, written anew for a small local model: trainers that know nothing of the audit."""
