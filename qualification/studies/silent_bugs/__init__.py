"""The silent-bug table: which evidence catches which planted bug, and whether a clean trainer is ever accused."""
