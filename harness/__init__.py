"""The harness: processes, stacks, records, the pytest plugin, pages, benchmarks and the console script."""
