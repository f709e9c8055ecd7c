"""The site over HTTP, for this machine only, updated while it is served."""

from __future__ import annotations

import errno
import sys
import threading
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from core.errors import UserError
from core.text import format_value
from runs import pictures
from runs.pages.site import Site

HOST = "127.0.0.1"
UPDATE_SECONDS = 3.0  # between updates of the pages
SITE_SUFFIXES = {".html", ".js", ".css"}  # of the site
RUN_SUFFIXES = {".png", ".log", ".diff", ".slurm", ".txt"}  # of files in a run folder that pages link to


class Handler(SimpleHTTPRequestHandler):
    """Files of the site and of run folders that pages show; checkpoints and all else stay private."""

    def send_head(self) -> Any:
        # Against DNS rebinding: a page of another site whose name resolves to this machine.
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN)
        if not allowed(Path(self.directory), self.path):
            return self.send_error(HTTPStatus.NOT_FOUND)
        return super().send_head()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def guess_type(self, path: Any) -> str:
        text = Path(path).suffix in RUN_SUFFIXES - {".png"}
        return "text/plain; charset=utf-8" if text else super().guess_type(path)

    def list_directory(self, path: Any) -> Any:
        return self.send_error(HTTPStatus.NOT_FOUND)

    def copyfile(self, source: Any, outputfile: IO[bytes]) -> None:  # type: ignore[override]
        with suppress(ConnectionError):  # the reader left
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: a line for each file would hide what matters."""


def allowed(logs: Path, address: str) -> bool:
    """Whether an address is one of the site's pages, scripts and pictures."""
    parts = [part for part in unquote(urlsplit(address).path).split("/") if part]
    if not parts or parts in (["index.html"], ["compare.html"]):
        return True
    if any(part.startswith(".") for part in parts):
        return False
    file = logs.joinpath(*parts)
    if not file.resolve().is_relative_to(logs.resolve()):
        return False
    if parts[0] == "pages":
        return file.suffix in SITE_SUFFIXES
    if parts[0] == "runs" and len(parts) == 4 and parts[2] == pictures.FOLDER:
        return file.suffix == ".png"
    return parts[0] == "runs" and len(parts) == 3 and file.suffix in RUN_SUFFIXES


def make_server(logs: Path, port: int) -> ThreadingHTTPServer:
    """A server that listens on `port`, or on a free one for 0."""
    try:
        server = ThreadingHTTPServer((HOST, port), partial(Handler, directory=str(logs)))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"--port is {port}: another program listens there; choose another, or 0 for one that is free."
            ) from error
        raise UserError(f"--port is {port}: it cannot be used ({error.strerror}); choose one above 1023.") from error
    server.daemon_threads = True
    return server


def run_server(logs: Path, port: int) -> int:
    """Serve until somebody presses Ctrl-C, and bring the pages up to date meanwhile."""
    server = make_server(logs, port)
    stopped = threading.Event()
    writer = threading.Thread(target=write_repeatedly, args=(Site(logs), stopped), daemon=True)
    writer.start()
    print(f"page  http://{HOST}:{server.server_address[1]}/index.html  (this machine only; Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    finally:
        stopped.set()
        server.server_close()
    return 0


def write_repeatedly(site: Site, stopped: threading.Event) -> None:
    """Write the pages every few seconds; a failure is printed once and tried again."""
    last_error = ""
    while not stopped.is_set():
        try:
            site.write(every=UPDATE_SECONDS)
        except UserError as error:
            if str(error) != last_error:
                print(format_value(str(error)), file=sys.stderr, flush=True)
            last_error = str(error)
        stopped.wait(UPDATE_SECONDS)
