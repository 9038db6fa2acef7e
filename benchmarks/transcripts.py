"""`data verify` and `data align` on speech whose texts and places are known.

`python -m benchmarks.transcripts verify` speaks sentences of a language with espeak-ng in several voices, gives 5 % of
the clips the text of another clip, and counts how many of these are among the worst tenth. Languages other than English,
French and Amharic are not known to the built-in recognizer, which then compares classes of sounds.

`python -m benchmarks.transcripts align` joins sentences with pauses, breaths and noise to one recording, hides the times,
and counts boundaries within 0.25 s and sentences that were accepted at a wrong place. With `--faulty`, a tenth of the
sentences of the text is not read, and a tenth of what is read is not in the text.

Both take `--dataset SET` for human voices instead: clips whose texts are right (`python -m benchmarks.human_speech` makes
such datasets). `--faults` chooses single faults of a reading: `extra` (in the text only), `missing` (read only) and
`swapped` (neighbours in the other order).
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import soxr

from benchmarks.film import RATE_HZ, VOICES, Wave, _espeak, _silence, _trimmed
from voxgraft.asr import open_recognizer
from voxgraft.asr.align import MAX_PHRASE_SECONDS, AlignedSentence, align_sentences, transcribe_recording
from voxgraft.asr.matching import TextMatcher
from voxgraft.asr.transcripts import data_verify
from voxgraft.audio.files import read_clip_audio, write_clip_audio
from voxgraft.config.data import DataAlignSettings, DataVerifySettings
from voxgraft.data.manifest import ManifestClip, read_manifest, write_manifest
from voxgraft.data.segment import split_sentences

SWAPPED_SHARE, WORST_SHARE = 0.05, 0.1
CLOSE_SECONDS = 0.25


def sentences(language: str) -> list[str]:
    """Sentences of 5 to 16 words that ship with voxgraft, without digits."""
    files = resources.files("voxgraft").joinpath("assets")
    place = next(path for folder in ("demo", "proof") if (path := files.joinpath(folder, f"{language}.txt")).is_file())
    lines = dict.fromkeys(place.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if 5 <= len(line.split()) <= 16 and not any(map(str.isdigit, line))]


def say(text: str, voice: str, language: str, noise: float, seed: int) -> Wave:
    """A sentence at RATE_HZ with a little noise."""
    wave = soxr.resample(_espeak().speak(text, voice, language), _espeak().rate_hz, RATE_HZ).astype(np.float32)
    wave *= 0.6 / max(1e-6, float(np.abs(wave).max()))
    made: Wave = wave + np.random.default_rng(seed).normal(0, noise, len(wave)).astype(np.float32)
    return made


def make_swapped_dataset(folder: Path, language: str, count: int, seed: int, noise: float = 0.002) -> set[str]:
    """A dataset in which some clips have each other's texts; returns the ids of these."""
    chance = random.Random(seed)
    texts = chance.sample(sentences(language), min(count, len(sentences(language))))
    wrong = chance.sample(range(len(texts)), max(2, round(SWAPPED_SHARE * len(texts))))
    written = dict(enumerate(texts))
    for at, other in zip(wrong, [*wrong[1:], wrong[0]], strict=True):
        written[at] = texts[other]
    clips = []
    for at, text in enumerate(texts):
        voice = VOICES[at % len(VOICES)]
        wave = say(text, voice, language, noise, at)
        seconds = len(wave) / RATE_HZ
        clip = ManifestClip(
            f"c{at:04d}", f"clips/c{at:04d}.flac", seconds, written[at], language, voice, f"r{at}", RATE_HZ
        )
        write_clip_audio(folder / clip.audio, wave, RATE_HZ)
        clips.append(clip)
    write_manifest(folder / "manifest.jsonl", clips)
    return {f"c{at:04d}" for at in wrong}


def choose_clips(dataset: Path, count: int, seed: int, speaker: str | None = None) -> list[ManifestClip]:
    """Clips of a dataset whose texts are one sentence of at least three words without digits."""
    known = [
        clip
        for clip in read_manifest(dataset / "manifest.jsonl")
        if (speaker is None or clip.speaker == speaker)
        and len(clip.text.split()) >= 3
        and len(split_sentences(clip.text)) == 1
        and not any(map(str.isdigit, clip.text))
    ]
    return random.Random(seed).sample(known, min(count, len(known)))


def swap_texts(folder: Path, clips: Sequence[ManifestClip], dataset: Path, seed: int) -> set[str]:
    """A dataset of these clips in which 5 % have each other's texts; returns the ids of these."""
    wrong = random.Random(seed).sample(range(len(clips)), max(2, round(SWAPPED_SHARE * len(clips))))
    texts = {at: clips[other].text for at, other in zip(wrong, [*wrong[1:], wrong[0]], strict=True)}
    audio = [str(clip.resolve_audio(dataset).resolve()) for clip in clips]
    made = [replace(clip, audio=audio[at], text=texts.get(at, clip.text)) for at, clip in enumerate(clips)]
    write_manifest(folder / "manifest.jsonl", made)
    return {clips[at].id for at in wrong}


