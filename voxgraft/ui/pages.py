"""Reports of a project as pages of their own: HTML, pictures and sounds from inside the roots, in a sandbox.

A report is a file from somewhere: its page has no origin, so that no script in it can use the interface. Its address
holds a secret of this server, which is what lets its own pictures and sounds be fetched.
"""

from __future__ import annotations

import html
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.responses import FileResponse, PlainTextResponse, Response

from voxgraft.errors import VoxgraftError
from voxgraft.ui.roots import Roots

MIME_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".zip": "application/zip",
}
SANDBOX_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self' data:; font-src data:; "
    "frame-ancestors 'none'"
)


def add_file_routes(app: FastAPI, roots: Roots, prefix: str) -> None:
    """Serve files of the kinds above under `prefix`, which ends with the secret."""

    @app.get(prefix + "/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        try:
            found = roots.resolve_inside(path)
        except VoxgraftError:
            return PlainTextResponse("not here\n", 404)
        kind = MIME_TYPES.get(found.suffix.lower())
        if kind is None or not found.is_file():
            return PlainTextResponse("not here\n", 404)
        headers = {
            "content-security-policy": SANDBOX_POLICY,
            "cross-origin-resource-policy": "cross-origin",
            "cache-control": "no-store",
        }
        return FileResponse(found, media_type=kind, headers=headers)


def file_url(prefix: str, roots: Roots, path: Path) -> str:
    """The address of a file inside the roots."""
    return f"{prefix}/{quote(roots.short(path))}"


def file_link(prefix: str, roots: Roots, path: Path, words: str) -> str:
    """A link to a file that opens in a window of its own; nothing where the file is not there."""
    if not path.is_file():
        return ""
    address = html.escape(file_url(prefix, roots, path), quote=True)
    return f'<a class="vg-link" href="{address}" target="_blank" rel="noopener">{html.escape(words)}</a>'
