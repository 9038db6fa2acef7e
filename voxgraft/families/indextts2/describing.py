"""What can be told of an IndexTTS-2 base beyond its tensors: its other files, by the names that its config gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.families.base import BaseFiles
from voxgraft.families.description import Description, Purpose, SideFile
from voxgraft.families.indextts2.config_file import CONFIG_NAME, file_name, section_of, settings_of
from voxgraft.families.indextts2.family import IndexTTS2

RELEASE = "IndexTTS-2"
BOTH: tuple[Purpose, ...] = ("preparing", "speaking")
CODEC_NAME = "semantic_codec/model.safetensors"
FEATURES_FOLDER = "w2v-bert-2.0"
FEATURES_NAMES = (f"{FEATURES_FOLDER}/model.safetensors", f"{FEATURES_FOLDER}/pytorch_model.bin")
STATISTICS_NAME = "wav2vec2bert_stats.pt"
VOCODER_NAME = "bigvgan_v2_22khz_80band_256x"


def describe(files: BaseFiles) -> Description:
    """All file names but those that the stock program fetches from elsewhere stand in the config."""
    config = files.config or files.folder / CONFIG_NAME
    settings = settings_of(config) if files.config else {}

    def named(path: str, published: str) -> str:
        return file_name(settings, path, config) or published

    beside = (
        SideFile((statistics_name(files),), BOTH, "mean and variance of the speech features"),
        SideFile(FEATURES_NAMES, BOTH, "w2v-bert 2.0: from a recording to features (facebook/w2v-bert-2.0)"),
        SideFile((CODEC_NAME,), BOTH, "semantic codec: from features to codes (amphion/MaskGCT)"),
        SideFile((named("s2mel_checkpoint", "s2mel.pth"),), ("speaking",), "from codes to a spectrogram"),
        SideFile((_vocoder(settings, config),), ("speaking",), "BigVGAN: from the spectrogram to the waveform"),
        SideFile(("campplus_cn_common.bin",), ("speaking",), "CAM++: the speaker's style"),
        SideFile((named("spk_matrix", "feat1.pt"),), ("speaking",), "voices behind the emotion vectors"),
        SideFile((named("emo_matrix", "feat2.pt"),), ("speaking",), "emotion vectors"),
        SideFile((named("qwen_emo_path", "qwen0.6bemo4-merge"),), (), "emotion from a text"),
    )
    return Description(RELEASE, IndexTTS2.languages, beside)


def statistics_name(files: BaseFiles) -> str:
    """Where mean and variance of the features lie in the base folder."""
    named = file_name(settings_of(files.config), "w2v_stat", files.config) if files.config else None
    return named or STATISTICS_NAME


def _vocoder(settings: dict[Any, Any], config: Path) -> str:
    """The folder that a download of the vocoder makes, which the config names with its owner."""
    name = section_of(settings, "vocoder", config).get("name")
    return name.rpartition("/")[2] or VOCODER_NAME if isinstance(name, str) else VOCODER_NAME
