"""Entry module of the server process: ``python -m gymqual.gyms.openenv.app``."""

from pathlib import Path

from gymqual.gyms import loaded

loaded.install()

from gymqual.gyms.openenv.launch import forbid_gradio  # noqa: E402

forbid_gradio()

from gymqual.gyms.openenv.server import OrdersService, main  # noqa: E402

if __name__ == "__main__":
    loaded.record(Path(__file__))
    main(OrdersService)
