"""A stand-in of the Hugging Face hub: the paths, headers and error codes that its clients ask for, over small files.

The clients are the real ones, in a process of their own: they read HF_ENDPOINT once, at import.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
PATH = re.compile(
    r"/(?P<api>api/)?(?P<kind>datasets/|models/)?(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:/(?P<what>resolve|revision|tree|paths-info)/(?P<rev>refs/convert/\w+|[^/]+)(?:/(?P<path>.*))?)?"
)


def commit_of(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Repository:
    """files: by path, those of `main`. refs: other named states. gated: only with the token."""

    files: Mapping[str, bytes]
    refs: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    gated: bool = False

    def state(self, name: str, revision: str) -> tuple[str, Mapping[str, bytes]] | None:
        """The commit and the files that a revision stands for; any full commit but those of refs is that of main."""
        states = {"main": self.files, **self.refs}
        for ref, files in states.items():
            if revision in (ref, commit_of(f"{name} {ref}")):
                return commit_of(f"{name} {ref}"), files
        return (revision, self.files) if re.fullmatch(r"[0-9a-f]{40}", revision) else None


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does."""

    protocol_version = "HTTP/1.1"
    repositories: Mapping[str, Repository] = {}
    broken: str = ""  # a part of the paths of files that break off when they are read

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(status, X_Error_Code=code, X_Error_Message=message)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.query = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/":
            return self.answer(200)
        match = PATH.fullmatch(path)
        repository = match and self.repositories.get((match["kind"] or "").replace("models/", "") + match["repo"])
        if match is None or repository is None:
            return self.refuse(401, "RepoNotFound", "Repository not found")
        state = repository.state(match["repo"], match["rev"] or "main")
        if state is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {match['rev']}")
        commit, files = state
        if match["what"] == "resolve":
            return self.resolve(repository, match["repo"], commit, files, match["path"])
        folders = {str(folder) for name in files for folder in Path(name).parents} - {"."}
        sizes = [("file", name, len(data)) for name, data in files.items()] + [("directory", n, 0) for n in folders]
        entries: list[dict[str, Any]] = [
            {"type": kind, "path": name, "size": size, "oid": commit_of(name)} for kind, name, size in sizes
        ]
        if match["what"] == "tree":
            below = [one for one in entries if not match["path"] or one["path"].startswith(match["path"] + "/")]
            if "recursive=true" not in self.path.lower():
                below = [one for one in below if str(Path(one["path"]).parent) == (match["path"] or ".")]
            return self.answer_json(below) if below else self.refuse(404, "EntryNotFound", "not found")
        if match["what"] == "paths-info":
            return self.answer_json([one for one in entries if one["path"] in self.query["paths"]])
        facts = {"id": match["repo"], "sha": commit, "private": False, "gated": "manual" if repository.gated else False}
        return self.answer_json(
            {**facts, "tags": [], "downloads": 0, "likes": 0, "siblings": [{"rfilename": n} for n in files]}
        )

    def resolve(self, repository: Repository, name: str, commit: str, files: Mapping[str, bytes], path: str) -> None:
        if repository.gated and not self.headers.get("Authorization"):
            return self.refuse(401, "GatedRepo", f"Access to {name} is restricted. Please log in.")
        if path not in files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        data = files[path]
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        if self.broken and self.broken in path and self.command == "GET":
            return self.answer(403)  # which the clients do not try again
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span is None or self.command == "HEAD":
            return self.answer(200, data, **headers)
        first, last = int(span[1]), min(int(span[2] or len(data) - 1), len(data) - 1)
        headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.answer(206, data[first : last + 1], **headers)


@contextmanager
def served(repositories: Mapping[str, Repository], broken: str = "") -> Iterator[str]:
    """The address of a hub that has these; a dataset's name begins with datasets/, a model's does not."""
    handler = type("Handler", (Handler,), {"repositories": repositories, "broken": broken})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def ask(code: str, endpoint: str, home: Path, **environment: str) -> Any:
    """What a process that talks to this hub returns from `answer()`, which `code` defines; home is its HF_HOME."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    program = f"{code}\nimport json\nprint('\\n' + json.dumps(answer()))\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=own, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
