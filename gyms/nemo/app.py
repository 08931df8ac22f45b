"""Entry script in upstream's folder shape: ``resources_servers/german_orders/app.py``."""

from pathlib import Path

from gyms import loaded

loaded.install()

from gyms.nemo.server import GermanOrdersServer, main  # noqa: E402  (after install, so that it is recorded)

if __name__ == "__main__":
    main(GermanOrdersServer, Path(__file__))
