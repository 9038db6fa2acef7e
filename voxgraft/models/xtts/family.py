"""Facts about XTTS v2: its files and what its config says of them, its text rows, how it begins and ends a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import ConfigError, FileError, Finding, finding
from voxgraft.core.files import is_file, require_folder
from voxgraft.models import (
    find_files_by_content,
    refuse_lookalike_files,
    scan_checkpoint,
)
from voxgraft.models.base import (
    BaseDescription,
    BaseFiles,
    EmotionSource,
    Family,
    GraftPoint,
    PublishedTensors,
    SequenceSpec,
    SideFile,
)
from voxgraft.models.xtts.shapes import (
    CONFIG_NAME,
    TEXT_START_ID,
    TEXT_STOP_ID,
    VOICE_LATENTS,
    XTTSSize,
    get_config_int,
    is_computed,
    is_xtts,
    read_xtts_config,
    xtts_part_name,
)
from voxgraft.text import TextFrontend

if TYPE_CHECKING:
    import torch

    from voxgraft.models.base import Clip, ClipEncoder, UpstreamProgram, Vocoder
    from voxgraft.models.speech_model import SpeechModel
    from voxgraft.nn.decode import SamplingParams


CHECKPOINT_NAME, TOKENIZER_NAME = "model.pth", "vocab.json"
DVAE_NAME, MEL_STATS_FILE, SPEAKERS_NAME = "dvae.pth", "mel_stats.pth", "speakers_xtts.pth"
# The positions that the original program keeps free behind the codes; what it adds to a text's ids.
SPARE_SPEECH_POSITIONS, SPARE_TEXT_POSITIONS = 6, 3
# After the codes of a recording, so many stops are scored.
NUM_SPEECH_STOPS = 4
# The original program uses this code for the whole prompt, so its repetition penalty counts it as used.
FILLER_CODE = 1


class XTTS(Family):
    """Coqui's XTTS v2: a GPT-2 with a biased text head, whose states at the codes go to a HiFi-GAN."""

    name: ClassVar[str] = "xtts"
    languages: ClassVar[tuple[str, ...]] = tuple("ar cs de en es fr hi hu it ja ko nl pl pt ru tr zh".split())
    graft_points: ClassVar[tuple[GraftPoint, ...]] = (
        GraftPoint("gpt.text_embedding.weight", "embedding"),
        GraftPoint("gpt.text_head.weight", "head"),
        GraftPoint("gpt.text_head.bias", "head-bias"),
    )
    spare_rows: ClassVar[int] = 0
    has_tags: ClassVar[bool] = True
    start_id: ClassVar[int] = TEXT_START_ID
    stop_id: ClassVar[int] = TEXT_STOP_ID
    special_ids: ClassVar[dict[str, int]] = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "[START]": TEXT_START_ID}
    deleted_ids: ClassVar[frozenset[int]] = frozenset()
    tokenizer_names: ClassVar[tuple[str, ...]] = (TOKENIZER_NAME,)
    checkpoint_names: ClassVar[tuple[str, ...]] = (CHECKPOINT_NAME, "model.safetensors")
    config_name: ClassVar[str | None] = CONFIG_NAME
    has_id_gaps: ClassVar[bool] = True
    rates: ClassVar[dict[str, tuple[float, float]]] = {
        "rows": (1e-4, 1e-2),
        "adapter": (2e-4, 3e-3),
        "body": (5e-6, 1e-4),
    }
    code_hz: ClassVar[float] = 22_050 / 1_024
    licence: ClassVar[str] = (
        "XTTS v2 is under the Coqui Public Model License, which allows non-commercial use only, of the model and of "
        "what it speaks: a graft of it is bound to the same terms and must pass them on."
    )

    def files(self, folder: Path) -> BaseFiles:
        found = [
            next((folder / name for name in names if is_file(require_folder(folder) / name)), None)
            for names in (self.checkpoint_names, self.tokenizer_names)
        ]
        checkpoint, tokenizer = found
        if checkpoint is None or tokenizer is None or not self.matches_tensors(scan_checkpoint(checkpoint).shapes):
            expected = f"{CHECKPOINT_NAME}, {TOKENIZER_NAME}, {CONFIG_NAME}"
            names = [
                names[0]
                for own, names in zip(found, (self.checkpoint_names, self.tokenizer_names), strict=True)
                if own is None
            ]
            lacking = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not in the folder"
            if not names:
                lacking = f"{checkpoint.name if checkpoint else CHECKPOINT_NAME} does not contain an XTTS model"
            missing = FileError("base-file-missing", lacking, expected=expected, where=folder)
            checkpoint, tokenizer = find_files_by_content(self, folder, missing)
        config = folder / CONFIG_NAME
        if not is_file(config):
            found_text = f"{checkpoint.name} contains an XTTS model, but {CONFIG_NAME} is not in the folder"
            cure = f"put the {CONFIG_NAME} of the base next to the checkpoint. Only this file has the number of heads."
            raise FileError("base-file-missing", found_text, where=folder, cure=cure)
        refuse_lookalike_files(self, checkpoint, tokenizer)
        return BaseFiles(folder, checkpoint, tokenizer, config)

    def front(self, tokenizer: Path | None = None) -> TextFrontend:
        from voxgraft.models.xtts.text import XTTSTextFrontend, list_tagged_languages

        return XTTSTextFrontend(list_tagged_languages(tokenizer) if tokenizer else ())

    def tag(self, language: str) -> str:
        from voxgraft.models.xtts.text import language_tag

        return language_tag(language)

    def sequence_spec(self, num_text_ids: int, size: XTTSSize | None = None) -> SequenceSpec:
        return xtts_sequence_spec(num_text_ids, size)

    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.checkpoints.load import read_tensor_shapes
        from voxgraft.models.xtts.model import XTTSModel

        return XTTSModel(self.infer_size(files, read_tensor_shapes(files.checkpoint)))

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.models.xtts.encoder import XTTSClipEncoder
        from voxgraft.models.xtts.model import XTTSModel

        assert isinstance(model, XTTSModel)
        return XTTSClipEncoder.load(files, model)

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:  # noqa: ARG002 (it knows no emotions)
        from voxgraft.models.xtts.model import LATENTS_ARRAY

        return np.asarray(prompt.voice[LATENTS_ARRAY])

    def vocoder(self, files: BaseFiles, device: str = "cpu", dtype: torch.dtype | None = None) -> Vocoder | None:
        from voxgraft.models.xtts.vocoder import XTTSVocoder

        return XTTSVocoder.find(files, device, dtype)

    def published_files(self, files: BaseFiles) -> tuple[PublishedTensors, ...]:
        from voxgraft.models.xtts.vocoder import list_xtts_files

        return list_xtts_files(files)

    def voices(self, files: BaseFiles) -> Mapping[str, Clip]:
        from voxgraft.models.xtts.encoder import read_xtts_voices

        path = files.folder / SPEAKERS_NAME
        return read_xtts_voices(path) if is_file(path) else {}

    def upstream_sampling(self) -> SamplingParams:
        from voxgraft.nn.decode import SamplingParams

        return SamplingParams(
            temperature=0.75, top_k=50, top_p=0.85, repetition_penalty=5.0, max_codes=xtts_sequence_spec(1).max_codes
        )

    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        return is_xtts(shapes)

    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
        """Recognises XTTS version 1, which has no perceiver and another table of speech codes."""
        if not {"gpt.text_embedding.weight", "gpt.mel_embedding.weight"} <= shapes.keys() or is_xtts(shapes):
            return None
        rows = (*shapes["gpt.mel_embedding.weight"], 0)[0]
        found = f"{path.name} is XTTS version 1: it has no gpt.conditioning_perceiver, and {rows:,} speech rows"
        cure = "use XTTS v2 (coqui/XTTS-v2: model.pth, vocab.json, config.json)."
        return finding(
            "base-version", found, expected="XTTS v2, with a perceiver and 1,026 speech rows", where=path, cure=cure
        )

    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> XTTSSize:
        config = read_xtts_config(files.config) if files.config else {}
        return read_xtts_size(config, shapes, files)

    def get_part_name(self, tensor: str) -> str | None:
        return xtts_part_name(tensor)

    def is_computed(self, tensor: str) -> bool:
        return is_computed(tensor)

    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:  # noqa: ARG002 (there is one release)
        sides = (
            SideFile((DVAE_NAME,), ("preparing",), "DVAE: from a recording to codes"),
            SideFile((MEL_STATS_FILE,), (), "scale of the mel spectrograms; also in the checkpoint"),
            SideFile((SPEAKERS_NAME,), (), "built-in voices, for speaking without a recording"),
        )
        return BaseDescription("XTTS v2", self.languages, sides)

    def upstream(self) -> UpstreamProgram:
        from voxgraft.models.xtts.upstream import XTTSProgram

        return XTTSProgram()

    def read_config_pieces(self, config: Path) -> int | None:
        return get_config_int(read_xtts_config(config), "gpt_number_text_tokens", config)


