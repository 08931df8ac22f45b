"""Entry script in upstream's folder shape: ``resources_servers/german_orders/app.py``."""

from pathlib import Path

from gymqual.gyms import loaded

loaded.install()

from gymqual.gyms.nemo.server import GermanOrdersServer, main  # noqa: E402

if __name__ == "__main__":
    main(GermanOrdersServer, Path(__file__))
