"""A local stand-in for the Hugging Face hub: repositories, revisions and large files over HTTP, in memory.

It answers what ``huggingface_hub`` asks (routes and fields as of version 2.4), so the client of the tests is the real
one. Files above 1 kB go through the LFS batch route. A private repository needs the token.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

__all__ = ["TOKEN", "Hub", "Repository", "connect", "hub_server"]

TOKEN = "hf_standin"
LARGE = 1000
"""Bytes from which a file is uploaded as a large one."""


@dataclass
class Repository:
    """Commits, the newest last; each is a whole tree."""

    private: bool
    commits: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list)
    """(commit, message, path -> content)"""

    def commit(self, message: str, files: dict[str, bytes]) -> str:
        """Add a commit of a whole tree; returns its id."""
        sha = hashlib.sha1(f"{len(self.commits)}{message}{sorted(files)}".encode()).hexdigest()
        self.commits.append((sha, message, dict(files)))
        return sha

    def tree(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """(commit, files) of ``main`` or a commit."""
        for sha, _, files in reversed(self.commits):
            if revision in ("main", sha):
                return sha, files
        return None


class Hub:
    """State of the server; ``fails`` gives the status that a request is answered with, or None to serve it."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        """``models/NAME/REPO`` or ``datasets/NAME/REPO``."""
        self.large: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.fails: Callable[[str, str], int | None] = lambda method, path: None
        self.endpoint = ""

    def repository(self, name: str, kind: str = "models", *, private: bool = False) -> Repository:
        """A repository, made if it is not there."""
        repository = self.repositories.setdefault(f"{kind}/{name}", Repository(private))
        if not repository.commits:
            repository.commit("initial commit", {".gitattributes": b""})
        return repository


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body, path = self.rfile.read(size), unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        if (status := self.hub.fails(self.command, path)) is not None:
            return self._answer(status, {"error": "injected"})
        for method, pattern, answer in _ROUTES:
            if self.command in method and (match := re.fullmatch(pattern, path)) is not None:
                return answer(self, body, **match.groupdict())
        return self._answer(404, {"error": f"no route {self.command} {path}"})

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 (the names that http.server calls)

    def _answer(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _found(self, kind: str, name: str, revision: str = "main") -> tuple[str, dict[str, bytes]] | None:
        """(commit, files), or None after an answer that says what is missing."""
        repository = self.hub.repositories.get(f"{kind}/{name}")
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.private and not known):
            return self._answer(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        if (tree := repository.tree(revision)) is None:
            return self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        return tree

    def create(self, body: bytes) -> None:
        request = json.loads(body)
        name = f"{request.get('organization') or 'me'}/{request['name']}"
        key = f"{request.get('type', 'model')}s/{name}"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid username or password."})
        status = 409 if key in self.hub.repositories else 200
        if status == 200:
            private = request.get("private") or request.get("visibility") == "private"
            self.hub.repository(name, key.partition("/")[0], private=bool(private))
        return self._answer(status, {"url": f"{self.hub.endpoint}/{name}", "name": name, "id": name})

    def info(self, body: bytes, kind: str, name: str, revision: str = "main") -> None:
        if (tree := self._found(kind, name, revision)) is not None:
            private = self.hub.repositories[f"{kind}/{name}"].private
            siblings = [{"rfilename": path, "size": len(data)} for path, data in tree[1].items()]
            about = {"id": name, "sha": tree[0], "private": private, "siblings": siblings, "tags": [], "gated": False,
                     "disabled": False, "downloads": 0, "likes": 0, "lastModified": "2026-01-01T00:00:00.000Z",
                     "createdAt": "2026-01-01T00:00:00.000Z"}  # fmt: skip
            self._answer(200, about)

    def files(self, body: bytes, kind: str, name: str, revision: str, folder: str | None = None) -> None:
        if (tree := self._found(kind, name, revision)) is not None:
            inside = f"{folder}/" if folder else ""
            files = {p: data for p, data in tree[1].items() if p.startswith(inside)}
            below = {inside + p.removeprefix(inside).split("/")[0] for p in files if "/" in p.removeprefix(inside)}
            if "recursive=true" in self.path.lower():
                listed, below = files, {str(parent) for p in files for parent in Path(p).parents if str(parent) != "."}
            else:
                listed = {p: data for p, data in files.items() if "/" not in p.removeprefix(inside)}
            folders = [{"type": "directory", "path": p, "oid": "0" * 40, "size": 0} for p in sorted(below)]
            self._answer(200, [*folders, *(_entry(p, data) for p, data in listed.items())])

    def paths(self, body: bytes, kind: str, name: str, revision: str) -> None:
        if (tree := self._found(kind, name, revision)) is not None:
            requested = json.loads(body)["paths"] if body.startswith(b"{") else []
            self._answer(200, [_entry(p, tree[1][p]) for p in requested if p in tree[1]])

    def modes(self, body: bytes, kind: str, name: str, revision: str) -> None:
        files = [
            {
                "path": f["path"],
                "uploadMode": "lfs" if f["size"] >= LARGE else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for f in json.loads(body)["files"]
        ]
        self._answer(200, {"files": files})

    def batch(self, body: bytes, name: str) -> None:
        def action(item: dict[str, Any]) -> dict[str, Any]:
            at = f"{self.hub.endpoint}/lfs/{item['oid']}"
            there = item["oid"] in self.hub.large
            return item if there else item | {"actions": {"upload": {"href": at}, "verify": {"href": at}}}

        objects = [action({"oid": o["oid"], "size": o["size"]}) for o in json.loads(body)["objects"]]
        self._answer(200, {"transfer": "basic", "objects": objects})

    def store(self, body: bytes, oid: str) -> None:
        if self.command == "PUT":
            assert hashlib.sha256(body).hexdigest() == oid
            self.hub.large[oid] = body
        self._answer(200, {})

    def commit(self, body: bytes, kind: str, name: str, revision: str) -> None:
        if (tree := self._found(kind, name)) is None:
            return
        files, message = dict(tree[1]), ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise AssertionError(line)
        sha = self.hub.repositories[f"{kind}/{name}"].commit(message, files)
        url = f"{self.hub.endpoint}/{name}/commit/{sha}"
        self._answer(200, {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def content(self, body: bytes, name: str, revision: str, path: str, kind: str | None = None) -> None:
        if (tree := self._found(kind or "models", name, revision)) is None:
            return None
        if path not in tree[1]:
            return self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=tree[0])
        data = tree[1][path]
        return self._answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=tree[0])

    def yaml(self, body: bytes) -> None:
        """Validation of a model card."""
        self._answer(200, {"errors": [], "warnings": []})


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


_NAME, _KIND = r"(?P<name>[\w.-]+/[\w.-]+)", r"(?P<kind>models|datasets)"
_ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", r"/api/repos/create", _Handler.create),
    ("POST", r"/api/validate-yaml", _Handler.yaml),
    ("GET", rf"/api/{_KIND}/{_NAME}", _Handler.info),
    ("GET", rf"/api/{_KIND}/{_NAME}/revision/(?P<revision>[^/]+)", _Handler.info),
    ("GET", rf"/api/{_KIND}/{_NAME}/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?", _Handler.files),
    ("POST", rf"/api/{_KIND}/{_NAME}/paths-info/(?P<revision>[^/]+)", _Handler.paths),
    ("POST", rf"/api/{_KIND}/{_NAME}/preupload/(?P<revision>[^/]+)", _Handler.modes),
    ("POST", rf"/api/{_KIND}/{_NAME}/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT POST", r"/lfs/(?P<oid>[0-9a-f]{64})", _Handler.store),
    ("GET HEAD", rf"/((?P<kind>datasets)/)?{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.content),
]


def connect(hub: Hub, home: Path, patch: pytest.MonkeyPatch) -> None:
    """Let ``huggingface_hub`` of this process, and of its children, talk to a hub."""
    from huggingface_hub import constants

    changed = {"ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True, "HF_HOME": str(home),
               "HF_HUB_CACHE": str(home / "hub"),
               "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"}  # fmt: skip
    for name, value in changed.items():
        patch.setattr(constants, name, value)
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN,
                   "HF_HOME": str(home)}  # fmt: skip
    for name, value in environment.items():
        patch.setenv(name, value)


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    """A hub that runs until the context ends; ``endpoint`` is its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
