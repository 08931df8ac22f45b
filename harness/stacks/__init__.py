"""One isolated, locked environment per gym, and what is started from it."""
