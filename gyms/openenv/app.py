"""Entry module of the server process: ``python -m gyms.openenv.app``."""

from pathlib import Path

from gyms import loaded

loaded.install()

from gyms.openenv.launch import forbid_gradio  # noqa: E402  (after install, so that it is recorded)

forbid_gradio()

from gyms.openenv.server import OrdersService, main  # noqa: E402

if __name__ == "__main__":
    loaded.record(Path(__file__))
    main(OrdersService)
