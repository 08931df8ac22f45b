"""The harness: owns processes, isolated stacks, evidence, manifests and reports."""

__version__ = "0.1.0"
