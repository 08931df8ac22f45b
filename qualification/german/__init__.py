"""Tables and oracles of the German task checks."""
