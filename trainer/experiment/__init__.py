"""A matched experiment: one training through several gyms, frozen, carried out and reported."""
