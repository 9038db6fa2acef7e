"""The HTTP interface: OpenAI's speech endpoint and lists, health, metrics and a page, as an ASGI application.

Every answer but sound, metrics and the page is JSON, errors in OpenAI's shape. Requests name voices, languages and
formats; they never name files. Texts are neither stored nor logged.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from voxgraft.audio.files import AUDIO_TYPES, MAX_SPEED, MIN_SPEED, AudioEncoder
from voxgraft.config.commands import ServeSettings, SpeakSettings
from voxgraft.config.run import MAX_SEED
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.web import SECURITY_HEADERS, App, Receive, Scope, Send, find_rejection_reason, read_headers
from voxgraft.server.scheduler import QueueFullError, Scheduler, SpeechJob
from voxgraft.synthesis.api import find_languages_by_script, read_style
from voxgraft.synthesis.inputs import UtteranceRequest, read_utterances

MODEL_NAME, DEFAULT_VOICE = "voxgraft", "default"
# Names that programs for OpenAI's service send unless they are configured.
MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
REQUEST_KEYS = frozenset(
    "model input voice response_format speed stream stream_format instructions language seed exaggeration emotion "
    "emotion_weight".split()
)
STREAM_FORMATS = ("audio", "sse")
NUM_EMOTIONS, MAX_NUMBER = 8, 1e9
# A client that takes nothing for so long, or needs longer to send a body, is gone, whatever its connection says.
STALL_SECONDS = 30.0
# Paths that need no key: a page without secrets, and whether the server runs.
OPEN_PATHS = ("/", "/health")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
ANSWER_HEADERS = (
    *SECURITY_HEADERS,
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class RequestError(Exception):
    """A request that is refused: status, OpenAI's `code` and `param`, and a sentence."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param, self.retry = status, code, message, param, retry

    def response(self) -> JSONResponse:
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        headers = {"retry-after": str(self.retry)} if self.retry is not None else {}
        headers |= {"www-authenticate": "Bearer"} if self.status == 401 else {}
        headers |= {"connection": "close"} if self.status in (408, 413) else {}  # a part of the request was not read
        return JSONResponse({"error": error}, self.status, headers)


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A request that was read and is valid, apart from what only planning finds."""

    utterance: UtteranceRequest
    settings: SpeakSettings
    format: str
    speed: float
    stream: str | None
    """audio, sse, or None for a whole file."""


def read_speech_request(body: bytes, scheduler: Scheduler, settings: ServeSettings) -> SpeechRequest:
    """The request in a JSON body; refused with the key at fault."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(400, "invalid_json", "the request is not JSON") from None
    if not isinstance(values, dict):
        raise RequestError(400, "invalid_json", "the request is not a JSON object")

    def refuse(key: str, expected: str, code: str = "invalid_value") -> RequestError:
        return RequestError(400, code, f"`{key}` must be {expected}", key)

    if unknown := sorted(values.keys() - REQUEST_KEYS):
        key = _CONTROL_CHARACTERS.sub(" ", unknown[0].encode("utf-8", "replace").decode())[:80]
        raise RequestError(400, "unknown_parameter", f"there is no parameter `{key}`", key)
    values = {key: value for key, value in values.items() if value is not None}
    languages = scheduler.tts.languages
    models = {MODEL_NAME: None, **dict.fromkeys(MODEL_ALIASES), **{f"{MODEL_NAME}-{code}": code for code in languages}}
    model = values.get("model", MODEL_NAME)
    if not isinstance(model, str) or model not in models:
        message = f"unknown model; expected one of: {', '.join([*models][:1] + [*models][4:])}"
        raise RequestError(404, "model_not_found", message, "model")
    text = values.get("input")
    if not isinstance(text, str):
        raise refuse("input", "a text")
    if len(text) > settings.max_characters:
        message = f"`input` has {len(text):,} characters; the maximum is {settings.max_characters:,}"
        raise RequestError(400, "string_above_max_length", message, "input")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refuse("input", "valid Unicode") from None
    voice = values.get("voice", DEFAULT_VOICE)
    voice = voice.get("id") if isinstance(voice, dict) else voice
    if not isinstance(voice, str) or voice not in scheduler.voices:
        names = ", ".join(list(scheduler.voices)[:40])
        raise refuse("voice", f"one of {names}", "voice_not_found")
    file_format = values.get("response_format", "mp3")
    if not isinstance(file_format, str) or file_format not in AUDIO_TYPES:
        raise refuse("response_format", f"one of {', '.join(AUDIO_TYPES)}")
    speed = values.get("speed", 1.0)
    if not _is_number(speed) or not MIN_SPEED <= speed <= MAX_SPEED:
        raise refuse("speed", f"a number from {MIN_SPEED:g} to {MAX_SPEED:g}")
    stream = values.get("stream_format", "audio" if values.get("stream") else None)
    if stream is not None and (not isinstance(stream, str) or stream not in STREAM_FORMATS):
        raise refuse("stream_format", f"one of {', '.join(STREAM_FORMATS)}")
    if not isinstance(values.get("stream", False), bool):
        raise refuse("stream", "true or false")
    if values.get("instructions", "") != "":
        raise RequestError(400, "unsupported_parameter", "`instructions` are not supported", "instructions")
    seed = values.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise refuse("seed", f"a whole number from 0 to {MAX_SEED}")
    for key in ("exaggeration", "emotion_weight"):
        if key in values and not _is_number(values[key]):
            raise refuse(key, "a number")
    emotion = values.get("emotion")
    if emotion is not None:
        # Never a text: `speak` takes that for the name of a file.
        if not isinstance(emotion, list) or len(emotion) != NUM_EMOTIONS or not all(map(_is_number, emotion)):
            raise refuse("emotion", f"a list of {NUM_EMOTIONS} numbers")
        emotion = ",".join(f"{max(0.0, min(1.0, share)):.6f}" for share in emotion)
    language = values.get("language", models[model])
    if language is None:
        language = choose_language(text, languages, settings.language)
    known = {code.lower(): code for code in languages}
    if not isinstance(language, str) or language.lower() not in known:
        raise refuse("language", f"one of {', '.join(languages)}", "language_not_found")
    language = known[language.lower()]
    style = {key: values.get(key) for key in ("exaggeration", "emotion_weight")}
    try:
        (utterance,) = read_utterances([text], None)
        own = read_style(seed=seed, language=language, emotion=emotion, **style)
    except VoxgraftError as error:
        raise convert_error(error) from None
    named = UtteranceRequest(utterance.name, utterance.text, voice=voice)
    return SpeechRequest(named, own, file_format, float(speed), stream)


