"""A server that receives the messages of --notify."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

TOKEN = "T0KEN-of-the-hook"


class Hook:
    """A server that records what it is sent. answers: the statuses it gives in turn, the last one for ever; 0 hangs."""

    def __init__(self) -> None:
        self.notices: list[dict[str, Any]] = []
        self.answers = [200]
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                notice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.notices.append({**notice, "path": self.path})
                answer = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
                if not answer:
                    time.sleep(5)
                self.send_response(answer or 200)
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/{TOKEN}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.server.shutdown()
