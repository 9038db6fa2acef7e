"""Every key that the community forks' config files have, and what becomes of it here. Data, no logic.

The flags of their scripts are in `old_flags.py`; `old_configs.py` reads the files and applies both tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KeyFate = Literal["mapped", "suggested", "gone", "later", "unknown"]
"""suggested: written into run.yaml as a comment, since a person must decide; later: voxgraft cannot do it yet."""

ValueKind = Literal[
    "nothing",  # only the fate counts
    "number",  # a number for the new key
    "count",  # a whole number for the new key
    "steps",  # likewise, and 0 had a meaning of its own
    "patience",  # likewise, unless early stopping was off
    "pieces",  # a whole number of pieces to learn
    "total-pieces",  # a whole number of base and new pieces together
    "base-pieces",  # a whole number that should be the base's number of pieces
    "freeze",  # true or false
    "base-file",  # a file in the base's folder
    "tokenizer",  # a grown tokenizer
    "texts",  # text files, one sentence per line
    "language",  # a language code
    "manifest",  # FILE::LANGUAGE, pairs of clips
    "dataset",  # LANGUAGE=FILE
]


@dataclass(frozen=True, slots=True)
class LegacyKeyRule:
    """What becomes of one old key: its fate, the reason or a remark, and for those with a successor the new key."""

    fate: KeyFate
    why: str
    key: str = ""
    reads: ValueKind = "nothing"


def map_key(key: str, reads: ValueKind, why: str = "") -> LegacyKeyRule:
    """The old key has a successor."""
    return LegacyKeyRule("mapped", why, key, reads)


def drop_key(why: str, reads: ValueKind = "nothing") -> LegacyKeyRule:
    """The old key has no successor, because there is nothing left to set."""
    return LegacyKeyRule("gone", why, "", reads)


def defer_key(why: str, reads: ValueKind = "nothing") -> LegacyKeyRule:
    """The old key belongs to what another command does, or none yet."""
    return LegacyKeyRule("later", why, "", reads)


# ---- reasons that several keys share ---------------------------------------------------------------------------

BODY_RATE = (
    "one rate for everything there; here the body's alone, in merged mode only. New rows and adapter have their own. "
    "In early trials a body at 1e-5 learned no Amharic, and at 1e-4 it lost English"
)
DECAY = "not for new rows; base rows are never in the optimizer, so decay cannot shrink them as it did there"
SIZE = "the tokenizer is the only source of this number: rows are counted from it, never typed"
FROZEN = "base rows are not in the optimizer at all, so there is nothing to freeze and no boundary to get wrong"
OF_THE_BASE = "a fact about the base, which is read from the base's own folder"
STAND_IN = "sized a stand-in network that never was Chatterbox; the real sizes are read from the base's own tensors"
STAND_IN_PARTS = "the stand-in had no such part; here the base never changes in gated mode"
STAND_IN_AUDIO = (
    "drew the mel spectrograms of the stand-in; the real model speaks in tokens, with sizes fixed by the base"
)
PAIRS = "taken as they are: texts are spelled anew with the run's tokenizer, padded codes are cut"
CLIPS_PER_STEP = (
    "a step is counted in positions and not in clips, since clips are of all lengths: train.tokens_per_step. How many "
    "go through the model at once is train.pack_tokens, and no setting of memory changes what is learnt"
)
READING = "clips are mapped into memory, and the next step is made ready beside the one that runs"
PRECISION = "chosen by the device: bf16, fp16 with a scaler, or float32; train.precision says another"
SCHEDULE = "a straight warm-up, then train.schedule: cosine, linear or constant"
EVERY_HELD_OUT = "every held-out clip counts, in packs as in training"
EARLY_STOP = "early stopping is train.patience: 0 is never"
DATA = "belongs to `voxgraft data import`, `data report` and `data split`, then `voxgraft prepare`: before training"
SPEECH = "belongs to `voxgraft speak`"
LOGS = "journal and TensorBoard files lie in the run folder; train.tensorboard turns the latter off"
INERT = "was in the file, but no code there ever read it"
RUN_FOLDER = "everything that a run makes lies in its run folder"
RESUME = "a new run starts at step 0; state that was saved for other tensors would push the wrong rows"
TOKENIZER = "most merges that the forks made are broken, so prove it first"
OPTIMIZER = "rates and decay in run.yaml are meant for AdamW; its inner numbers are not settings"


# ---- the Amharic Chatterbox project: config/training_config*.yaml ------------------------------------------------

CHATTERBOX_KEYS: dict[str, LegacyKeyRule] = {
    "model.name": drop_key("the run folder's name is the name"),
    "model.architecture": drop_key("the family is told by the files in the base folder"),
    **dict.fromkeys(
        [
            *("model.hidden_channels", "model.filter_channels", "model.n_heads", "model.n_layers"),
            *("model.kernel_size", "model.d_model", "model.nhead", "model.num_encoder_layers"),
            "model.dim_feedforward",
        ],
        drop_key(STAND_IN),
    ),
    **dict.fromkeys(["model.p_dropout", "model.dropout"], drop_key("the body of a grafted model gets no dropout")),
    "model.original_vocab_size": drop_key(SIZE, "base-pieces"),
    **dict.fromkeys(["model.n_vocab", "model.vocab_size"], drop_key(SIZE)),
    "model.use_phonemes": drop_key("training there read letters whatever this said, and the base reads letters"),
    "model.freeze_original_embeddings": drop_key(FROZEN, "freeze"),
    "model.freeze_until_index": drop_key(FROZEN, "base-pieces"),
    "data.dataset_path": defer_key(
        f"{DATA}. For its texts: cut -d'|' -f2 metadata.csv > texts.txt, then --texts texts.txt"
    ),
    "data.metadata_file": defer_key(f"{DATA}. Its second column holds the texts"),
    **dict.fromkeys(
        [
            *("data.sampling_rate", "data.filter_length", "data.hop_length", "data.win_length"),
            *("data.n_mel_channels", "data.n_mels", "data.mel_fmin", "data.mel_fmax"),
        ],
        drop_key(STAND_IN_AUDIO),
    ),
    **dict.fromkeys(["data.train_ratio", "data.val_ratio", "data.test_ratio"], defer_key(DATA)),
    **dict.fromkeys(["data.batch_size", "training.batch_size"], drop_key(CLIPS_PER_STEP)),
    **dict.fromkeys(["data.num_workers", "data.pin_memory"], drop_key(READING)),
    "training.device": drop_key("CUDA where there is a device; train.device names another"),
    **dict.fromkeys(["training.optimizer", "training.betas", "training.eps"], drop_key(OPTIMIZER)),
    "training.learning_rate": map_key("train.body_rate", "number", BODY_RATE),
    "training.weight_decay": map_key("train.weight_decay", "number", DECAY),
    "training.lr_scheduler": drop_key(SCHEDULE),
    "training.lr_decay": drop_key(f"{SCHEDULE}. It was applied once per epoch there, so it hardly moved the rate"),
    "training.warmup_steps": map_key("train.warmup_steps", "count", "the main trainer there never read it"),
    "training.max_epochs": map_key("train.epochs", "number"),
    "training.max_steps": map_key("train.steps", "steps"),
    "training.save_interval": map_key("train.save_every", "count"),
    "training.eval_interval": map_key("train.valid_every", "count"),
    "training.log_interval": map_key("train.log_every", "count"),
    **dict.fromkeys(["training.grad_clip_thresh", "training.grad_clip_val"], map_key("train.clip", "number")),
    "training.grad_accumulation_steps": drop_key(CLIPS_PER_STEP),
    "training.use_amp": drop_key(PRECISION),
    **dict.fromkeys(["training.use_ddp", "training.gpu_ids"], drop_key(INERT)),
    "training.early_stopping": drop_key(EARLY_STOP),
    "training.patience": map_key("train.patience", "patience"),
    "training.min_epochs": drop_key("no early stop before train.min_steps, which counts steps"),
    "training.min_delta": drop_key(f"{INERT}. Here it is train.min_delta"),
    "finetuning.enabled": drop_key("a graft always starts from a base"),
    "finetuning.pretrained_model": map_key("base", "base-file"),
    "finetuning.freeze_encoder": drop_key(STAND_IN_PARTS),
    "finetuning.freeze_decoder": drop_key(STAND_IN_PARTS),
    "finetuning.freeze_vocoder": drop_key("neither there nor here is a vocoder trained"),
    **dict.fromkeys(
        [
            *("logging.use_wandb", "logging.wandb_project", "logging.wandb_entity"),
            *("logging.log_audio", "logging.log_spectrograms", "logging.log_alignments"),
        ],
        drop_key(INERT),
    ),
    **dict.fromkeys(["logging.use_tensorboard", "logging.log_dir"], drop_key(LOGS)),
    **dict.fromkeys(
        ["validation.n_samples", "validation.sample_texts"],
        drop_key("sentences that are spoken on the way are train.sample_texts, each with its language: am:TEXT"),
    ),
    "paths.data_dir": defer_key(
        f"{DATA}. For its texts: cut -d'|' -f2 metadata.csv > texts.txt, then --texts texts.txt"
    ),
    "paths.tokenizer": map_key("tokenizer.file", "tokenizer", TOKENIZER),
    "paths.extended_model": drop_key(
        "an extended file is no base: its text head was not grown, so Chatterbox cannot load it. "
        "`voxgraft extend` grows both"
    ),
    "paths.checkpoints": drop_key(RUN_FOLDER),
}


# ---- IndexTTS-2's own config.yaml --------------------------------------------------------------------------------

INDEXTTS2_KEYS: dict[str, LegacyKeyRule] = {
    "dataset.bpe_model": drop_key(OF_THE_BASE),
    "gpt.number_text_tokens": drop_key(
        f"{SIZE}. The table has one row more, a spare: 24,001 rows for 24,000 pieces is right", "base-pieces"
    ),
    "gpt_checkpoint": map_key("base", "base-file", "the base is the folder of this config"),
}
INDEXTTS2_SECTIONS: dict[str, LegacyKeyRule] = {
    "dataset": drop_key(OF_THE_BASE),
    "gpt": drop_key(OF_THE_BASE),
    **dict.fromkeys(
        [
            *("semantic_codec", "s2mel", "w2v_stat", "s2mel_checkpoint", "emo_matrix", "spk_matrix", "emo_num"),
            *("qwen_emo_path", "vocoder", "version"),
        ],
        drop_key("a part of the stock program that a graft does not touch; it stays with the base"),
    ),
}
"""Sections all of whose keys have one fate, unless the table above names them."""
