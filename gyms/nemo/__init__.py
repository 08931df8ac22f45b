"""The German task behind NVIDIA NeMo Gym's resources-server contract."""
