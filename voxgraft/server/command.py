"""The command `serve`: opens the models, then answers until it is interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from voxgraft.config.commands import ServeSettings, SpeakSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.files import require_folder
from voxgraft.core.results import CommandResult, SimpleResult
from voxgraft.core.web import is_local, list_host_names, listening_socket, read_secret, sigterm_as_interrupt
from voxgraft.synthesis.api import TTS, load
from voxgraft.synthesis.inputs import RECORDING_SUFFIXES, ReferenceVoice, VoiceLoader

KEY_VARIABLE = "VOXGRAFT_API_KEY"
MIN_KEY = 16
# Time for answers in progress after a signal.
GRACE_SECONDS = 10
# Connections, with those that are idle: so many times the queue, and at least so many.
CONNECTIONS_PER_JOB, MIN_CONNECTIONS = 4, 64


def serve(settings: ServeSettings) -> CommandResult:
    """Serve until Ctrl-C or SIGTERM."""
    key = resolve_key(settings)
    for package in ("starlette", "uvicorn"):
        try:
            import_module(package)
        except ImportError as error:
            found = f"{error.name} is not installed"
            raise ConfigError("package-missing", found, cure="pip install 'voxgraft[server]'.") from None
    import uvicorn

    from voxgraft.server.app import create_app
    from voxgraft.server.scheduler import Scheduler

    with sigterm_as_interrupt(), listening_socket(settings.host, settings.port) as listener:
        tts = load(settings.model or "tiny", base=settings.base, device=settings.device, precision=settings.precision)
        if settings.language is not None and settings.language not in tts.languages:
            found = f"the model does not speak {settings.language!r}"
            # The fix in the catalogue names the options of `speak`.
            cure = (
                "set --language to one of the expected languages. For another language, add its run or graft as MODEL."
            )
            expected = f"one of {', '.join(tts.languages)}"
            raise ConfigError("speak-language", found, expected=expected, cure=cure)
        voices = collect_voices(tts, settings)
        scheduler = Scheduler(tts, voices, batch=settings.batch, max_jobs=settings.queue)
        app = create_app(scheduler, settings, list_host_names(settings.host, settings.names), key)
        port = listener.getsockname()[1]
        host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{port}"
        lines = [f"speech at {address}/v1/audio/speech, a page at {address}/", f"languages: {', '.join(tts.languages)}"]
        progress.report_lines([*lines, "Ctrl-C stops the server"])
        # Headers of a proxy are not trusted. Nothing of a request is logged; the scheduler reports what fails inside.
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, server_header=False, ws="none", proxy_headers=False,
            timeout_graceful_shutdown=GRACE_SECONDS, lifespan="off", h11_max_incomplete_event_size=1 << 16,
            timeout_keep_alive=30, limit_concurrency=max(MIN_CONNECTIONS, CONNECTIONS_PER_JOB * settings.queue),
        )  # fmt: skip

        scheduler.start()
        try:
            # After a signal, uvicorn shuts down and then sends that signal to itself.
            with suppress(KeyboardInterrupt):
                uvicorn.Server(config).run(sockets=[listener])
        finally:
            scheduler.stop()
    return SimpleResult({"stopped": True, "address": address}, ("the server has stopped",))


def resolve_key(settings: ServeSettings) -> str | None:
    """The API key. None is needed if nobody else can reach the server."""
    key = read_secret(settings.key_file, KEY_VARIABLE)
    if key is None and is_local(settings.host):
        return None
    key = None if key is None else key.strip()
    if key is None or len(key) < MIN_KEY:
        found = f"{settings.host} can be reached from other machines" if key is None else "the API key is too short"
        raise ConfigError("serve-key", found, expected=f"an API key of at least {MIN_KEY} characters")
    if not key.isascii() or not key.isprintable():
        # Programs send other characters in different encodings, or not at all.
        found = "the API key contains characters that are not allowed in an HTTP header"
        raise ConfigError("serve-key", found, expected="letters, digits and punctuation of ASCII")
    return key


def collect_voices(tts: TTS, settings: ServeSettings) -> Mapping[str, ReferenceVoice]:
    """By name: the base's voices, recordings in the folder of voices by their names, and the default voice."""
    from voxgraft.server.app import DEFAULT_VOICE

    loader = VoiceLoader(tts.models, SpeakSettings(), vocoder=tts.vocoder)
    sources = {name: name for name in tts.voices}
    for path in sorted(require_folder(settings.voices).iterdir()) if settings.voices is not None else ():
        if path.is_file() and path.suffix.lower() in RECORDING_SUFFIXES:
            if path.stem in sources or path.stem == DEFAULT_VOICE:
                other = Path(sources.get(path.stem, "the default voice")).name
                expected = f"a name that no other voice has, and not `{DEFAULT_VOICE}`"
                cure = "rename the recording. --voice NAME chooses the default voice."
                used = f"{path.name} has the name of {other}"
                raise ConfigError("config-value", used, expected=expected, where=path, cure=cure)
            sources[path.stem] = str(path)
    found = {name: loader.voice(source) for name, source in sources.items()}
    if settings.voice is not None:
        if settings.voice not in found:
            expected = f"one of {', '.join(found)}" if found else "recordings in the folder --voices"
            raise ConfigError("voice-unknown", f"there is no voice `{settings.voice}`", expected=expected)
        return {DEFAULT_VOICE: found[settings.voice], **found}
    if found:
        return {DEFAULT_VOICE: next(iter(found.values())), **found}
    try:
        return {DEFAULT_VOICE: loader.voice(None)}  # a run lends the voice of one of its recordings
    except VoxgraftError as error:
        if error.code != "speak-voice":
            raise
        # That error names the options of `speak`.
        expected, cure = "--voices FOLDER with recordings", "put a recording of a few seconds into that folder."
        raise ConfigError("speak-voice", "there is no voice to speak with", expected=expected, cure=cure) from None
