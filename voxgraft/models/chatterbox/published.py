"""What Resemble AI published for Chatterbox, file by file: sizes, and how they are read from names and shapes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from voxgraft.checkpoints.tensors import read_tensor_shapes
from voxgraft.models.base import BaseFiles, PublishedFile
from voxgraft.models.chatterbox.encoder import SpeechTokenizerSize, VoiceEncoder
from voxgraft.models.chatterbox.family import (
    CONDITIONS_NAME,
    CONDITIONS_PURPOSE,
    RELEASE_TITLES_BY_ROWS,
    S3GEN_FILES,
    S3GEN_PURPOSE,
    VOICE_ENCODER_FILES,
    VOICE_ENCODER_PURPOSE,
)
from voxgraft.models.chatterbox.flow import FlowSize
from voxgraft.models.chatterbox.model import read_built_in_voice
from voxgraft.models.chatterbox.s3gen import S3GenSize, read_built_in_reference, validate_s3gen_file
from voxgraft.models.chatterbox.shapes import SPEECH_TOKENIZER_PREFIX, T3Size
from voxgraft.models.detect import require_exact_tensors
from voxgraft.nn.layers import init_empty_weights


def list_chatterbox_files(files: BaseFiles) -> tuple[PublishedFile, ...]:
    """The language model of the release that is in the folder, and what hears and sounds beside it."""
    releases = tuple(T3Size(text_rows=rows) for rows in RELEASE_TITLES_BY_ROWS)
    whole = S3GenSize()
    vocoders = (whole, replace(whole, flow=FlowSize(meanflow=True)))
    return (
        PublishedFile(
            (files.checkpoint.name,),
            "T3: the language model",
            lambda path: T3Size.of(read_tensor_shapes(path), path),
            releases,
        ),
        PublishedFile(VOICE_ENCODER_FILES, VOICE_ENCODER_PURPOSE, _read_voice_encoder, (None,)),
        PublishedFile(
            S3GEN_FILES,
            S3GEN_PURPOSE,
            lambda path: (
                validate_s3gen_file(path),
                SpeechTokenizerSize.of(read_tensor_shapes(path, SPEECH_TOKENIZER_PREFIX)),
            ),
            tuple((size, SpeechTokenizerSize()) for size in vocoders),
        ),
        PublishedFile((CONDITIONS_NAME,), CONDITIONS_PURPOSE, _read_conditions, (None,), needed=False),
    )


def _read_voice_encoder(path: Path) -> None:
    with init_empty_weights():
        shapes = {name: tuple(tensor.shape) for name, tensor in VoiceEncoder().state_dict().items()}
    require_exact_tensors(read_tensor_shapes(path), shapes, "voice encoder", path)


def _read_conditions(path: Path) -> None:
    read_built_in_voice(path)
    read_built_in_reference(path)
