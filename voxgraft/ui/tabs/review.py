"""The review table of the tab Data: a page of its own, with JSON for its script and the audio of the clips.

The page is static (`review.html`, `.css` and `.js` in assets); its script asks here. Requests come through the server's
guard. A clip is found by its id in the manifest of a dataset that the open project may use, never by a path.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from voxgraft.core.errors import ConfigError, FileError, VoxgraftError, WriteError
from voxgraft.core.files import require_file
from voxgraft.data.folder import open_dataset_folder
from voxgraft.data.review import ReviewTable, describe_clip
from voxgraft.ui.page import PageContext
from voxgraft.ui.server import MIME_TYPES
from voxgraft.ui.tabs.data import resolve_dataset_folder

ADDRESS = "/voxgraft/review"
ASSETS = {"review.css": "text/css", "review.js": "text/javascript"}
# Stricter than that of the gradio page: no inline script, so that a text shown as markup by mistake could not run.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MAX_BODY_BYTES = 100_000
# Datasets that stay in memory; a manifest of thousands of clips takes some megabytes.
MAX_TABLES = 4
# Of errors: not found, changed meanwhile, in use by another process. All others are faults of the request.
STATUS_BY_CODE = {
    **dict.fromkeys(("ui-outside", "ui-no-project", "clips-unknown", "dataset-missing", "file-missing"), 404),
    "review-changed": 409,
    "dataset-busy": 423,
}


def review_routes(context: PageContext) -> list[Route]:
    """The page, its files, and what its script asks for."""
    tables: dict[Path, ReviewTable] = {}

    def open_table(values: Any) -> ReviewTable:
        """The table of the dataset that a request names, as it is on disk now."""
        folder = resolve_dataset_folder(context, str(values.get("project", "")), str(values.get("dataset", "")) or None)
        table = tables.pop(folder, None) or ReviewTable(open_dataset_folder(folder))
        tables[folder] = table  # the newest is last
        while len(tables) > MAX_TABLES:
            tables.pop(next(iter(tables)), None)
        table.refresh()
        return table

    def answer_state(table: ReviewTable, **more: Any) -> Response:
        newest = table.newest()
        last = None if newest is None else {key: describe_clip(newest)[key] for key in ("id", "at", "state")}
        return JSONResponse({"stamp": table.stamp, "undo": last, **more}, headers={"cache-control": "no-store"})

    def list_clips(values: Any) -> Response:
        table = open_table(values)
        if values.get("stamp") == table.stamp:
            return Response(status_code=204)
        clips = [describe_clip(clip) for clip in table.rows()]
        return answer_state(table, dataset=context.roots.short(table.dataset.folder), clips=clips)

    def send_audio(values: Any) -> Response:
        table = open_table(values)
        clip = table.clips.get(str(values.get("clip", "")))
        if clip is None:
            raise ConfigError("clips-unknown", f"there is no clip {str(values.get('clip', ''))[:80]!r}")
        # The manifest may come from elsewhere, and name any file: only audio of this dataset is sent, links followed.
        # A dataset outside the roots is the project's own, as run.yaml names it.
        folder = table.dataset.folder.resolve()
        try:
            path = clip.resolve_audio(folder).resolve()
        except (OSError, RuntimeError, ValueError):
            raise FileError("ui-outside", f"{clip.audio[:200]!r} is not a path") from None
        if folder not in path.parents:
            path = context.roots.resolve_inside(path)
        kind = MIME_TYPES.get(path.suffix.lower(), "")
        if not kind.startswith("audio/"):
            raise FileError("ui-outside", f"{clip.audio[:200]!r} is not an audio file that a browser plays")
        return FileResponse(require_file(path), media_type=kind, headers={"cache-control": "no-store"})

    def save_decision(values: Any) -> Response:
        table = open_table(values)
        name, seen, decision = str(values.get("clip", "")), values.get("seen"), values.get("decision")
        before = table.stamp
        if decision == "undo":
            clip = table.undo(name, str(values.get("at", "")))
        elif decision in ("accept", "edit", "reject") and isinstance(seen, dict) and {"text", "at"} <= seen.keys():
            clip = table.decide(name, decision, str(values.get("text", "")), seen)
        else:
            raise ConfigError("config-value", "the request has no decision", expected="accept, edit, reject or undo")
        return answer_state(table, before=before, clip=describe_clip(clip))

    async def answer(handler: Callable[[Any], Response], values: Any) -> Response:
        try:
            return await run_in_threadpool(handler, values)
        except VoxgraftError as error:
            status = 507 if isinstance(error, WriteError) else STATUS_BY_CODE.get(error.code, 400)
            item = error.finding
            content = {"code": item.code, "found": item.found, "expected": item.expected, "cure": item.cure}
            return JSONResponse({"error": content}, status, headers={"cache-control": "no-store"})

    async def ask(request: Request) -> Response:
        handler = list_clips if request.url.path.endswith("/clips") else send_audio
        return await answer(handler, request.query_params)

    async def save(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return PlainTextResponse("too long\n", 413)
        try:
            # A form of another site cannot send this type.
            if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                raise ValueError
            values = json.loads(body)
            if not isinstance(values, dict):
                raise ValueError
        except (ValueError, RecursionError):
            return PlainTextResponse("a JSON object is expected\n", 400)
        return await answer(save_decision, values)

    async def send_page(request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        file = name if name in ASSETS else "review.html"
        text = resources.files("voxgraft").joinpath(f"assets/templates/{file}").read_text(encoding="utf-8")
        headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"}
        return Response(text, media_type=ASSETS.get(file, "text/html"), headers=headers)

    return [
        *(Route(path, send_page) for path in (ADDRESS, *(f"{ADDRESS}/{name}" for name in ASSETS))),
        *(Route(f"{ADDRESS}/{name}", ask) for name in ("clips", "audio")),
        Route(f"{ADDRESS}/decide", save, methods=["POST"]),
    ]
