"""What every training run is made of: configuration, manifest, checkpoints, processes, tensors."""
