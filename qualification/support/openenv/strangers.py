"""What is not the service: bytes that are no frames, and a server of another product."""

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from gymqual.harness.process.server import Server

NO_FRAMES = {
    "a frame without end": b"\xff\xff\xff\xff" + b"x" * 64,
    "bytes that are no JSON": b"\x00\x00\x00\x04\x00\x01\x02\x03",
    "half a frame": b"\x00\x00\x00\x10{",
    "a hello of another protocol": b'\x00\x00\x00\x12{"protocol":"x/1"}',
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


class another_product:  # noqa: N801 - reads as a phrase where it is used
    """A web server that knows nothing of gyms."""

    def __enter__(self) -> str:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
        Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def ends(bridge: Server, sent: bytes) -> bool:
    """Send bytes to the bridge and no more; return whether it ends the connection."""
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=30) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(65536):
                pass
        except OSError as error:
            return not isinstance(error, TimeoutError)
        return True
