"""Small changes of the product, and whether its checks notice: a seeded sample, each survivor killed or explained."""
