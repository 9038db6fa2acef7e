"""Every key that the community forks' config files have, and what becomes of it here. Data, no logic.

The flags of their scripts are in `old_flags.py`; `old_configs.py` reads the files and applies both tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fate = Literal["mapped", "suggested", "gone", "later", "unknown"]
"""suggested: written into run.yaml as a comment, since a person must decide; later: voxgraft cannot do it yet."""

Reads = Literal[
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
class Rule:
    """What becomes of one old key: its fate, the reason or a remark, and for those with a successor the new key."""

    fate: Fate
    why: str
    key: str = ""
    reads: Reads = "nothing"


def mapped(key: str, reads: Reads, why: str = "") -> Rule:
    """The old key has a successor."""
    return Rule("mapped", why, key, reads)


def gone(why: str, reads: Reads = "nothing") -> Rule:
    """The old key has no successor, because there is nothing left to set."""
    return Rule("gone", why, "", reads)


def later(why: str, reads: Reads = "nothing") -> Rule:
    """The old key belongs to what another command does, or none yet."""
    return Rule("later", why, "", reads)


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

CHATTERBOX_KEYS: dict[str, Rule] = {
    "model.name": gone("the run folder's name is the name"),
    "model.architecture": gone("the family is told by the files in the base folder"),
    **dict.fromkeys(
        [
            *("model.hidden_channels", "model.filter_channels", "model.n_heads", "model.n_layers"),
            *("model.kernel_size", "model.d_model", "model.nhead", "model.num_encoder_layers"),
            "model.dim_feedforward",
        ],
        gone(STAND_IN),
    ),
    **dict.fromkeys(["model.p_dropout", "model.dropout"], gone("the body of a grafted model gets no dropout")),
    "model.original_vocab_size": gone(SIZE, "base-pieces"),
    **dict.fromkeys(["model.n_vocab", "model.vocab_size"], gone(SIZE)),
    "model.use_phonemes": gone("training there read letters whatever this said, and the base reads letters"),
    "model.freeze_original_embeddings": gone(FROZEN, "freeze"),
    "model.freeze_until_index": gone(FROZEN, "base-pieces"),
    "data.dataset_path": later(
        f"{DATA}. For its texts: cut -d'|' -f2 metadata.csv > texts.txt, then --texts texts.txt"
    ),
    "data.metadata_file": later(f"{DATA}. Its second column holds the texts"),
    **dict.fromkeys(
        [
            *("data.sampling_rate", "data.filter_length", "data.hop_length", "data.win_length"),
            *("data.n_mel_channels", "data.n_mels", "data.mel_fmin", "data.mel_fmax"),
        ],
        gone(STAND_IN_AUDIO),
    ),
    **dict.fromkeys(["data.train_ratio", "data.val_ratio", "data.test_ratio"], later(DATA)),
    **dict.fromkeys(["data.batch_size", "training.batch_size"], gone(CLIPS_PER_STEP)),
    **dict.fromkeys(["data.num_workers", "data.pin_memory"], gone(READING)),
    "training.device": gone("CUDA where there is a device; train.device names another"),
    **dict.fromkeys(["training.optimizer", "training.betas", "training.eps"], gone(OPTIMIZER)),
    "training.learning_rate": mapped("train.body_rate", "number", BODY_RATE),
    "training.weight_decay": mapped("train.weight_decay", "number", DECAY),
    "training.lr_scheduler": gone(SCHEDULE),
    "training.lr_decay": gone(f"{SCHEDULE}. It was applied once per epoch there, so it hardly moved the rate"),
    "training.warmup_steps": mapped("train.warmup_steps", "count", "the main trainer there never read it"),
    "training.max_epochs": mapped("train.epochs", "number"),
    "training.max_steps": mapped("train.steps", "steps"),
    "training.save_interval": mapped("train.save_every", "count"),
    "training.eval_interval": mapped("train.valid_every", "count"),
    "training.log_interval": mapped("train.log_every", "count"),
    **dict.fromkeys(["training.grad_clip_thresh", "training.grad_clip_val"], mapped("train.clip", "number")),
    "training.grad_accumulation_steps": gone(CLIPS_PER_STEP),
    "training.use_amp": gone(PRECISION),
    **dict.fromkeys(["training.use_ddp", "training.gpu_ids"], gone(INERT)),
    "training.early_stopping": gone(EARLY_STOP),
    "training.patience": mapped("train.patience", "patience"),
    "training.min_epochs": gone("no early stop before train.min_steps, which counts steps"),
    "training.min_delta": gone(f"{INERT}. Here it is train.min_delta"),
    "finetuning.enabled": gone("a graft always starts from a base"),
    "finetuning.pretrained_model": mapped("base", "base-file"),
    "finetuning.freeze_encoder": gone(STAND_IN_PARTS),
    "finetuning.freeze_decoder": gone(STAND_IN_PARTS),
    "finetuning.freeze_vocoder": gone("neither there nor here is a vocoder trained"),
    **dict.fromkeys(
        [
            *("logging.use_wandb", "logging.wandb_project", "logging.wandb_entity"),
            *("logging.log_audio", "logging.log_spectrograms", "logging.log_alignments"),
        ],
        gone(INERT),
    ),
    **dict.fromkeys(["logging.use_tensorboard", "logging.log_dir"], gone(LOGS)),
    **dict.fromkeys(
        ["validation.n_samples", "validation.sample_texts"],
        gone("sentences that are spoken on the way are train.sample_texts, each with its language: am:TEXT"),
    ),
    "paths.data_dir": later(f"{DATA}. For its texts: cut -d'|' -f2 metadata.csv > texts.txt, then --texts texts.txt"),
    "paths.tokenizer": mapped("tokenizer.file", "tokenizer", TOKENIZER),
    "paths.extended_model": gone(
        "an extended file is no base: its text head was not grown, so Chatterbox cannot load it. "
        "`voxgraft extend` grows both"
    ),
    "paths.checkpoints": gone(RUN_FOLDER),
}


# ---- IndexTTS-2's own config.yaml --------------------------------------------------------------------------------

INDEXTTS2_KEYS: dict[str, Rule] = {
    "dataset.bpe_model": gone(OF_THE_BASE),
    "gpt.number_text_tokens": gone(
        f"{SIZE}. The table has one row more, a spare: 24,001 rows for 24,000 pieces is right", "base-pieces"
    ),
    "gpt_checkpoint": mapped("base", "base-file", "the base is the folder of this config"),
}
INDEXTTS2_SECTIONS: dict[str, Rule] = {
    "dataset": gone(OF_THE_BASE),
    "gpt": gone(OF_THE_BASE),
    **dict.fromkeys(
        [
            *("semantic_codec", "s2mel", "w2v_stat", "s2mel_checkpoint", "emo_matrix", "spk_matrix", "emo_num"),
            *("qwen_emo_path", "vocoder", "version"),
        ],
        gone("a part of the stock program that a graft does not touch; it stays with the base"),
    ),
}
"""Sections all of whose keys have one fate, unless the table above names them."""
