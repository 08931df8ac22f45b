"""Documented checks of the NeMo Gym service and its client."""
