"""What is written down and read back: manifests, traces, schemas, and files written atomically."""
