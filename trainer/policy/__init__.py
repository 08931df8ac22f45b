"""Policies: the embedded ones, how they are loaded, and how they were trained."""
