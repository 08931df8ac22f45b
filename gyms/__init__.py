"""The gyms under qualification, and the frozen task they all carry."""
