"""How arguments travel that no Python call can hold."""

AS_WRITTEN = "\0as written"
"""Name under which arguments that are no JSON object are passed through a Python call, as the model wrote them."""
