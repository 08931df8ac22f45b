"""The German task behind OpenEnv's WebSocket contract, and the bridge through which a trainer reaches it."""
