"""Chatterbox's front end: codes at 25 a second, the voice, and the first seconds of it as a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from voxgraft.audio.waves import Waveform
from voxgraft.families.chatterbox.frame import MAX_PROMPT_CODES
from voxgraft.families.chatterbox.model import T3Condition
from voxgraft.families.chatterbox.speech_tokenizer import SpeechTokenizer
from voxgraft.families.chatterbox.voice_encoder import VoiceEncoder
from voxgraft.families.encoding import Clip, ClipEncoder

__all__ = ["T3ClipEncoder", "build_t3_condition"]

PROMPT_SECONDS = 6


class T3ClipEncoder(ClipEncoder):
    """Voice encoder and speech tokenizer of a base folder."""

    reference_rate = 24_000

    def __init__(self, voice: VoiceEncoder, tokenizer: SpeechTokenizer) -> None:
        self.voice, self.tokenizer = voice, tokenizer

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> T3ClipEncoder:
        """From the base folder: ve.pt and s3gen.pt, or the same as safetensors."""
        return cls(VoiceEncoder.load(folder).to(device), SpeechTokenizer.load(folder).to(device))

    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        """The prompt is spelled from the first six seconds alone, as when speaking: later sound would colour it."""
        speakers = self.voice.embed(waves).cpu().numpy()
        longest = PROMPT_SECONDS * self.sample_rate
        whole = self.tokenizer.encode(waves)
        long = [index for index, wave in enumerate(waves) if len(wave) > longest]
        starts = dict(zip(long, self.tokenizer.encode([waves[index][:longest] for index in long]), strict=True))
        return [
            Clip(codes, {"speaker": speaker, "prompt": starts.get(index, codes)[:MAX_PROMPT_CODES]})
            for index, (codes, speaker) in enumerate(zip(whole, speakers, strict=True))
        ]


def build_t3_condition(prompt: Clip) -> T3Condition:
    """To sound like that clip, with the published strength of emotion."""
    return T3Condition(np.asarray(prompt.voice["speaker"]), np.asarray(prompt.voice["prompt"]))
