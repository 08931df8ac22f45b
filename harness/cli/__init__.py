"""The machinery of the console script; the top floor registers its commands."""
