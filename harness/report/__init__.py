"""Pages: one static HTML file per run, made from its manifest and evidence alone; no server, no network."""
