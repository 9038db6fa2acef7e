"""What can be told of an IndexTTS-2 base beyond its tensors: its other files, by the names that its config gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.families.base import BaseFiles
from voxgraft.families.description import BaseDescription, SideFile, SideFilePurpose
from voxgraft.families.indextts2.config_file import (
    CONFIG_NAME,
    get_config_file_name,
    get_config_section,
    read_base_config,
)
from voxgraft.families.indextts2.family import IndexTTS2

RELEASE_TITLE = "IndexTTS-2"
BOTH_PURPOSES: tuple[SideFilePurpose, ...] = ("preparing", "speaking")
CODEC_NAME = "semantic_codec/model.safetensors"
W2V_BERT_FOLDER = "w2v-bert-2.0"
W2V_BERT_NAMES = (f"{W2V_BERT_FOLDER}/model.safetensors", f"{W2V_BERT_FOLDER}/pytorch_model.bin")
STATISTICS_NAME = "wav2vec2bert_stats.pt"
VOCODER_NAME = "bigvgan_v2_22khz_80band_256x"


def describe_indextts2(files: BaseFiles) -> BaseDescription:
    """All file names but those that the stock program fetches from elsewhere stand in the config."""
    config = files.config or files.folder / CONFIG_NAME
    settings = read_base_config(config) if files.config else {}

    def named(path: str, published: str) -> str:
        return get_config_file_name(settings, path, config) or published

    beside = (
        SideFile((get_statistics_name(files),), BOTH_PURPOSES, "mean and variance of the speech features"),
        SideFile(W2V_BERT_NAMES, BOTH_PURPOSES, "w2v-bert 2.0: from a recording to features (facebook/w2v-bert-2.0)"),
        SideFile((CODEC_NAME,), BOTH_PURPOSES, "semantic codec: from features to codes (amphion/MaskGCT)"),
        SideFile((named("s2mel_checkpoint", "s2mel.pth"),), ("speaking",), "from codes to a spectrogram"),
        SideFile(
            (_get_vocoder_name(settings, config),), ("speaking",), "BigVGAN: from the spectrogram to the waveform"
        ),
        SideFile(("campplus_cn_common.bin",), ("speaking",), "CAM++: the speaker's style"),
        SideFile((named("spk_matrix", "feat1.pt"),), ("speaking",), "voices behind the emotion vectors"),
        SideFile((named("emo_matrix", "feat2.pt"),), ("speaking",), "emotion vectors"),
        SideFile((named("qwen_emo_path", "qwen0.6bemo4-merge"),), (), "emotion from a text"),
    )
    return BaseDescription(RELEASE_TITLE, IndexTTS2.languages, beside)


def get_statistics_name(files: BaseFiles) -> str:
    """Where mean and variance of the features lie in the base folder."""
    named = get_config_file_name(read_base_config(files.config), "w2v_stat", files.config) if files.config else None
    return named or STATISTICS_NAME


def _get_vocoder_name(settings: dict[Any, Any], config: Path) -> str:
    """The folder that a download of the vocoder makes, which the config names with its owner."""
    name = get_config_section(settings, "vocoder", config).get("name")
    return name.rpartition("/")[2] or VOCODER_NAME if isinstance(name, str) else VOCODER_NAME
