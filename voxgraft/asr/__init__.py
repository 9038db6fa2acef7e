"""Speech recognizers: the built-in CTC network, faster-whisper, and any program that takes a WAV file."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.features import (
    HOP,
    LogMel,
    WaveformLimits,
    batch_by_length,
    exact_float32,
    validate_waveform,
    validate_waveforms,
)
from voxgraft.audio.files import encode_audio
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, VoxgraftError
from voxgraft.core.files import is_file, is_folder, read_json
from voxgraft.nn.layers import no_init_weights


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of one wave."""

    text: str
    phones: tuple[str, ...] | None
    """IPA; None where the recognizer knows no phones."""


class Recognizer(Protocol):
    """A recognizer: writes a transcript of speech."""

    name: str
    """As in reports."""
    languages: frozenset[str] | None
    """The languages it was trained on; None if it takes any."""
    sample_rate: int | None
    """Samples a second that it takes; None if it takes any."""

    def transcribe(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """Waves of one channel between -1 and 1, at `rate` samples a second, which it takes; all in one language."""


def open_recognizer(setting: str, name: str = "--recognizer") -> Recognizer:
    """`built-in`, `built-in:FOLDER`, `whisper:FOLDER`, `whisper:SIZE` or `command:PROGRAM ARGUMENTS {wav}`.

    `name` is what the setting is called where the user has written it.
    """
    kind, _, rest = setting.partition(":")
    if kind == "built-in":
        return BuiltInRecognizer.open(Path(rest) if rest else None)
    if kind == "whisper" and rest:
        return WhisperRecognizer(rest)
    if kind == "command" and rest.strip():
        return CommandRecognizer(rest, name)
    expected = "built-in, whisper:SIZE, whisper:FOLDER or 'command:PROGRAM ARGUMENTS {wav}'"
    raise ConfigError("recognizer-unknown", f"{setting!r} is not a recognizer", expected=expected, where=name)


# Two letters, or the three digits of a UN area, at the end of a code: pt-BR, es-419, zh_Hant_TW.
_REGION_SUFFIX = re.compile(r"[-_](?:[A-Za-z]{2}|[0-9]{3})$")


def resolve_recognizer_language(recognizer: Recognizer, language: str) -> tuple[str, bool]:
    """The code by which a recognizer knows a language, and whether it does not: pt for pt-BR.

    Only the region is dropped, not the script: for sr-Latn a recognizer of sr would write other letters.
    """
    known = recognizer.languages
    if known is None or language in known:
        return language, False
    plain = _REGION_SUFFIX.sub("", language)
    return (plain, False) if plain in known else (language, True)


WAV_PLACEHOLDER, LANGUAGE_PLACEHOLDER = "{wav}", "{language}"
COMMAND_TIMEOUT_SECONDS = 300
MAX_STDERR_SHOWN = 400


class CommandRecognizer:
    """A command line with `{wav}` in place of the file and, if needed, `{language}` in place of the language."""

    languages: frozenset[str] | None = None
    sample_rate: int | None = None

    def __init__(self, command: str, name: str = "--recognizer") -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as fault:
            found = f"the command {command!r} cannot be parsed: {fault}"
            cure = "close every quote of the command."
            raise ConfigError("recognizer-unknown", found, where=name, cure=cure) from fault
        if not any(WAV_PLACEHOLDER in word for word in self._words[1:]):
            found = f"the command {command!r} does not contain {{wav}}"
            expected = "the argument {wav}, which is replaced by the path of a WAV file"
            cure = "add {wav} to the command: 'command:PROGRAM {wav}'."
            raise ConfigError("recognizer-unknown", found, expected=expected, where=name, cure=cure)
        self.name = f"command:{command}"
        if shutil.which(self._words[0]) is None:
            raise _recognizer_failed_error(self.name, f"program {self._words[0]} not found")

    def transcribe(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """What the program prints for each wave, on one line."""
        transcripts = []
        with tempfile.TemporaryDirectory(prefix="voxgraft-") as folder:
            path = Path(folder) / "speech.wav"
            argv = [
                word.replace(WAV_PLACEHOLDER, str(path)).replace(LANGUAGE_PLACEHOLDER, language) for word in self._words
            ]
            for wave in waves:
                samples = validate_waveform(wave, WaveformLimits(rate, min_samples=1)).numpy()
                path.write_bytes(encode_audio(samples, rate))
                try:
                    done = subprocess.run(argv, capture_output=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False)  # noqa: S603
                except (OSError, subprocess.TimeoutExpired) as fault:
                    raise _recognizer_failed_error(self.name, str(fault)) from fault
                if done.returncode != 0:
                    stderr_text = done.stderr.decode(errors="replace").strip()[-MAX_STDERR_SHOWN:]
                    raise _recognizer_failed_error(self.name, f"exit code {done.returncode}: {stderr_text}")
                try:
                    transcripts.append(Transcript(" ".join(done.stdout.decode().split()), None))
                except UnicodeDecodeError as fault:
                    raise _recognizer_failed_error(self.name, f"its output is not UTF-8: {fault}") from fault
        return transcripts


def _recognizer_failed_error(name: str, found: str) -> VoxgraftError:
    return ConfigError("recognizer-failed", found, where=name)


WHISPER_PACKAGE = "faster_whisper"
WHISPER_RATE_HZ = 16_000
WHISPER_MODEL_NAME = "model.bin"
WHISPER_LIMITS = WaveformLimits(WHISPER_RATE_HZ, min_samples=WHISPER_RATE_HZ // 20)
# In the order in which one is chosen: `small` reads most languages and still runs on a CPU.
WHISPER_SIZES = ("small", "base", "medium", "large-v3-turbo", "large-v3", "tiny")
# Languages that Whisper knows by another code.
WHISPER_LANGUAGE_CODES = {"nb": "no", "jv": "jw", "fil": "tl"}


class WhisperRecognizer:
    """One model, with the languages that it says it knows. `model` is a folder or a size such as small."""

    sample_rate: int | None = WHISPER_RATE_HZ

    def __init__(self, model: str) -> None:
        try:
            package = importlib.import_module(WHISPER_PACKAGE)
        except ImportError as fault:
            cure = "pip install faster-whisper, or use another recognizer: 'command:PROGRAM {wav}'."
            raise ConfigError("package-missing", "faster-whisper is not installed", cure=cure) from fault
        sizes = ", ".join(WHISPER_SIZES)
        expected = f"a model folder for faster-whisper, with {WHISPER_MODEL_NAME}, or a size: {sizes}"
        folder = Path(model)
        is_local = is_folder(folder)
        if not is_local and (folder.name != model or folder.suffix):
            raise ConfigError("recognizer-model", f"{model} is not a folder", expected=expected, where=folder)
        self.name = f"whisper:{folder.name}"
        if is_local and not is_file(folder / WHISPER_MODEL_NAME):
            found = f"{WHISPER_MODEL_NAME} is not in the folder"
            raise ConfigError("recognizer-model", found, expected=expected, where=folder)
        try:
            self._model: Any = package.WhisperModel(model, compute_type="int8")
        except Exception as fault:  # a size is downloaded, and the download fails in the hub's own ways
            found = f"faster-whisper cannot open {model}: {fault!s:.300}"
            raise ConfigError("recognizer-model", found, expected=expected, where=model) from fault
        known = getattr(self._model, "supported_languages", None)  # older versions do not say
        others = {code for code, own in WHISPER_LANGUAGE_CODES.items() if known is not None and own in known}
        self.languages: frozenset[str] | None = None if known is None else frozenset(known) | others

    def transcribe(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """With the package's own fallbacks against loops, each wave for itself."""
        if rate != WHISPER_RATE_HZ:
            raise AudioError(
                "recognizer-rate", f"the speech has {rate:,} Hz", expected=f"{WHISPER_RATE_HZ:,} Hz", where=self.name
            )
        code = WHISPER_LANGUAGE_CODES.get(language, language)
        transcripts = []
        for wave in waves:
            samples = validate_waveform(wave, WHISPER_LIMITS).numpy()
            try:
                # Without the text before: one loop would otherwise lead to the next.
                pieces, _ = self._model.transcribe(samples, language=code, condition_on_previous_text=False)
            except ValueError as fault:  # how the package says that it does not know a language
                found = f"the Whisper model does not support the language {language!r}: {fault!s:.300}"
                raise ConfigError("recognizer-language", found, where=self.name) from fault
            transcripts.append(Transcript(" ".join(" ".join(piece.text for piece in pieces).split()), None))
        return transcripts


def is_whisper_installed() -> bool:
    """Whether the package is installed; imports nothing."""
    return importlib.util.find_spec(WHISPER_PACKAGE) is not None


def find_downloaded_whisper() -> str | None:
    """A published size that is on this machine already. Nothing is downloaded without being asked for."""
    find = importlib.import_module(f"{WHISPER_PACKAGE}.utils").download_model
    for size in WHISPER_SIZES:
        try:
            return str(find(size, local_files_only=True))
        except Exception:  # noqa: S112 (the hub has many ways to say that a model is not in its cache)
            continue
    return None


CTC_BLANK = 0  # in both heads
# The network halves the mel frames: a step is 20 ms.
SAMPLES_PER_STEP = 2 * HOP
ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class CTCNetworkConfig:
    """Sizes."""

    num_letters: int
    num_phones: int
    """Both without the blank."""
    num_languages: int
    num_mels: int = 80
    width: int = 256
    heads: int = 4
    layers: int = 5
    reach: int = 15
    """Steps under a layer's convolution."""


class CTCNetwork(nn.Module):
    """Waves to scores of letters and phones at every step."""

    def __init__(self, config: CTCNetworkConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.mel = LogMel(config.num_mels)
        self.enter = nn.Conv1d(config.num_mels, width, 5, padding=2)
        self.halving = nn.Conv1d(width, width, 4, stride=2, padding=1)
        self.language = nn.Embedding(config.num_languages, width)
        self.layers = nn.ModuleList(CTCLayer(config, dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.letters = nn.Linear(width, config.num_letters + 1)
        self.phones = nn.Linear(width, config.num_phones + 1)

    def forward(self, waves: Tensor, lengths: Tensor, languages: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S], [B], [B] -> letters [B, T, .] and phones [B, T, .]; S is a multiple of 320."""
        return self.scores(self.mel(waves), lengths, languages)

    def scores(self, frames: Tensor, lengths: Tensor, languages: Tensor) -> tuple[Tensor, Tensor]:
        """The same from mel frames [B, F, M]; `lengths` stay in samples."""
        steps = num_ctc_steps(lengths)
        # Masked before every convolution, so that a clip gives the same scores alone and in a batch.
        own = torch.arange(frames.shape[1], device=frames.device) < 2 * steps[:, None]  # [B, F]
        frames = (frames * own[..., None]).transpose(1, 2)  # [B, M, F]
        frames = nn.functional.gelu(self.enter(frames)) * own[:, None]  # [B, C, F]
        mask = own[:, ::2, None]  # [B, T, 1]
        hidden = nn.functional.gelu(self.halving(frames)).transpose(1, 2) + self.language(languages)[:, None]
        hidden = hidden * mask  # [B, T, C]
        # Cosines and sines by which rotary positions turn each pair of a head's channels. [2, T, W / 2]
        width, device = self.config.width // self.config.heads, hidden.device
        rates = ROPE_BASE ** (-torch.arange(0, width, 2, device=device) / width)
        angles = torch.arange(hidden.shape[1], device=device)[:, None] * rates
        turns = torch.stack([angles.cos(), angles.sin()])
        for layer in self.layers:
            hidden = layer(hidden, mask, turns)
        hidden = self.norm(hidden)
        return self.letters(hidden), self.phones(hidden)


class CTCLayer(nn.Module):
    """Attention, a convolution over time, two layers over channels; each beside a straight way."""

    def __init__(self, config: CTCNetworkConfig, dropout: float) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.time_norm = nn.LayerNorm(width)
        self.time_in = nn.Linear(width, 2 * width)
        self.time = nn.Conv1d(width, width, config.reach, padding=config.reach // 2, groups=width)
        self.time_middle = nn.LayerNorm(width)
        self.time_out = nn.Linear(width, width)
        self.channel_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor, turns: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]"""
        states = self.attention_in(self.attention_norm(hidden))
        query, key, value = states.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [B, H, T, W]
        seen = mask[:, None].transpose(-1, -2)  # [B, 1, 1, T]
        mixed = nn.functional.scaled_dot_product_attention(
            apply_rope(query, turns), apply_rope(key, turns), value, attn_mask=seen
        )
        hidden = hidden + self.dropout(self.attention_out(mixed.transpose(1, 2).flatten(2)))
        gated = nn.functional.glu(self.time_in(self.time_norm(hidden))) * mask  # padding must not leak into a clip
        convolved = self.time(gated.transpose(1, 2)).transpose(1, 2)
        hidden = hidden + self.dropout(self.time_out(nn.functional.silu(self.time_middle(convolved))))
        widened = nn.functional.gelu(self.widen(self.channel_norm(hidden)))
        out: Tensor = hidden + self.dropout(self.narrow(widened))
        return out


def num_ctc_steps(lengths: Tensor) -> Tensor:
    """Steps of a wave of so many samples: one for every 20 ms that has begun."""
    return -(-lengths // SAMPLES_PER_STEP)


def apply_rope(vectors: Tensor, turns: Tensor) -> Tensor:
    """Vectors [B, H, T, W] turned by their positions, so that attention sees distances."""
    first, second = vectors.chunk(2, -1)
    cosine, sine = turns.to(vectors.dtype)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


BUILT_IN_RATE_HZ = 16_000
BUILT_IN_RECOGNIZER_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "listener"
BUILT_IN_WEIGHTS_NAME, BUILT_IN_CONFIG_NAME = "listener.safetensors", "listener.json"
BUILT_IN_FORMAT = "voxgraft-listener-1"
BUILT_IN_LIMITS = WaveformLimits(BUILT_IN_RATE_HZ, min_samples=SAMPLES_PER_STEP)
# Seconds of audio in one batch, times the rate: bounds the memory of attention.
BUILT_IN_BATCH_SAMPLES = 40 * BUILT_IN_RATE_HZ


@dataclass(frozen=True, slots=True)
class CTCSymbols:
    """What the two heads can write; symbol k has the number k + 1, since 0 is the blank."""

    letters: tuple[str, ...]
    phones: tuple[str, ...]
    by_language: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    """The letters and the phones of each language; the order is the languages' numbering."""

    def allowed(self, language: str) -> tuple[Tensor, Tensor]:
        """Which letters and which phones, blank first, the language has."""
        letters, phones = self.by_language[language]
        return (
            torch.tensor([True, *(letter in letters for letter in self.letters)]),
            torch.tensor([True, *(phone in phones for phone in self.phones)]),
        )

    def to_json(self) -> dict[str, Any]:
        languages = {
            language: {"letters": sorted(letters), "phones": sorted(phones)}
            for language, (letters, phones) in self.by_language.items()
        }
        return {"letters": list(self.letters), "phones": list(self.phones), "languages": languages}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        by_language = {
            language: (frozenset(own["letters"]), frozenset(own["phones"]))
            for language, own in values["languages"].items()
        }
        return cls(tuple(values["letters"]), tuple(values["phones"]), by_language)


class BuiltInRecognizer:
    """The network with its symbols."""

    sample_rate: int | None = BUILT_IN_RATE_HZ

    def __init__(self, network: CTCNetwork, symbols: CTCSymbols, name: str = "built-in") -> None:
        self.network, self.symbols = network.eval(), symbols
        self.name = name
        self.languages: frozenset[str] | None = frozenset(symbols.by_language)

    @classmethod
    def open(cls, folder: Path | None = None) -> Self:
        """From a folder with recognizer.safetensors and recognizer.json; the one that ships unless another is named."""
        from voxgraft.checkpoints.load import read_tensors
        from voxgraft.models.speech_model import find_part_file

        model_folder = BUILT_IN_RECOGNIZER_FOLDER if folder is None else folder
        path = find_part_file(model_folder, (BUILT_IN_CONFIG_NAME,))
        metadata = read_json(path)
        try:
            if not isinstance(metadata, dict) or metadata.get("format") != BUILT_IN_FORMAT:
                raise ValueError("the file is not the config of a recognizer")
            symbols, config = CTCSymbols.from_json(metadata), CTCNetworkConfig(**metadata["network"])
        except (AttributeError, KeyError, TypeError, ValueError) as fault:
            expected = f"the format {BUILT_IN_FORMAT}, with network, letters, phones and languages"
            message = f"the file has no value for {fault}" if isinstance(fault, KeyError) else f"{fault}"
            raise CheckpointError("codec-notes", message, expected=expected, where=path) from fault
        found = (len(symbols.letters), len(symbols.phones), len(symbols.by_language))
        declared = (config.num_letters, config.num_phones, config.num_languages)
        if found != declared:
            message = f"{found} letters, phones and languages"
            raise CheckpointError("codec-notes", message, expected=f"{declared} of them", where=path)
        with no_init_weights():
            network = CTCNetwork(config)
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        network.load_state_dict(read_tensors(find_part_file(model_folder, (BUILT_IN_WEIGHTS_NAME,)), shapes))
        return cls(network.requires_grad_(False), symbols)

    def save(self, folder: Path) -> None:
        """Write the weights in half precision, and beside them symbols and sizes."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.detach().to("cpu", torch.float16) for name, tensor in self.network.state_dict().items()}
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / BUILT_IN_WEIGHTS_NAME)
        notes = {"format": BUILT_IN_FORMAT, "network": asdict(self.network.config), **self.symbols.to_json()}
        (folder / BUILT_IN_CONFIG_NAME).write_text(json.dumps(notes, ensure_ascii=False, indent=1), encoding="utf-8")

    def transcribe(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """Letters and phones of every wave; those of about one length go through together."""
        if language not in self.symbols.by_language:
            expected = ", ".join(sorted(self.symbols.by_language))
            raise ConfigError(
                "recognizer-language",
                f"the recognizer does not know the language {language!r}",
                expected=expected,
                where=self.name,
            )
        if rate != BUILT_IN_RATE_HZ:
            raise AudioError(
                "recognizer-rate", f"the speech has {rate:,} Hz", expected=f"{BUILT_IN_RATE_HZ:,} Hz", where=self.name
            )
        checked = validate_waveforms(waves, BUILT_IN_LIMITS)
        transcripts: dict[int, Transcript] = {}
        for indices in batch_by_length([len(wave) for wave in checked], BUILT_IN_BATCH_SAMPLES):
            found = self._transcribe_batch([checked[index] for index in indices], language)
            transcripts.update(zip(indices, found, strict=True))
        return [transcripts[index] for index in range(len(checked))]

    def transcribe_any_language(self, waves: Sequence[NDArray[np.float32]]) -> list[Transcript]:
        """Phones of a language that the network does not know, in the language that gives the most of them.

        Every language gives phones; in one that fits badly, more steps stay blank.
        """
        heard = [self.transcribe(waves, BUILT_IN_RATE_HZ, language) for language in self.symbols.by_language]
        return [max(own, key=lambda one: len(one.phones or ())) for own in zip(*heard, strict=True)]

    def transcribe_timed(self, wave: NDArray[np.float32], language: str | None) -> tuple[str, list[str], list[int]]:
        """One wave: the text, its letters (without a language its phones), and the step of each (20 ms)."""
        spoken = list(self.symbols.by_language) if language is None else [language]
        best: tuple[str, list[str], list[int]] = ("", [], [])
        (samples,) = validate_waveforms([wave], BUILT_IN_LIMITS)
        for code in spoken:
            letters, phones, steps = self.step_scores([samples], code)
            scores, names = (phones, self.symbols.phones) if language is None else (letters, self.symbols.letters)
            allowed = self.symbols.allowed(code)[language is None]
            path = scores[0, : steps[0]].float().cpu().masked_fill(~allowed, -torch.inf).argmax(-1)  # [T]
            starts = [at for at in range(len(path)) if path[at] != CTC_BLANK and (not at or path[at] != path[at - 1])]
            found = [names[int(path[at]) - 1] for at in starts]
            if len(found) >= len(best[1]):
                best = "".join(found), found, starts
        return best

    @torch.no_grad()
    def step_scores(self, waves: list[Tensor], language: str) -> tuple[Tensor, Tensor, list[int]]:
        """Scores of letters and of phones, and the steps of each wave."""
        device = next(self.network.parameters()).device
        lengths = torch.tensor([len(wave) for wave in waves], device=device)
        batch = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True).to(device)
        batch = torch.nn.functional.pad(batch, (0, -batch.shape[1] % SAMPLES_PER_STEP))
        languages = torch.full_like(lengths, list(self.symbols.by_language).index(language))
        with exact_float32():
            letters, phones = self.network(batch, lengths, languages)
        return letters, phones, num_ctc_steps(lengths).tolist()

    def _transcribe_batch(self, waves: list[Tensor], language: str) -> list[Transcript]:
        letters, phones, steps = self.step_scores(waves, language)
        # Letters and phones of other languages are never written.
        allowed_letters, allowed_phones = self.symbols.allowed(language)
        letter_ids = decode_ctc_greedy(letters, allowed_letters, steps)
        phone_ids = decode_ctc_greedy(phones, allowed_phones, steps)
        return [
            Transcript(
                " ".join("".join(self.symbols.letters[symbol_id - 1] for symbol_id in letter_row).split()),
                tuple(self.symbols.phones[symbol_id - 1] for symbol_id in phone_row),
            )
            for letter_row, phone_row in zip(letter_ids, phone_ids, strict=True)
        ]


def decode_ctc_greedy(scores: Tensor, allowed: Tensor, steps: Sequence[int]) -> list[list[int]]:
    """The likeliest symbol of every step, repeats and blanks removed. [B, T, symbols] -> one list for each clip"""
    best = scores.float().cpu().masked_fill(~allowed, -torch.inf).argmax(-1)  # [B, T]
    rows = [torch.unique_consecutive(row[:count]).tolist() for row, count in zip(best, steps, strict=True)]
    return [[symbol for symbol in row if symbol != CTC_BLANK] for row in rows]
