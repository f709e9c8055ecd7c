"""As much of a W&B server as its client needs to upload a run and to resume it; keeps what it is sent."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HISTORY, CONSOLE, SUMMARY, EVENTS = "wandb-history.jsonl", "output.log", "wandb-summary.json", "wandb-events.jsonl"
OWNER = {"id": "1", "name": "me"}


class Page:
    """One run: its streams as {line number: line}, the names of its files and artifacts."""

    def __init__(self) -> None:
        self.streams: dict[str, dict[int, str]] = {}
        self.files: list[str] = []
        self.artifacts: list[str] = []
        self.config: dict[str, Any] = {}
        self.exit_code: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        lines = self.streams.get(HISTORY, {})
        return [json.loads(lines[number]) for number in sorted(lines)]

    @property
    def steps(self) -> list[int]:
        return [row["_step"] for row in self.history]

    @property
    def summary(self) -> dict[str, Any]:
        lines = self.streams.get(SUMMARY, {})
        return dict(json.loads(lines[max(lines)])) if lines else {}

    @property
    def console(self) -> str:
        lines = self.streams.get(CONSOLE, {})
        return "\n".join(lines[number] for number in sorted(lines))

    def resume_status(self, name: str) -> dict[str, Any]:
        def count(stream: str) -> int:
            return len(self.streams.get(stream, {}))

        def tail(stream: str) -> str:
            lines = self.streams.get(stream, {})
            return json.dumps([lines[max(lines)]] if lines else [])

        summary = self.streams.get(SUMMARY, {})
        counts = {"logLineCount": CONSOLE, "historyLineCount": HISTORY, "eventsLineCount": EVENTS}
        return {
            **{"id": "1", "name": name, "displayName": name, "tags": [], "notes": None, "config": "{}"},
            **{key: count(stream) for key, stream in counts.items()},
            **{"historyTail": tail(HISTORY), "eventsTail": tail(EVENTS)},
            "summaryMetrics": summary[max(summary)] if summary else "{}",
            "wandbConfig": json.dumps({"t": {"1": [1]}}),  # what tells the client that the run once began
        }


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, Page] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up as they please."""

    def answer(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        run = values.get("name") or values.get("run") or ""
        if name == "RunResumeStatus":
            page = self.pages.get(run)
            return {"model": {"id": "1", "name": "p", "entity": OWNER, "bucket": page and page.resume_status(run)}}
        if name == "UpsertBucket":
            inserted = run not in self.pages
            page = self.pages.setdefault(run, Page())
            page.config |= {key: item["value"] for key, item in json.loads(values.get("config") or "{}").items()}
            project = {"id": "1", "name": values.get("project") or "p", "entity": OWNER}
            shown = {"id": "1", "name": run, "displayName": run, "config": "{}", "historyLineCount": 0}
            return {"upsertBucket": {"bucket": {**shown, "project": project}, "inserted": inserted}}
        if name == "CreateRunFiles":
            self.pages[run].files += values["files"]
            files = [{"name": file, "uploadUrl": f"{self.url}/upload/{file}"} for file in values["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        if name == "CreateArtifact":
            artifact = values["input"]
            names = [f"{alias['artifactCollectionName']}:{alias['alias']}" for alias in artifact["aliases"]]
            self.pages[artifact["runName"]].artifacts += names
            sequence = {"id": "1", "latestArtifact": None}
            return {"createArtifact": {"artifact": {"id": "1", "state": "COMMITTED", "artifactSequence": sequence}}}
        if name == "ArtifactType":
            return {"project": None}
        return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *words: Any) -> None:
        """Tests are quiet."""

    def body(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

    def reply(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self.reply({})

    def do_PUT(self) -> None:
        self.body()
        self.reply({})

    def do_POST(self) -> None:
        content = self.body()
        if self.path.endswith("/graphql"):
            request = json.loads(content)
            name = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
            self.reply({"data": self.server.answer(name[1] if name else "", request.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            sent = json.loads(content)
            page = self.server.pages[self.path.split("/")[-2]]
            for stream, chunk in (sent.get("files") or {}).items():
                numbered = enumerate(chunk["content"], chunk["offset"])
                page.streams.setdefault(stream, {}).update(numbered)
            page.exit_code = sent.get("exitcode", page.exit_code)
            self.reply({"exitcode": None, "limits": {}})
        else:
            self.reply({})


@contextmanager
def wandb_server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
