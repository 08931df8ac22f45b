"""One static HTML page per run, made from its manifest and evidence alone: no server, no network, one file."""
