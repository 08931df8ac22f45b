"""What examines the product itself."""
