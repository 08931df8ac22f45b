"""NeMo Gym's own tools over our resources server."""
