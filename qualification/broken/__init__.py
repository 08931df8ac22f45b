"""Subjects that are broken on purpose: each check is proven on one."""
