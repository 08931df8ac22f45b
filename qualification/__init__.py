"""The documented checks: file = property, test = sentence, docstring = the MUST."""
