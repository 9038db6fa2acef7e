"""Scores of the recipe: error rates of the built-in recognizer for the original voice, the codec and the base.

By language, for training words and held-out words; English also by an independent recognizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.tiny_base.corpus import Utterance
from recipes.tiny_base.scoring import errors
from recipes.tiny_base.speech import FLITE_SPEAKERS
from recipes.tiny_base.texts import LANGUAGES, normalize_letters
from voxgraft.asr import BuiltInRecognizer, Transcript
from voxgraft.models.tiny.model import SAMPLES_PER_CODE, TinyCodec

if TYPE_CHECKING:
    from recipes.tiny_base.base_speech import BaseSpeech

__all__ = ["measure", "score_with_pocketsphinx"]

Wave = NDArray[np.float32]
Log = Callable[[str], None]
RATE_HZ = 16_000
SPLITS = ("test", "test-unheard")
BASE_LANGUAGES = ("en", "fr")
SHORTEST = RATE_HZ // 10
"""The base can stop at once; the empty utterance is transcribed as silence of this length."""
SECOND_EAR_UTTERANCES = 40


def measure(
    corpus: Sequence[Utterance],
    codec: TinyCodec,
    listener: BuiltInRecognizer,
    base: Path | None,
    device: torch.device,
    log: Log,
) -> dict[str, Any]:
    """Letter and phone error rates by language, split and source."""
    codec.to(device)
    listener.network.to(device)
    speech = None if base is None else opened(base, device)
    scores: dict[str, Any] = {}
    for language in LANGUAGES:
        for split in SPLITS:
            own = [one for one in corpus if one.language == language and one.split == split]
            sources = {"original": original(own), "codec": resynthesis(own, codec)}
            if speech is not None and language in BASE_LANGUAGES:
                sources["base"] = spoken(own, speech)
            for source, waves in sources.items():
                transcripts = listener.transcribe(waves, RATE_HZ, language)
                found = rates(own, transcripts)
                scores[f"{language} {split} {source}"] = found
                log(f"score: {language} {split:12} {source:8} " + format_scores(found))
    return scores


def rates(utterances: Sequence[Utterance], transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """CER and PER of all utterances, and PER by synthesizer if there are both."""
    letters = [
        (normalize_letters(one.text, one.language), normalize_letters(other.text, one.language))
        for one, other in zip(utterances, transcripts, strict=True)
    ]
    phones = [(one.phones, other.phones or ()) for one, other in zip(utterances, transcripts, strict=True)]
    found: dict[str, Any] = {"utterances": len(utterances), "cer": errors(letters), "per": errors(phones)}
    flite = [pair for pair, one in zip(phones, utterances, strict=True) if one.speaker in FLITE_SPEAKERS]
    if flite:
        espeak = [pair for pair, one in zip(phones, utterances, strict=True) if one.speaker not in FLITE_SPEAKERS]
        found |= {"per_espeak": errors(espeak), "per_flite": errors(flite)}
    return {name: round(value, 4) for name, value in found.items()}


def original(utterances: Sequence[Utterance]) -> list[Wave]:
    """The synthesized waves."""
    return [one.wave.astype(np.float32) / np.float32(32768) for one in utterances]


@torch.no_grad()
def resynthesis(utterances: Sequence[Utterance], codec: TinyCodec) -> list[Wave]:
    """The same through the codec, one after another."""
    device = next(codec.parameters()).device
    made: list[Wave] = []
    for one, wave in zip(utterances, original(utterances), strict=True):
        codes, _ = codec.encode(torch.from_numpy(wave)[None].to(device))
        made.append(codec.decode(codes[0], one.speaker).cpu().numpy()[: max(len(wave), SAMPLES_PER_CODE)])
    return made


def opened(base: Path, device: torch.device) -> BaseSpeech:
    """The base, opened."""
    from recipes.tiny_base.base_speech import BaseSpeech

    return BaseSpeech(base, str(device))


def spoken(utterances: Sequence[Utterance], speech: BaseSpeech) -> list[Wave]:
    """Speech of the base for the same texts and voices."""
    found: dict[int, Wave] = {}
    for speaker in sorted({one.speaker for one in utterances}):
        places = [place for place, one in enumerate(utterances) if one.speaker == speaker]
        texts = [utterances[place].text for place in places]
        waves = speech.waves(texts, utterances[0].language, speaker)
        found.update(zip(places, waves, strict=True))
    return [np.pad(found[place], (0, max(0, SHORTEST - len(found[place])))) for place in range(len(utterances))]


def score_with_pocketsphinx(
    corpus: Sequence[Utterance], codec: TinyCodec, base: Path | None, log: Log
) -> dict[str, Any]:
    """English clauses transcribed by PocketSphinx, if installed: word and letter errors by program and source."""
    try:
        from pocketsphinx import Decoder
    except ImportError:
        log("pocketsphinx is not installed")
        return {}
    decoder = Decoder(samprate=RATE_HZ, loglevel="FATAL")
    speech = None if base is None else opened(base, torch.device("cpu"))
    clauses = [one for one in corpus if one.language == "en" and one.split == "test" and len(one.text.split()) > 2]
    scores: dict[str, Any] = {}
    for program in ("flite", "espeak"):
        own = [one for one in clauses if (one.speaker in FLITE_SPEAKERS) == (program == "flite")]
        own = own[:SECOND_EAR_UTTERANCES]
        if not own:
            continue
        sources = {"original": original(own), "codec": resynthesis(own, codec)}
        if speech is not None:
            sources["base"] = spoken(own, speech)
        for source, waves in sources.items():
            transcripts = [sphinx_text(decoder, wave) for wave in waves]
            pairs = [(normalize_letters(one.text, "en"), other) for one, other in zip(own, transcripts, strict=True)]
            wer = errors([(true.split(), other.split()) for true, other in pairs])
            found = {"utterances": len(own), "wer": round(wer, 4), "cer": round(errors(pairs), 4)}
            scores[f"{program} {source}"] = found
            log(f"pocketsphinx: {program} {source} {format_scores(found)}")
    return scores


def sphinx_text(decoder: Any, wave: Wave) -> str:
    """Transcript by PocketSphinx with its own English model; half a second of silence is added on either side."""
    samples = np.pad((np.clip(wave, -1, 1) * 32767).astype(np.int16), RATE_HZ // 2)
    decoder.start_utt()
    decoder.process_raw(samples.tobytes(), no_search=False, full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return normalize_letters(found.hypstr, "en") if found is not None else ""


def format_scores(found: dict[str, Any]) -> str:
    """Format a line of the log."""
    return "  ".join(f"{name} {100 * value:.1f} %" for name, value in found.items() if name != "utterances")