def measure_verify(given: argparse.Namespace, language: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        if given.dataset is None:
            swapped = make_swapped_dataset(Path(place), language, given.clips, given.seed)
        else:
            chosen = choose_clips(given.dataset, given.clips, given.seed, given.speaker)
            language = chosen[0].language
            swapped = swap_texts(Path(place), chosen, given.dataset, given.seed)
        start = time.process_time()
        settings = DataVerifySettings(dataset=Path(place), worst=WORST_SHARE, recognizer=given.recognizer)
        found = data_verify(settings).to_json()
        seconds = time.process_time() - start
    worst, marked = {one["id"] for one in found["worst"]}, set(found["marked"])
    print(
        f"{language}: {found['clips']} clips, {len(swapped)} swapped, {len(swapped & worst)} of them in the worst "
        f"{WORST_SHARE:.0%} ({len(worst)} clips); marked {len(marked)}, of them swapped {len(marked & swapped)}; "
        f"median disagreement {found['median']:.3f}; {seconds:.0f} s of processor time"
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """A recording of a text with the true times. A sentence that is not read has none."""

    wave: Wave
    text: list[str]
    times: list[tuple[float, float] | None]


def make_reading(language: str, count: int, seed: int, *, faulty: bool = False, noise: float = 0.002) -> Reading:
    """Sentences read by one voice with pauses between them, breaths inside some, and noise over all."""
    chance = random.Random(seed)
    own = [text if text[-1] in ".!?።" else f"{text}." for text in sentences(language)]
    texts = chance.sample([text for text in own if len(split_sentences(text)) == 1], count)
    voice = chance.choice(VOICES)
    pieces: list[Wave] = [_silence(0.6)]
    times: list[tuple[float, float] | None] = []
    at = len(pieces[0])
    written: list[str] = []
    for text in texts:
        fault = chance.random() if faulty else 1.0
        if fault < 0.1:  # in the text only
            written.append(text)
            times.append(None)
            continue
        words, breath = text.split(), chance.random() < 0.3
        half = len(words) // 2
        parts = [" ".join(words[:half]), " ".join(words[half:])] if breath else [text]
        spoken = [_trimmed(say(part, voice, language, 0.0, 0)) for part in parts]
        start = at
        for number, wave in enumerate(spoken):
            if number:
                pieces.append(_silence(chance.uniform(0.15, 0.4)))
                at += len(pieces[-1])
            pieces.append(wave)
            at += len(wave)
        if fault >= 0.2:  # else it is read, but not in the text
            written.append(text)
            times.append((start / RATE_HZ, at / RATE_HZ))
        pieces.append(_silence(chance.choice((0.3, 0.45, 0.7, 1.1))))
        at += len(pieces[-1])
    wave = np.concatenate(pieces)
    wave = wave + np.random.default_rng(seed).normal(0, noise, len(wave)).astype(np.float32)
    return Reading(wave.astype(np.float32), written, times)


def make_human_reading(
    dataset: Path, count: int, seed: int, faults: Sequence[str] = (), speaker: str | None = None
) -> Reading:
    """Clips of a dataset joined with pauses of the clips' own room noise; some faults, each for a tenth of them."""
    chance, noise = random.Random(seed), np.random.default_rng(seed)
    clips = choose_clips(dataset, count, seed, speaker)
    waves = [_speech_of(*read_clip_audio(clip.resolve_audio(dataset))) for clip in clips]
    # Quiet frames of all clips give the spectrum of the pauses; phases are random.
    quiet = np.concatenate([frames for _, frames in waves])
    spectrum = np.sqrt(np.square(np.abs(np.fft.rfft(quiet * np.hanning(quiet.shape[1])))).mean(axis=0))
    # Clips that end with their last sound have no quiet frame: the median ignores them.
    level = float(np.median(np.sqrt(np.square(quiet).mean(axis=1))))

    def pause(seconds: float) -> Wave:
        length = round(seconds * RATE_HZ)
        white = np.fft.rfft(noise.normal(size=length))
        shape = np.interp(np.linspace(0, 1, len(white)), np.linspace(0, 1, len(spectrum)), spectrum)
        made = np.fft.irfft(white * shape, length)
        return (made * level / max(1e-9, float(np.sqrt(np.square(made).mean())))).astype(np.float32)

    order = list(range(len(clips)))
    pieces, at = [pause(0.6)], round(0.6 * RATE_HZ)
    times: dict[int, tuple[float, float] | None] = {}
    listed: list[int] = []
    for number in order:
        fault = chance.choice(faults) if faults and chance.random() < 0.1 * len(faults) else ""
        if fault == "swapped" and listed:
            listed.insert(len(listed) - 1, number)
        elif fault != "missing":
            listed.append(number)
        times[number] = None
        if fault != "extra":
            wave = waves[number][0]
            times[number] = at / RATE_HZ, (at + len(wave)) / RATE_HZ
            pieces += [wave, pause(chance.choice((0.3, 0.45, 0.7, 1.1)))]
            at += len(wave) + len(pieces[-1])
    text = [clips[number].text.rstrip(" .,;:-") + "." for number in listed]
    # A text may hold marks that end a sentence before its end, which a clip's last character hid.
    text = [one if split_sentences(one) == [one] else " ".join(split_sentences(one)) for one in text]
    wave = np.concatenate(pieces)
    wave = wave + noise.normal(0, 0.0005, len(wave)).astype(np.float32)
    return Reading(wave.astype(np.float32), text, [times[number] for number in listed])


def _speech_of(samples: Wave, rate: int) -> tuple[Wave, Wave]:
    """A clip at RATE_HZ from its first to its last sound, and its quietest frames of 10 ms."""
    wave = soxr.resample(samples, rate, RATE_HZ).astype(np.float32)
    wave *= 0.6 / max(1e-6, float(np.abs(wave).max()))
    size = RATE_HZ // 100
    frames = wave[: len(wave) // size * size].reshape(-1, size)
    level = np.sqrt(np.square(frames).mean(axis=1))
    loud = np.flatnonzero(level > 0.03 * np.percentile(level, 98))
    first, last = max(0, loud[0] - 2) * size, (loud[-1] + 3) * size
    return wave[first:last], frames[np.argsort(level)[:3]]


def judge_alignment(reading: Reading, found: Sequence[AlignedSentence]) -> dict[str, int]:
    """Boundaries within 0.25 s of all sentences that were read, and accepted sentences that are elsewhere.

    An accepted sentence is wrong if it was not read, or if an edge is more than half a second from its own.
    """
    assert [one.text for one in found] == reading.text
    pairs = list(zip(found, reading.times, strict=True))
    read = [(one, times) for one, times in pairs if times is not None]
    near = sum(
        abs(own - true) <= CLOSE_SECONDS
        for one, times in read
        if one.end > one.start
        for own, true in zip((one.start, one.end), times, strict=True)
    )
    accepted = [(one, times) for one, times in pairs if not one.reason]
    wrong = [
        one.text
        for one, times in accepted
        if times is None or max(abs(one.start - times[0]), abs(one.end - times[1])) > 2 * CLOSE_SECONDS
    ]
    return {"boundaries": 2 * len(read), "near": near, "accepted": len(accepted), "wrong": len(wrong)} | {
        "read": len(read),
        "near_accepted": sum(
            abs(own - true) <= CLOSE_SECONDS
            for one, times in accepted
            if times is not None
            for own, true in zip((one.start, one.end), times, strict=True)
        ),
    }


def measure_align(given: argparse.Namespace, language: str) -> None:
    seed = given.seed
    if given.dataset is None:
        reading = make_reading(language, given.clips, seed, faulty=given.faulty)
    else:
        reading = make_human_reading(given.dataset, given.clips, seed, given.faults, given.speaker)
        language = choose_clips(given.dataset, 1, 0)[0].language
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "reading.flac"
        write_clip_audio(path, reading.wave, RATE_HZ)
        start = time.process_time()
        recognizer = open_recognizer(given.recognizer)
        matcher = TextMatcher.build(recognizer, language)
        heard = transcribe_recording(path, recognizer, language, MAX_PHRASE_SECONDS, matcher)
        threshold = DataAlignSettings.model_fields["threshold"].default
        found = align_sentences(reading.text, heard, language, threshold, matcher)
        seconds = time.process_time() - start
    reported = judge_alignment(reading, found)
    reasons = Counter(one.reason for one in found if one.reason)
    print(
        f"{language}{' faulty' * given.faulty} {given.dataset.name if given.dataset else ''} {' '.join(given.faults)}, seed {seed}: {len(reading.wave) / RATE_HZ / 60:.1f} min, "
        f"{len(reading.text)} sentences, {reported['read']} read; boundaries within {CLOSE_SECONDS} s: {reported['near']} of "
        f"{reported['boundaries']}; accepted {reported['accepted']} ({reported['near_accepted']} of {2 * reported['accepted']} boundaries), "
        f"wrong {reported['wrong']}; rejected {dict(reasons)}; {seconds:.0f} s of processor time",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("verify", "align"))
    parser.add_argument("--languages", nargs="+", default=["en", "fr", "am"])
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faulty", action="store_true")
    parser.add_argument("--dataset", type=Path, help="clips of a dataset instead of synthetic speech")
    parser.add_argument("--speaker", help="one speaker of the dataset")
    parser.add_argument("--faults", nargs="+", default=[], choices=("extra", "missing", "swapped"))
    parser.add_argument("--recognizer", default="built-in")
    given = parser.parse_args()
    for language in given.languages if given.dataset is None else ("",):
        (measure_verify if given.what == "verify" else measure_align)(given, language)


if __name__ == "__main__":
    main()
