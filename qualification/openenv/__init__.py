"""OpenEnv: the native WebSocket server, the bridge and its client, and what their losses become."""
