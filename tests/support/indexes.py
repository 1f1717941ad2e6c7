"""Package indexes on loopback: one for pip in the form of PEP 503, one for npm."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Index:
    """What it serves, and what it was asked for."""

    def __init__(self, port: int) -> None:
        self.place = f"127.0.0.1:{port}"
        self.url = f"http://{self.place}"
        self.files: dict[str, tuple[str, bytes]] = {}  # path -> kind, content
        self.asked: list[str] = []

    def add_wheel(self, name: str, body: str) -> None:
        file, packed = f"{name}-1.0-py3-none-any.whl", wheel(name, body)
        page = f'<!DOCTYPE html><a href="/files/{file}#sha256={hashlib.sha256(packed).hexdigest()}">{file}</a>'
        self.files[f"/simple/{name.replace('_', '-')}/"] = "text/html", page.encode()
        self.files[f"/files/{file}"] = "application/octet-stream", packed

    def add_npm(self, name: str, script: str) -> None:
        about = {"name": name, "version": "1.0.0", "main": "index.js"}
        packed = _tarball({"package/package.json": json.dumps(about), "package/index.js": script})
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(packed).digest()).decode()}"
        dist = {"tarball": f"{self.url}/{name}/-/{name}-1.0.0.tgz", "integrity": integrity}
        known = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**about, "dist": dist}}}
        self.files[f"/{name}"] = "application/json", json.dumps(known).encode()
        self.files[f"/{name}/-/{name}-1.0.0.tgz"] = "application/octet-stream", packed


@contextmanager
def running_index() -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            kind, content = index.files.get(self.path, ("text/plain", b"nothing here"))
            self.send_response(200 if self.path in index.files else 404)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """What was asked is in `asked`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index = Index(server.server_address[1])
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield index
        finally:
            server.shutdown()
            serving.join()


def wheel(name: str, body: str) -> bytes:
    """The smallest wheel there is."""
    packed, about = io.BytesIO(), f"{name}-1.0.dist-info"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr(f"{name}.py", body)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return packed.getvalue()


def _tarball(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, text in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(text.encode())
            file.addfile(about, io.BytesIO(text.encode()))
    return packed.getvalue()
