"""OpenEnv's own tools over our environment."""
