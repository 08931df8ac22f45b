"""The frozen task core: synthetic German orders, standard library only.

The same bytes run inside every gym's server and in the trainer's replay. Nothing here does I/O,
reads a clock or draws an unseeded random number: a task is a function of its id, an observation
of (task, calls so far), a verdict of (task, calls, answer).

This is a development task, not an upstream benchmark; a score on it says so wherever it is shown.
"""
