"""Whether a policy learns through each gym, as a result that is derived again."""
