"""The pytest plugin: registry of checks, selection, outcomes, evidence, and the manifest of a run."""
