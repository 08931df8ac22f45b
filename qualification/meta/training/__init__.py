"""What examines the trainer, its records, its experiments and its pages."""
