"""An HTTP server on the loopback that keeps what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpSink:
    """What was received: the JSON of each body, with ``path``."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.port: int = server.server_port
        self.received: list[dict[str, Any]] = []

    def texts(self, key: str = "title") -> list[str]:
        return [message[key] for message in self.received]


@contextmanager
def http_sink(port: int = 0) -> Iterator[HttpSink]:
    """A sink at a port, by default a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sink.received.append({**json.loads(body), "path": self.path})
            self.send_response(200)
            self.end_headers()
            # What Slack answers.
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        sink = HttpSink(server)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield sink
        server.shutdown()
        thread.join()
