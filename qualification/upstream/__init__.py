"""Drives by the frameworks' own tools."""
