"""Voxgraft next to the original program on the same weights, codes and noise, where its companion is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from voxgraft.companions.environments import CompanionProcess, find_environment
from voxgraft.core.errors import Finding, VoxgraftError, finding
from voxgraft.models.base import Vocoder
from voxgraft.models.chatterbox.s3gen import S3GenNoise, S3GenVocoder
from voxgraft.models.speech_model import compute_speech_latents
from voxgraft.synthesis.engine import SynthesisModels
from voxgraft.synthesis.inputs import VoiceLoader
from voxgraft.synthesis.sound import SpokenUtterance

# Of the mel, in nepers. Rounding alone stays below a hundredth of it in float32, and mistakes are above a tenth.
MAX_MEL_DIFFERENCE = 0.02
# Positions at which both programs find the same code likeliest. With half precision, near ties may fall either way.
MIN_EQUAL_SHARE = 0.95


def compare_with_original(
    speakers: SynthesisModels, voices: VoiceLoader, vocoder: Vocoder, said: SpokenUtterance, findings: list[Finding]
) -> dict[str, Any]:
    """Codes and mel of one utterance in both programs; the reason where they are not compared."""
    family = speakers.place.family
    try:
        environment = find_environment(family.name)
        if environment is None:
            return {"original program": f"not compared: there is no companion (`voxgraft companion {family.name}`)"}
        if not isinstance(vocoder, S3GenVocoder):
            return {"original program": f"not compared: the companion of {family.name} takes no codes"}
        companion = environment.companion()
        try:
            versions = companion.hello().get("versions", {})
            name = ", ".join(f"{package} {version}" for package, version in list(versions.items())[:2])
            return {
                "original program": name,
                "codes": _compare_codes(companion, speakers, voices, said, findings),
                "mel": _compare_mels(companion, vocoder, said, findings),
            }
        finally:
            companion.close()
    except VoxgraftError as error:
        findings.append(error.finding)
        return {"original program": f"not compared: stopped by {error.code}"}


def _compare_codes(
    companion: CompanionProcess,
    speakers: SynthesisModels,
    voices: VoiceLoader,
    said: SpokenUtterance,
    findings: list[Finding],
) -> str:
    """The likeliest code after each code that was spoken, in both programs."""
    one, model = said.pieces[0], speakers.system(said.language).model
    frame, condition = model.frame, voices.condition(said.voice)
    arrays = {
        "text": np.array([frame.text_start, *one.ids, frame.text_stop], dtype=np.int64),
        "codes": np.array([frame.speech_start, *one.codes[:-1]], dtype=np.int64),
        "speaker": np.asarray(condition.speaker, dtype=np.float32).reshape(1, -1),
        "prompt": np.asarray(condition.prompt, dtype=np.int64),
    }
    path = str(speakers.place.files.checkpoint)
    theirs = companion.ask("logits", arrays, t3=path, emotion=float(condition.emotion))["logits"]
    (latents,) = compute_speech_latents(model, [one.ids], [condition], [one.codes])
    ours = model.speech_logits(latents.to(next(model.parameters()).dtype)).float().cpu().numpy()
    equal, total = int((ours.argmax(-1) == theirs.argmax(-1)).sum()), len(ours)
    told = f"{equal} of {total} likeliest codes are equal; scores differ by up to {np.abs(ours - theirs).max():.1g}"
    if equal < MIN_EQUAL_SHARE * total:
        findings.append(finding("first-contact-original", f"codes: {told}", expected=f"{total} of {total}"))
    return told


def _compare_mels(
    companion: CompanionProcess, vocoder: S3GenVocoder, said: SpokenUtterance, findings: list[Finding]
) -> str:
    codes: Sequence[int] = said.pieces[0].codes
    reference = vocoder.reference(said.voice.clip)
    noise = vocoder.draw_noise(len(codes), reference)
    (ours,) = vocoder.model.generate_mels([codes], [reference], [noise])
    arrays = {"codes": np.array(codes, dtype=np.int64), "noise": _as_array(noise)}
    words: dict[str, Any] = {"s3gen": str(vocoder.path)}
    if (recording := said.voice.clip.voice.get("reference")) is not None:
        arrays["reference"] = np.asarray(recording, dtype=np.float32)
    else:
        words["conditions"] = str(vocoder.conditions)
    theirs = companion.ask("mel", arrays, **words)["mel"]
    if theirs.shape != tuple(ours.T.shape):
        found = f"mel: {list(theirs.shape)} from the original program, {list(ours.T.shape)} from voxgraft"
        findings.append(finding("first-contact-original", found, expected="equal mels"))
        return found
    difference = float((ours.T.cpu() - torch.from_numpy(theirs)).abs().max())
    told = f"differs by up to {difference:.1g} over {theirs.shape[1]} frames, on the same noise"
    if difference > MAX_MEL_DIFFERENCE:
        findings.append(finding("first-contact-original", f"mel {told}", expected=f"at most {MAX_MEL_DIFFERENCE:g}"))
    return told


def _as_array(noise: S3GenNoise) -> Any:
    return noise.flow.cpu().numpy()
