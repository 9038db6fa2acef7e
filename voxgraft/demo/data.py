"""The speech that ships for the demonstration: codes of the built-in base's codec, with texts and speakers.

Reads it, and writes it into a run as sets that fit the run's own graft, as `prepare` does with recordings; or as talks
with subtitles (`python -m voxgraft.demo.data FOLDER`), for the tutorial. It was made by recipes/tiny_base/demo_set.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from safetensors import safe_open

from voxgraft.core.errors import FileError
from voxgraft.core.files import atomic_write_folder, compute_sha256, read_text
from voxgraft.core.results import EXIT_INTERRUPTED
from voxgraft.core.run import RunFolder
from voxgraft.dataset.sets import write_clip_dataset
from voxgraft.dataset.shards import DatasetHeader, DatasetProvenance, DatasetRole
from voxgraft.graft.folder import Graft
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, Clip, Family
from voxgraft.text.encoder import TextEncoder, text_rules_identity
from voxgraft.tokenizers import open_tokenizer

DEMO_LANGUAGE = "am"
DEMO_DATA_FOLDER = Path(str(resources.files("voxgraft").joinpath("assets/demo")))
TABLE_NAME, CODES_NAME = "speech.tsv", "speech.safetensors"
# Held-out clips as sound, each with its text and phones.
RECORDINGS_FOLDER = DEMO_DATA_FOLDER / "recordings"
SPEECH_COLUMNS = ("role", "language", "speaker", "codes", "text")
CODEC_METADATA_KEY, SILENCE_METADATA_KEY = "codec_sha256", "silence_code"
TINY_CODEC_NAME = "codec.safetensors"
# Thirteen minutes with their pauses.
NUM_TALKS, UTTERANCES_PER_TALK = 12, 20
TALK_RATE_HZ = 44_100
TALK_PAUSE_SECONDS = 0.7
# Real subtitles appear before the first word and stay after the last.
SUBTITLE_LEAD_SECONDS, SUBTITLE_TAIL_SECONDS = 0.15, 0.25

Codes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BundledClip:
    """One clip as it ships."""

    id: str
    role: DatasetRole
    language: str
    speaker: str
    text: str
    codes: Codes


@dataclass(frozen=True, slots=True)
class DemoSetWriter:
    """Writes clips as sets of a run: texts as the run spells them, voices as the base numbers them."""

    run: RunFolder
    family: Family
    files: BaseFiles
    graft: Graft

    def write(
        self, name: str, role: DatasetRole, clips: Sequence[BundledClip], text_encoder: TextEncoder | None = None
    ) -> Path:
        """One set, encoded by the run's own tokenizers or by another's; all clips are of one language."""
        language, text_encoder = clips[0].language, text_encoder or self.text_encoder
        path, header = self.run.data_set(name), self.header(language, role, text_encoder)
        write_clip_dataset(path, header, self.prepared(clips, text_encoder))
        return path

    @property
    def text_encoder(self) -> TextEncoder:
        base = open_tokenizer(self.files.tokenizer)
        return TextEncoder.of(self.family, base, self.graft.tokenizer, self.graft.card.language, self.graft.card.rules)

    def header(self, language: str, role: DatasetRole, text_encoder: TextEncoder) -> DatasetHeader:
        """The header of a set. Texts of a base language are encoded by the base's own tokenizer."""
        is_new = language == text_encoder.language and text_encoder.grown is not None
        own = text_encoder.grown if is_new and text_encoder.grown is not None else text_encoder.base
        # Codes are valid only for the codec that made them.
        path = self.files.folder / TINY_CODEC_NAME
        made_with, codec = read_codes_metadata()[CODEC_METADATA_KEY], compute_sha256(path)
        if codec != made_with:
            expected = f"{made_with[:12]}, which {CODES_NAME} was encoded with"
            raise FileError("demo-codec", f"{path.name} has sha256 {codec[:12]}", expected=expected, where=path)
        front_end = {"codec_sha256": codec}
        text = text_rules_identity(text_encoder.rules) if is_new else ""
        made_from = DatasetProvenance(own.sha256, self.graft.card.base["checkpoint_sha256"], front_end, text=text)
        return DatasetHeader(self.family.name, language, role, self.family.code_hz, made_from)

    def prepared(self, clips: Iterable[BundledClip], text_encoder: TextEncoder) -> Iterator[Clip]:
        voices = {name: clip.voice for name, clip in self.family.voices(self.files).items()}
        for clip in clips:
            seconds, ids = len(clip.codes) / self.family.code_hz, text_encoder.encode(clip.text, clip.language)
            codes, voice = np.asarray(clip.codes), voices[clip.speaker]
            yield Clip(codes, voice, ids, clip.id, clip.speaker, clip.id, seconds, clip.text)


