"""Parts for tests of evaluation: a vocoder that writes codes as tones, a real program that hears them, small runs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import EvaluateSettings
from voxgraft.evaluation.command import EvaluateResult, score_model
from voxgraft.models.base import Clip, Latents, Vocoder

RATE, FRAME = 16_000, 640
FIRST_BIN, STEP_BINS = 10, 4
ALPHABET = "abcdefghijklmnopqrstuvwxyz "

TONE_LISTENER = """
import sys, wave
import numpy as np
with wave.open(sys.argv[1]) as file:
    samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(float)
letters = "{alphabet}"
heard = ""
for at in range(0, len(samples) - {frame} + 1, {frame}):
    spectrum = np.abs(np.fft.rfft(samples[at : at + {frame}]))
    if spectrum.max() > 1000:
        heard += letters[(int(spectrum.argmax()) - {first}) // {step}]
print(heard)
"""


class Tones(Vocoder):
    """Every code is 40 ms of a tone of its own, so that a program can read the codes back from the sound."""

    sample_rate = RATE

    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        assert len(codes) == len(voices)
        return [tones(own) for own in codes]


def tones(codes: Sequence[int]) -> NDArray[np.float32]:
    time = np.arange(FRAME) / FRAME
    frames = [0.5 * np.sin(2 * np.pi * (FIRST_BIN + STEP_BINS * code) * time) for code in codes]
    return np.concatenate([np.zeros(0), *frames]).astype(np.float32)


def codes_of(text: str) -> list[int]:
    """The codes whose tones are the letters of a text."""
    return [ALPHABET.index(letter) for letter in text]


def tone_listener(folder: Path) -> str:
    """The setting of a program that writes down tones as letters."""
    script = folder / "listen.py"
    made = TONE_LISTENER.format(alphabet=ALPHABET, frame=FRAME, first=FIRST_BIN, step=STEP_BINS)
    script.write_text(made, encoding="utf-8")
    return f"command:{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{wav}}"


def parrot(folder: Path, says: str) -> str:
    """The setting of a program that hears the same in everything."""
    script = folder / "parrot.py"
    script.write_text(f"print({says!r})\n", encoding="utf-8")
    return f"command:{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{wav}}"


def in_order(folder: Path, answers: Sequence[str]) -> str:
    """The setting of a program that hears one answer after the other, then x; it counts its calls in a file."""
    script = folder / "in_order.py"
    script.write_text(
        "import json, pathlib\n"
        f"answers = json.loads({json.dumps(json.dumps(list(answers)))})\n"
        f"count = pathlib.Path({str(folder / 'count')!r})\n"
        "calls = int(count.read_text()) if count.exists() else 0\n"
        "count.write_text(str(calls + 1))\n"
        "print(answers[calls] if calls < len(answers) else 'x')\n",
        encoding="utf-8",
    )
    return f"command:{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{wav}}"


def short_sentences(folder: Path) -> list[Path]:
    """Sentences that a model of random weights, which never stops, is soon done with."""
    (folder / "am.tsv").write_text("text\trare\tphones\nሰላ\t\ts ə l a\nቤት\tቤት\tb e t\nውሃ\t\tw h a\n", encoding="utf-8")
    (folder / "en.txt").write_text("ha\nno\noh\n", encoding="utf-8")
    return [folder / "am.tsv", folder / "en.txt"]


def settings_of(*words: str) -> EvaluateSettings:
    """The settings that a command line makes."""
    line = cast(CommandLine, parse_command_line(["evaluate", *words], COMMANDS))
    return cast(EvaluateSettings, resolve_settings(line))


def evaluated(subject: Path, folder: Path, *words: str, **flags: Any) -> EvaluateResult:
    """A short evaluation, as a user asks for it."""
    texts = folder / "sentences"
    texts.mkdir(exist_ok=True)
    named = {"languages": "en", "recognizer": "none", **flags}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in named.items() if value is not None]
    sentences = [f"--sentences={path}" for path in short_sentences(texts)]
    return score_model(settings_of(str(subject), *sentences, *options, *words))
