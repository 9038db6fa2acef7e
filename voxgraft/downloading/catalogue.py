"""The published bases: every file that voxgraft and the stock programs read, where it comes from and where it goes.

Names and sizes are those of the published files (docs/downloading.md says how they were compared), for planning only:
what a hub says counts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PUBLISHED_BASES", "PublishedBase", "PublishedFile"]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One file: its repository and name there, its place in the base folder, and what it is for."""

    repository: str
    name: str
    place: str
    what: str
    about_bytes: int
    needed: bool = True
    """Others are fetched with --optional only."""
    is_folder: bool = False
    """All files of the repository below that name."""


@dataclass(frozen=True, slots=True)
class PublishedBase:
    """One base as its makers publish it."""

    title: str
    family: str
    licence: str
    files: tuple[PublishedFile, ...]


_CHATTERBOX_REPOSITORY, _INDEXTTS2_REPOSITORY = "ResembleAI/chatterbox", "IndexTeam/IndexTTS-2"


def _file_with_same_name(
    repository: str, name: str, what: str, about_bytes: int, *, needed: bool = True
) -> PublishedFile:
    return PublishedFile(repository, name, name, what, about_bytes, needed)


PUBLISHED_BASES = {
    "chatterbox-multilingual": PublishedBase(
        "Chatterbox multilingual (v2), 23 languages",
        "chatterbox",
        "MIT, (c) Resemble AI",
        (
            _file_with_same_name(
                _CHATTERBOX_REPOSITORY, "t3_mtl23ls_v2.safetensors", "T3, the language model", 2_143_989_752
            ),
            _file_with_same_name(
                _CHATTERBOX_REPOSITORY, "grapheme_mtl_merged_expanded_v1.json", "text tokenizer", 69_989
            ),
            _file_with_same_name(_CHATTERBOX_REPOSITORY, "ve.pt", "voice encoder: preparing and speaking", 5_698_626),
            _file_with_same_name(
                _CHATTERBOX_REPOSITORY, "s3gen.pt", "S3Gen: codes for preparing, sound for speaking", 1_057_165_844
            ),
            _file_with_same_name(_CHATTERBOX_REPOSITORY, "conds.pt", "built-in voice", 107_374),
            _file_with_same_name(
                _CHATTERBOX_REPOSITORY, "Cangjie5_TC.json", "Cangjie codes, for spelling Chinese", 1_920_163
            ),
        ),
    ),
    "chatterbox-english": PublishedBase(
        "Chatterbox, English",
        "chatterbox",
        "MIT, (c) Resemble AI",
        (
            _file_with_same_name(_CHATTERBOX_REPOSITORY, "t3_cfg.safetensors", "T3, the language model", 2_129_653_744),
            _file_with_same_name(_CHATTERBOX_REPOSITORY, "tokenizer.json", "text tokenizer", 25_470),
            _file_with_same_name(
                _CHATTERBOX_REPOSITORY, "ve.safetensors", "voice encoder: preparing and speaking", 5_695_784
            ),
            _file_with_same_name(
                _CHATTERBOX_REPOSITORY,
                "s3gen.safetensors",
                "S3Gen: codes for preparing, sound for speaking",
                1_056_484_620,
            ),
            _file_with_same_name(_CHATTERBOX_REPOSITORY, "conds.pt", "built-in voice", 107_374),
        ),
    ),
    "indextts2": PublishedBase(
        "IndexTTS-2, Chinese and English",
        "indextts2",
        "bilibili Model Use License Agreement; parts of others have licences of their own, on their pages",
        (
            _file_with_same_name(_INDEXTTS2_REPOSITORY, "config.yaml", "sizes and file names", 3_000),
            _file_with_same_name(_INDEXTTS2_REPOSITORY, "gpt.pth", "the GPT, the language model", 3_484_663_079),
            _file_with_same_name(_INDEXTTS2_REPOSITORY, "bpe.model", "text tokenizer", 475_997),
            _file_with_same_name(
                _INDEXTTS2_REPOSITORY,
                "wav2vec2bert_stats.pt",
                "mean and variance of the speech features: preparing",
                9_343,
            ),
            PublishedFile(
                "facebook/w2v-bert-2.0",
                "model.safetensors",
                "w2v-bert-2.0/model.safetensors",
                "w2v-bert: from a recording to features, for preparing",
                2_322_063_736,
            ),
            PublishedFile("facebook/w2v-bert-2.0", "config.json", "w2v-bert-2.0/config.json", "its sizes", 1_874),
            PublishedFile(
                "facebook/w2v-bert-2.0",
                "preprocessor_config.json",
                "w2v-bert-2.0/preprocessor_config.json",
                "its front end",
                275,
            ),
            PublishedFile(
                "amphion/MaskGCT",
                "semantic_codec/model.safetensors",
                "semantic_codec/model.safetensors",
                "semantic codec: from features to codes, for preparing",
                177_183_712,
            ),
            _file_with_same_name(
                _INDEXTTS2_REPOSITORY, "s2mel.pth", "from codes to a spectrogram: speaking", 1_202_198_223
            ),
            _file_with_same_name(
                _INDEXTTS2_REPOSITORY, "feat1.pt", "voices behind the emotion vectors: speaking", 57_170
            ),
            _file_with_same_name(_INDEXTTS2_REPOSITORY, "feat2.pt", "emotion vectors: speaking", 374_866),
            PublishedFile(
                "funasr/campplus",
                "campplus_cn_common.bin",
                "campplus_cn_common.bin",
                "the speaker's style: speaking",
                28_036_335,
            ),
            PublishedFile(
                "nvidia/bigvgan_v2_22khz_80band_256x",
                "bigvgan_generator.pt",
                "bigvgan_v2_22khz_80band_256x/bigvgan_generator.pt",
                "vocoder: from the spectrogram to the waveform, for speaking",
                449_228_171,
            ),
            PublishedFile(
                "nvidia/bigvgan_v2_22khz_80band_256x",
                "config.json",
                "bigvgan_v2_22khz_80band_256x/config.json",
                "its sizes",
                1_405,
            ),
            PublishedFile(
                _INDEXTTS2_REPOSITORY,
                "qwen0.6bemo4-merge/",
                "qwen0.6bemo4-merge/",
                "emotion from a text: speaking",
                1_204_000_000,
                needed=False,
                is_folder=True,
            ),
        ),
    ),
}