def _is_number(value: object) -> bool:
    # Compared, not converted: a whole number of JSON can have more digits than a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER < value < MAX_NUMBER


def choose_language(text: str, languages: tuple[str, ...], usual: str | None) -> str:
    """The language of a text by its script; where several share it, the usual one if it is among them."""
    found = find_languages_by_script(text, languages)
    if len(found) == 1 or (usual is not None and usual in found) or (not found and usual is not None):
        return found[0] if len(found) == 1 else str(usual)
    choices = ", ".join(found or languages)
    message = f"the script of the text does not determine the language; set `language` to one of {choices}"
    raise RequestError(400, "language_required", message, "language")


def convert_error(error: Exception) -> RequestError:
    """What stopped a request. Our own errors say what was found; others are not described, as they may quote texts."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, QueueFullError):
        message = "too many requests are waiting; try again later"
        return RequestError(429, "queue_full", message, retry=error.retry_seconds)
    if isinstance(error, VoxgraftError):
        item = error.finding  # without `where`: that may be a path of this machine
        message = f"{item.found} (expected: {item.expected})" if item.expected else item.found
        return RequestError(400, item.code.replace("-", "_"), _CONTROL_CHARACTERS.sub(" ", message), "input")
    return RequestError(500, "internal_error", "internal server error")


class SpeechResponse(Response):
    """Speaks while it answers. Ends the job when the client goes away or takes nothing any more."""

    def __init__(self, request: SpeechRequest, job: SpeechJob, scheduler: Scheduler) -> None:
        self.request, self.job, self.scheduler = request, job, scheduler
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        answer = asyncio.create_task(self._answer(scope, receive, send))
        try:
            await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.scheduler.metrics.add("cancelled_total")
            else:
                answer.result()
        finally:
            self.scheduler.release(self.job)
            for task in (gone, answer):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, metrics = self.request, self.scheduler.metrics
        language = self.job.plan.language if self.job.plan else ""
        kind = "text/event-stream" if request.stream == "sse" else AUDIO_TYPES[request.format]
        headers = [(b"content-type", kind.encode()), (b"voxgraft-language", language.encode())]
        if self.job.plan and self.job.plan.findings:
            codes = dict.fromkeys(item.code for item in self.job.plan.findings)
            headers.append((b"voxgraft-findings", ", ".join(codes).encode()))
        encoder = AudioEncoder(request.format, self.scheduler.tts.sample_rate, request.speed)
        is_started = False
        try:
            async for data in self._encode(encoder):
                if request.stream is None:
                    continue
                if not is_started:
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    is_started = True
                if request.stream == "sse":
                    data = _format_event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
                await _send_in_time(send, data, more=True)
        except RequestError as error:
            metrics.add("failed_total")
            if not is_started:
                await error.response()(scope, receive, send)
            elif request.stream == "sse":
                body = json.loads(bytes(error.response().body))
                await _send_in_time(send, _format_event({"type": "error", **body}), more=False)
            else:
                raise ConnectionResetError from None  # the only way to say that the sound is not complete
            return
        metrics.add("audio_bytes_total", encoder.num_samples * 2)
        if request.stream is None:
            whole = encoder.whole()
            headers.append((b"content-length", str(len(whole)).encode()))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for start in range(0, len(whole), 1 << 16):
                await _send_in_time(send, whole[start : start + (1 << 16)], more=True)
            await _send_in_time(send, b"", more=False)
            return
        last = b""
        if request.stream == "sse":
            num_ids = sum(len(piece.ids) for piece in self.job.plan.pieces) if self.job.plan else 0
            usage = {"input_tokens": num_ids, "output_tokens": self.job.num_codes}
            usage["total_tokens"] = sum(usage.values())
            last = _format_event({"type": "speech.audio.done", "usage": usage})
        await _send_in_time(send, last, more=False)

    async def _encode(self, encoder: AudioEncoder) -> AsyncIterator[bytes]:
        """The bytes of each sentence as it comes; encoding runs in a thread."""
        metrics, is_first = self.scheduler.metrics, True
        while True:
            wave = await self.job.waves.get()
            if isinstance(wave, Exception):
                raise convert_error(wave)
            if is_first:
                metrics.observe("first_audio_seconds", time.monotonic() - self.job.started)
                is_first = False
            work = encoder.finish if wave is None else partial(encoder.write, wave)
            data = await asyncio.to_thread(work)
            if data:
                yield data
            if wave is None:
                metrics.observe("request_seconds", time.monotonic() - self.job.started)
                return


def _format_event(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


async def _send_in_time(send: Send, data: bytes, *, more: bool) -> None:
    await asyncio.wait_for(send({"type": "http.response.body", "body": data, "more_body": more}), STALL_SECONDS)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, most: int) -> bytes:
    """The content, if it is not too large; if its header states that it is, nothing is read."""
    too_large = RequestError(413, "body_too_large", f"the request is larger than {most:,} bytes")
    stated = request.headers.get("content-length", "0")
    if not stated.isdecimal() or len(stated) > 15:
        raise RequestError(400, "invalid_header", "content-length is not a number")
    if int(stated) > most:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(STALL_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except ClientDisconnect:
        raise RequestError(400, "disconnected", "the request is not complete") from None
    except TimeoutError:
        message = f"the request was not complete after {STALL_SECONDS:g} seconds"
        raise RequestError(408, "request_timeout", message) from None
    return b"".join(parts)


def create_app(scheduler: Scheduler, settings: ServeSettings, names: frozenset[str], key: str | None) -> App:
    """The whole interface behind its guard."""
    page, policy = load_page(needs_key=key is not None)
    tts, created = scheduler.tts, int(time.time())
    stopped = RequestError(503, "not_running", "the server cannot speak any more and must be restarted")

    async def speech(request: Request) -> Response:
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "invalid_content_type", "the content type must be application/json")
        body = await read_body(request, settings.max_body << 10)
        wanted = await asyncio.to_thread(read_speech_request, body, scheduler, settings)
        if not scheduler.is_alive:
            return stopped.response()
        try:
            job = await scheduler.submit(wanted.utterance, wanted.settings)
        except Exception as error:
            if not isinstance(error, VoxgraftError | QueueFullError):
                scheduler.report(error)
            raise convert_error(error) from error
        return SpeechResponse(wanted, job, scheduler)

    def list_models(_: Request) -> Response:
        ids = [MODEL_NAME, *(f"{MODEL_NAME}-{language}" for language in tts.languages)]
        data = [{"id": one, "object": "model", "created": created, "owned_by": MODEL_NAME} for one in ids]
        return JSONResponse({"object": "list", "data": data})

    def list_voices(_: Request) -> Response:
        data = [{"id": name, "object": "voice"} for name in scheduler.voices]
        return JSONResponse({"object": "list", "data": data})

    def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"}) if scheduler.is_alive else stopped.response()

    def metrics(_: Request) -> Response:
        return PlainTextResponse(
            scheduler.metrics.format(scheduler.gauges), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def index(_: Request) -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers={"content-security-policy": policy})

    def refuse(_: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
            return RequestError(error.status_code, code, str(error.detail)).response()
        return convert_error(error).response()

    routes = [
        Route("/v1/audio/speech", speech, methods=["POST"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/audio/voices", list_voices, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/", index, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={RequestError: refuse, HTTPException: refuse, Exception: refuse})
    app.router.redirect_slashes = False  # a redirect would quote the host name of the request
    return RequestGuard(app, scheduler, names, key)


class RequestGuard:
    """Passes requests to this host, from its own pages or from programs, with the key if there is one."""

    def __init__(self, app: App, scheduler: Scheduler, names: frozenset[str], key: str | None) -> None:
        self.app, self.scheduler, self.names, self._key = app, scheduler, names, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; an exception that nobody expected is counted and answered without its text."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        status = 0

        async def sender(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *ANSWER_HEADERS]
            await send(message)

        headers = read_headers(scope)
        try:
            if reason := find_rejection_reason(scope, headers, self.names, what="this server"):
                await RequestError(403, "origin_refused", reason).response()(scope, receive, sender)
            elif not self._is_known(scope["path"], headers):
                message = "the API key is missing or wrong; send `Authorization: Bearer KEY`"
                await RequestError(401, "invalid_api_key", message).response()(scope, receive, sender)
            else:
                await self.app(scope, receive, sender)
        except (ConnectionError, TimeoutError):
            raise  # the client is gone or stalled; uvicorn closes the connection
        except Exception as error:
            self.scheduler.report(error)
            if not status:
                await convert_error(error).response()(scope, receive, sender)
        finally:
            route = scope["path"] if scope["path"] in ("/v1/audio/speech", "/v1/models", *OPEN_PATHS) else "other"
            self.scheduler.metrics.add("requests_total", path=route, status=status)

    def _is_known(self, path: str, headers: Mapping[str, str]) -> bool:
        if self._key is None or path in OPEN_PATHS:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        # Digests have one length, so that the time of the comparison tells nothing of the key's.
        digests = (hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (given.strip(), self._key))
        return hmac.compare_digest(*digests) and kind.lower() == "bearer"


def load_page(*, needs_key: bool) -> tuple[str, str]:
    """The page at `/`, and a policy that lets its own script and style run and nothing else."""
    page = resources.files("voxgraft").joinpath("server/page.html").read_text(encoding="utf-8")
    if needs_key:  # the page asks for it at once, instead of after a refused request
        page = page.replace('data-key=""', 'data-key="required"')

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        sums = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found)
        return " ".join(f"'sha256-{one}'" for one in sums)

    policy = (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy
