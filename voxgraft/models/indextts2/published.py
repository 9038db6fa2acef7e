"""What was published for IndexTTS-2, file by file: sizes, and how they are read from names and shapes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.checkpoints.tensors import read_tensor_shapes
from voxgraft.models.base import BaseFiles, PublishedFile
from voxgraft.models.campplus import CAMPPlus, CAMPPlusSize
from voxgraft.models.detect import require_exact_tensors
from voxgraft.models.indextts2.bigvgan import BIGVGAN_NAMES, BigVGAN, BigVGANSize
from voxgraft.models.indextts2.emotion import VECTORS_PER_EMOTION, EmotionTable
from voxgraft.models.indextts2.encoder import (
    DEFAULT_CONFIG_SIZES,
    SemanticCodec,
    SemanticCodecSize,
    import_transformers,
    read_w2v_bert_sizes,
)
from voxgraft.models.indextts2.family import (
    CAMPPLUS_NAME,
    CODEC_NAME,
    CONFIG_NAMED_FILES,
    STYLE_WIDTH,
    W2V_BERT_FILES,
    W2V_BERT_FOLDER,
    get_s2mel_name,
    get_statistics_name,
    get_vocoder_folder,
)
from voxgraft.models.indextts2.s2mel import S2MEL_KEY, S2Mel, S2MelSize
from voxgraft.models.indextts2.shapes import FEATURE_WIDTH, UnifiedVoiceSize, get_config_file_name, read_base_config
from voxgraft.nn.layers import init_empty_weights


def list_indextts2_files(files: BaseFiles) -> tuple[PublishedFile, ...]:
    """All but the model that hears emotion in a text, which voxgraft does not use."""
    config = files.config
    settings = read_base_config(config) if config is not None else {}
    statistics = get_statistics_name(files)

    def read_gpt(path: Path) -> UnifiedVoiceSize:
        return UnifiedVoiceSize.of(settings, read_tensor_shapes(path), path, config or "config.yaml")

    def read_statistics(path: Path) -> None:
        require_exact_tensors(read_tensor_shapes(path), dict.fromkeys(("mean", "var"), (FEATURE_WIDTH,)), "file", path)

    def read_emotions(_path: Path) -> dict[str, Any]:
        table = EmotionTable.load(files)
        return {"voices": table.voices.shape, "vectors": table.vectors.shape}

    num_rows = sum(VECTORS_PER_EMOTION)
    emotion_shapes = {"voices": (num_rows, STYLE_WIDTH), "vectors": (num_rows, UnifiedVoiceSize().width)}
    emotions = [
        PublishedFile(
            ((config is not None and get_config_file_name(settings, key, config)) or CONFIG_NAMED_FILES[key][0],),
            CONFIG_NAMED_FILES[key][1],
            read_emotions,
            (emotion_shapes,),
            needed=False,
        )
        for key in ("spk_matrix", "emo_matrix")
    ]
    w2v_bert = tuple(f"{W2V_BERT_FOLDER}/{name}" for name in W2V_BERT_FILES)
    bigvgan = tuple(f"{get_vocoder_folder(files)}/{name}" for name in BIGVGAN_NAMES)
    return (
        PublishedFile((files.checkpoint.name,), "GPT: the language model", read_gpt, (UnifiedVoiceSize(),)),
        PublishedFile((statistics,), "mean and variance of the features", read_statistics, (None,)),
        PublishedFile(w2v_bert, "w2v-bert 2.0: features of a recording", _read_w2v_bert, (DEFAULT_CONFIG_SIZES,)),
        PublishedFile(
            (CODEC_NAME,),
            "semantic codec: codes of a recording",
            lambda path: SemanticCodec.read_shapes(path)[0],
            (SemanticCodecSize(),),
        ),
        PublishedFile(
            (get_s2mel_name(files),),
            "s2mel: codes and latents to a mel",
            lambda path: S2Mel.read_size(path, settings),
            (S2MelSize(),),
            key=S2MEL_KEY,
        ),
        PublishedFile(
            bigvgan,
            "BigVGAN: a mel to sound",
            lambda path: BigVGAN.read_shapes(path)[1],
            (BigVGANSize(),),
            key="generator",
        ),
        PublishedFile(
            (CAMPPLUS_NAME,), "CAM++: the voice", lambda path: CAMPPlus.read_shapes(path)[0], (CAMPPlusSize(),)
        ),
        *emotions,
    )


def _read_w2v_bert(path: Path) -> dict[str, Any]:
    """The network that its config describes, all 24 layers of it. Its names are those of transformers."""
    library, sizes = import_transformers(), read_w2v_bert_sizes(path.with_name("config.json"))
    with init_empty_weights():
        network = library.Wav2Vec2BertModel(library.Wav2Vec2BertConfig(**sizes))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    stored = read_tensor_shapes(path)
    # What training alone needs may be in the file or not.
    require_exact_tensors({name: shape for name, shape in stored.items() if name in shapes}, shapes, "w2v-bert", path)
    return {name: sizes[name] for name in DEFAULT_CONFIG_SIZES}
