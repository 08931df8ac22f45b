"""A server that is hard to clean up after: it leaves a daemon, and can be deaf, mute, ill or a liar.

Run as ``tiny_server.py PORT BEHAVIOUR``. Before it serves it forks a daemon with a session and a listening port
of its own. Every GET is answered with who it is and how many connections it took before this one.
"""

import sys

if __name__ == "__main__":
    # Before the imports, so that a check with a short limit finds it in the log on a busy machine, too.
    print(f"tiny server, {sys.argv[2]}, about to start", flush=True)

import json
import os
import signal
import socket
import time
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, NoReturn

RUN_VARIABLE = "GYMQUAL_RUN"
LOOPBACK = "127.0.0.1"
LIFE_S = 300
"""Neither server nor daemon lives longer, even where a check finds that nobody ends them."""


class TinyServer(TCPServer):
    """Counts the connections it takes."""

    allow_reuse_address = True
    connections = 0
    identity: dict[str, Any]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection."""
        taken = super().get_request()
        self.connections += 1
        return taken


class Identify(BaseHTTPRequestHandler):
    """Answers every GET with the server's identity."""

    server: TinyServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        """Answer."""
        body = json.dumps({**self.server.identity, "connections_before": self.server.connections - 1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def leave_daemon() -> dict[str, int]:
    """Fork twice, as daemons do, and return the grandchild's pid and port."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _be_daemon(writing)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return json.load(pipe)


def _be_daemon(writing: int) -> NoReturn:
    signal.alarm(LIFE_S)
    os.chdir("/")
    listener = socket.create_server((LOOPBACK, 0))
    os.write(writing, json.dumps({"pid": os.getpid(), "port": listener.getsockname()[1]}).encode())
    os.close(writing)
    for standard in range(3):
        os.close(standard)
    while True:
        signal.pause()


def serve(port: int, behaviour: str) -> None:
    """Serve until killed; ``behaviour`` is polite, deaf, ill, mute or liar."""
    signal.alarm(LIFE_S)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    daemon = leave_daemon()
    if behaviour == "ill":
        sys.exit("the order book is missing")
    if behaviour == "mute":
        time.sleep(LIFE_S)
    with TinyServer((LOOPBACK, port), Identify) as server:
        nonce = "0" * 32 if behaviour == "liar" else os.environ[RUN_VARIABLE]
        server.identity = {"nonce": nonce, "pid": os.getpid(), "daemon": daemon}
        server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
