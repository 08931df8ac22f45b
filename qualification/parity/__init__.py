"""Checks that verify the gyms against each other."""