def read_xtts_size(config: Mapping[str, Any], shapes: Mapping[str, Shape], files: BaseFiles) -> XTTSSize:
    """The size that the tensors show and config.json must state, where it states one."""
    where = files.config or files.folder / CONFIG_NAME
    size = XTTSSize.of(shapes, files.checkpoint, heads=get_config_int(config, "gpt_n_heads", where) or 0)
    for name, value in {
        "gpt_n_model_channels": size.width,
        "gpt_layers": size.layers,
        "gpt_number_text_tokens": size.text_rows,
        "gpt_num_audio_tokens": size.speech_rows,
        "gpt_start_audio_token": size.speech_rows - 2,
        "gpt_stop_audio_token": size.speech_rows - 1,
        "gpt_start_text_token": TEXT_START_ID,
        "gpt_stop_text_token": TEXT_STOP_ID,
    }.items():
        stated = get_config_int(config, name, where)
        if stated is not None and stated != value:
            found = f"model_args.{name} is {stated:,}, but {files.checkpoint.name} has {value:,}"
            raise ConfigError("base-config", found, expected=f"{value}", where=where)
    return size


def xtts_sequence_spec(num_text_ids: int, size: XTTSSize | None = None) -> SequenceSpec:
    """Four stops are learned after the codes, and the text's stop is only there while speaking."""
    size = size or XTTSSize()
    num_codes = size.speech_rows - 2
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=XTTS.start_id,
        text_stop=XTTS.stop_id,
        num_codes=num_codes,
        speech_start=num_codes,
        speech_stop=num_codes + 1,
        max_text=size.text_positions - SPARE_TEXT_POSITIONS,
        max_codes=size.speech_positions - SPARE_SPEECH_POSITIONS,
        num_conditioning=VOICE_LATENTS,
        num_speech_stops=NUM_SPEECH_STOPS,
        hides_text_stop=True,
        initial_penalized_codes=(FILLER_CODE, num_codes),
        voices_stop=True,
    )