@cache
def load_bundled_clips(role: DatasetRole, language: str) -> tuple[BundledClip, ...]:
    """The clips of a language that exist to be trained on, or held out."""
    with safe_open(str(DEMO_DATA_FOLDER / CODES_NAME), framework="numpy") as file:
        codes = file.get_tensor("codes").astype(np.int32)
    clips = []
    begin = 0
    for number, line in enumerate(read_text(DEMO_DATA_FOLDER / TABLE_NAME).splitlines()[1:]):
        own_role, own_language, speaker, count, text = line.split("\t")
        end = begin + int(count)
        if (own_role, own_language) == (role, language):
            clips.append(BundledClip(f"{language}-{number:04d}", role, language, speaker, text, codes[begin:end]))
        begin = end
    return tuple(clips)


@cache
def read_codes_metadata() -> dict[str, str]:
    """What the file of codes says of itself: the codec that made them, and the code of silence."""
    with safe_open(str(DEMO_DATA_FOLDER / CODES_NAME), framework="numpy") as file:
        return dict(file.metadata() or {})


def write_talks(folder: Path, talks: int, utterances: int, report: Callable[[str], object] = str) -> list[str]:
    """Write talks of one speaker each, with their subtitles; returns all their texts. `report` gets a line for each."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    clips_by_speaker: dict[str, list[BundledClip]] = {}
    for clip in load_bundled_clips("train", "am"):
        clips_by_speaker.setdefault(clip.speaker, []).append(clip)
    for number in range(talks):
        speaker_clips = clips_by_speaker[sorted(clips_by_speaker)[number % len(clips_by_speaker)]]
        clips, speaker_clips[:utterances] = speaker_clips[:utterances], []
        samples, times = render_talk(clips)
        # Every other talk is another kind of file.
        path = folder / f"talk{number}.{'flac' if number % 2 else 'ogg'}"
        with soundfile.SoundFile(path, "w", TALK_RATE_HZ, 1) as file:
            for start in range(0, len(samples), TALK_RATE_HZ):  # libsndfile crashes on long writes of Vorbis
                file.write(samples[start : start + TALK_RATE_HZ])
        is_vtt = number % 3 == 2  # and every third with subtitles in another format
        text = format_subtitles(clips, times, vtt=is_vtt)
        (folder / f"talk{number}.{'vtt' if is_vtt else 'srt'}").write_text(text, encoding="utf-8")
        texts += [clip.text for clip in clips]
        report(f"{number + 1} of {talks}: {path.name}, {len(samples) / TALK_RATE_HZ:.0f} s")
    return texts


def render_talk(clips: list[BundledClip]) -> tuple[NDArray[np.float32], list[tuple[float, float]]]:
    """The clips one after another with pauses, and where each is."""
    import soxr

    tiny = get_family("tiny")
    files = tiny.files(tiny.shipped_folder() or Path())
    vocoder, voices = tiny.vocoder(files), tiny.voices(files)
    assert vocoder is not None
    pause = np.zeros(round(TALK_PAUSE_SECONDS * TALK_RATE_HZ), np.float32)
    parts, times = [pause], []
    for clip in clips:
        wave = vocoder.sound([clip.codes.tolist()], [voices[clip.speaker]])[0]
        wave = soxr.resample(wave, vocoder.sample_rate, TALK_RATE_HZ)
        start = sum(map(len, parts)) / TALK_RATE_HZ
        times.append((start, start + len(wave) / TALK_RATE_HZ))
        parts += [wave.astype(np.float32), pause]
    samples = np.concatenate(parts)
    return (samples + 1e-4 * np.random.default_rng(0).standard_normal(len(samples))).astype(np.float32), times


def format_subtitles(clips: list[BundledClip], times: list[tuple[float, float]], *, vtt: bool = False) -> str:
    """Subtitles in the format SubRip (srt), or WebVTT."""

    def stamp(seconds: float) -> str:
        minutes, rest = divmod(round(seconds * 1000), 60_000)
        return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{'.' if vtt else ','}{rest % 1000:03d}"

    blocks = []
    for number, (clip, (start, end)) in enumerate(zip(clips, times, strict=True), 1):
        line = f"{stamp(start - SUBTITLE_LEAD_SECONDS)} --> {stamp(end + SUBTITLE_TAIL_SECONDS)}\n{clip.text}\n"
        blocks.append(line if vtt else f"{number}\n{line}")
    return ("WEBVTT\n\n" if vtt else "") + "\n".join(blocks)


def main(arguments: list[str]) -> int:
    """Write the talks of the tutorial; returns the exit code."""
    report = partial(print, file=sys.stderr)
    if len(arguments) != 1 or arguments[0].startswith("-") or Path(arguments[0]).exists():
        report("python -m voxgraft.demo.data FOLDER: give one folder that does not exist yet")
        return 2
    report(f"creating {NUM_TALKS} talks of about a minute in {arguments[0]}")
    try:
        # Complete or absent: half of the talks would be taken for all of them.
        with atomic_write_folder(Path(arguments[0])) as folder:
            write_talks(folder, NUM_TALKS, UTTERANCES_PER_TALK, report)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
