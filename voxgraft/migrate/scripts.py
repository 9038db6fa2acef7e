"""Every flag that the community forks' scripts have, and what becomes of it here. Data, and one way to look it up."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class LegacyScript:
    """One script of a fork: its flags, and the rule for each; flags without a rule of their own share `rest`."""

    path: str
    """As much of its path as is needed to tell it from scripts of the same name."""
    family: str
    now: str
    """What to type today, or why nothing."""
    flags: tuple[str, ...]
    rest: LegacyKeyRule
    rules: dict[str, LegacyKeyRule] = field(default_factory=dict)
    words: bool = False
    """Whether words without a flag mean something to it, such as `import` and `list`."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".py")

    def rule(self, flag: str) -> LegacyKeyRule | None:
        """The rule of a flag, or None where the script has no such flag."""
        if not flag:  # a word without a flag, which only chooses what the script does
            return self.rest if self.words else None
        return self.rules.get(flag) or (self.rest if flag in self.flags else None)


def parse_flag_names(words: str) -> tuple[str, ...]:
    """Words as flags, two dashes before each."""
    return tuple(f"--{word}" for word in words.split())


_PAIR_TOKENIZER = map_key("tokenizer.file", "tokenizer", TOKENIZER)
_BASE = map_key("base", "base-file", "the base is the folder of this file")
_RENUMBERED = drop_key(
    "it numbered every piece anew, so that every base row lost its meaning; voxgraft only adds pieces to the base's"
)
_LEARN = "voxgraft tokenizer train, then voxgraft tokenizer merge"
_PREPARE = "voxgraft prepare, after voxgraft data import and voxgraft graft"
_IMPORT = "voxgraft data import, then voxgraft data report and voxgraft data split"
_FETCH = "yt-dlp, then voxgraft data import"
_NO_PAIRS = "not needed: voxgraft prepare keeps a voice for every clip, and training chooses"
_SPEAK = "voxgraft speak"
_NO_MUSIC = "not here: separate the voice with a program for it and give voxgraft data import the result"
_TRAIN = "voxgraft train; voxgraft new --from reads its settings"
_COVERAGE = drop_key("every letter of a script that the base lacks gets a piece, so there is no share to choose")
_CANDIDATE = drop_key("there is no candidate model: pieces are learnt by continuing from the base's own spelling")
_EXTENDED = {
    "--model": drop_key(
        "`voxgraft graft` reads the checkpoint in the base folder; for one loose file: `voxgraft extend`"
    ),
    "--output": drop_key(RUN_FOLDER),
    "--original-size": drop_key(SIZE, "base-pieces"),
}

INDEXTTS2_SCRIPTS = (
    LegacyScript(
        "train_gpt_v2.py",
        "indextts2",
        _TRAIN,
        parse_flag_names(
            "train-manifest val-manifest tokenizer config base-checkpoint output-dir batch-size grad-accumulation "
            "epochs learning-rate weight-decay warmup-steps max-steps log-interval val-interval val-batch-size "
            "max-val-batches num-workers grad-clip text-loss-weight mel-loss-weight amp grad-checkpointing resume "
            "save-interval keep-checkpoints seed use-duration-control duration-dropout"
        ),
        defer_key("belongs to training how long speech takes, which voxgraft does not do"),
        {
            "--train-manifest": map_key("data.train", "manifest", PAIRS),
            "--val-manifest": map_key("data.valid", "manifest", PAIRS),
            "--tokenizer": _PAIR_TOKENIZER,
            "--config": _BASE,
            "--base-checkpoint": _BASE,
            "--output-dir": drop_key(RUN_FOLDER),
            **dict.fromkeys(parse_flag_names("batch-size grad-accumulation"), drop_key(CLIPS_PER_STEP)),
            "--epochs": map_key("train.epochs", "number"),
            "--learning-rate": map_key("train.body_rate", "number", BODY_RATE),
            "--weight-decay": map_key("train.weight_decay", "number", DECAY),
            "--warmup-steps": map_key("train.warmup_steps", "count"),
            "--max-steps": map_key("train.steps", "steps"),
            "--log-interval": map_key("train.log_every", "count"),
            "--val-interval": map_key("train.valid_every", "steps"),
            "--save-interval": map_key("train.save_every", "count"),
            "--keep-checkpoints": map_key("train.keep_last", "count", "the best one is kept beside them"),
            **dict.fromkeys(parse_flag_names("val-batch-size max-val-batches"), drop_key(EVERY_HELD_OUT)),
            "--num-workers": drop_key(READING),
            "--grad-clip": map_key("train.clip", "number", "each part of what is trained is clipped by itself"),
            "--amp": drop_key(PRECISION),
            "--seed": map_key("train.seed", "count"),
            "--text-loss-weight": map_key("train.text_weight", "number"),
            "--mel-loss-weight": map_key("train.speech_weight", "number", "the codes are the speech"),
            "--grad-checkpointing": drop_key(
                "was on there whether it was asked for or not; here it is train.checkpointing"
            ),
            "--resume": drop_key(RESUME),
        },
    ),
    LegacyScript(
        "extend_bpe.py",
        "indextts2",
        _LEARN,
        parse_flag_names(
            "base-model manifests output-model output-vocab target-size candidate-size extra-factor character-coverage "
            "model-type"
        ),
        _CANDIDATE,
        {
            "--base-model": _BASE,
            "--manifests": defer_key(
                f"{DATA}. For their texts: jq -r .text MANIFEST > texts.txt, then --texts texts.txt"
            ),
            "--output-model": _PAIR_TOKENIZER,
            "--output-vocab": drop_key("the grown tokenizer is one file"),
            "--target-size": map_key("tokenizer.pieces", "total-pieces"),
            "--character-coverage": _COVERAGE,
            "--model-type": drop_key("new pieces are of the kind that the base's tokenizer has"),
        },
    ),
    LegacyScript(
        "train_bpe.py",
        "indextts2",
        _LEARN,
        parse_flag_names(
            "manifest output-prefix vocab-size character-coverage model-type input-sentence-size byte-fallback"
        ),
        _RENUMBERED,
        {"--manifest": defer_key(f"{DATA}. For its texts: jq -r .text MANIFEST > texts.txt, then --texts texts.txt")},
    ),
    LegacyScript(
        "train_standalone_bpe.py",
        "indextts2",
        _LEARN,
        parse_flag_names("corpus output vocab-size character-coverage user-defined-symbols"),
        _RENUMBERED,
        {"--corpus": map_key("texts", "texts")},
    ),
    LegacyScript(
        "train_multilingual_bpe.py",
        "indextts2",
        _LEARN,
        parse_flag_names("corpus model-prefix vocab-size model-type character-coverage test-files"),
        _RENUMBERED,
        {"--corpus": map_key("texts", "texts")},
    ),
    LegacyScript(
        "collect_amharic_corpus.py",
        "indextts2",
        "voxgraft new --texts takes plain text files; repeated lines are left out by themselves",
        parse_flag_names("input output text-field min-length no-shuffle stats"),
        drop_key("texts are read as they are: each sentence once, in their order"),
        {"--output": map_key("texts", "texts")},
    ),
    LegacyScript(
        "check_tokenizer.py",
        "indextts2",
        "voxgraft tokenizer prove and voxgraft tokenizer show",
        (),
        drop_key(OF_THE_BASE),
    ),
    LegacyScript(
        "verify_amharic_training.py",
        "indextts2",
        "voxgraft check",
        parse_flag_names("tokenizer config"),
        drop_key(OF_THE_BASE),
        {"--tokenizer": _PAIR_TOKENIZER, "--config": _BASE},
    ),
    LegacyScript(
        "check_amharic_data.py",
        "indextts2",
        "voxgraft check --prepared, for the text ids",
        parse_flag_names("train-manifest train-pairs val-pairs"),
        defer_key(DATA),
    ),
    *(
        LegacyScript(
            f"{name}.py",
            "indextts2",
            _PREPARE,
            parse_flag_names(
                "manifest dataset output-dir output-root tokenizer config gpt-checkpoint language device val-ratio "
                "seed max-samples audio-sr skip-existing batch-size workers num-processes launch-delay extra-args "
                "hf-cache-dir"
            ),
            defer_key(DATA),
            {
                "--dataset": defer_key(DATA, "dataset"),
                "--tokenizer": _PAIR_TOKENIZER,
                "--config": _BASE,
                "--gpt-checkpoint": _BASE,
                "--language": map_key("language", "language"),
            },
        )
        for name in ("preprocess_data", "preprocess_multiproc", "preprocess_japanese")
    ),
    LegacyScript(
        "process_text_ids.py",
        "indextts2",
        "voxgraft graft, then voxgraft prepare: texts are spelled anew, and no sound is read",
        parse_flag_names(
            "manifest tokenizer output-dir output-manifest romanize update-text skip-existing max-samples language"
        ),
        defer_key(DATA),
        {"--tokenizer": _PAIR_TOKENIZER, "--language": map_key("language", "language")},
    ),
    LegacyScript(
        "build_gpt_prompt_pairs.py",
        "indextts2",
        _NO_PAIRS,
        parse_flag_names("manifest output pairs-per-target max-pairs min-text-len min-code-len seed"),
        defer_key(DATA),
    ),
    LegacyScript(
        "generate_gpt_pairs.py",
        "indextts2",
        _NO_PAIRS,
        parse_flag_names(
            "dataset train-manifest-name val-manifest-name train-output-name val-output-name pairs-per-target "
            "max-pairs min-text-len min-code-len seed force"
        ),
        defer_key(DATA),
    ),
    LegacyScript(
        "create_amharic_dataset.py",
        "indextts2",
        _IMPORT,
        parse_flag_names(
            "input-dir output-dir manifest min-duration max-duration no-refine no-quality-check min-snr "
            "max-silence-ratio min-words quality-report single-speaker speaker-prefix start-margin end-margin use-vad "
            "no-vad no-text-dedup min-overlap-words append"
        ),
        defer_key(DATA),
    ),
    LegacyScript(
        "youtube_amharic_downloader.py",
        "indextts2",
        _FETCH,
        parse_flag_names(
            "url url-file output-dir no-subtitles subtitle-langs audio-format video no-check-subs no-cleanup "
            "no-cleanup-temp remove-noise noise-model mdx-batch-size no-autocast keep-source"
        ),
        defer_key(DATA),
    ),
    LegacyScript(
        "universal_media_downloader.py",
        "indextts2",
        _FETCH,
        parse_flag_names(
            "media-url srt-url media-local srt-local base-name manifest output-dir create-dataset dataset-output"
        ),
        defer_key(DATA),
    ),
    LegacyScript(
        "fix_vocal_subtitles.py",
        "indextts2",
        _NO_MUSIC,
        parse_flag_names("vocal-dir original-dir output-dir dry-run"),
        defer_key(DATA),
    ),
    LegacyScript(
        "process_dataset_segments.py",
        "indextts2",
        _NO_MUSIC,
        parse_flag_names(
            "audio-dir manifest model keep-backup no-resume batch-size chunk-size mdx-batch-size no-autocast "
            "normalization"
        ),
        defer_key(DATA),
    ),
    LegacyScript(
        "prune_gpt_checkpoint.py",
        "indextts2",
        "not needed: voxgraft reads a wrapped checkpoint for its tensors alone",
        parse_flag_names("input output dtype dry-run"),
        drop_key("a graft holds its own rows and nothing of an optimizer, so there is nothing to prune"),
    ),
    LegacyScript(
        "download_checkpoints.py",
        "indextts2",
        "voxgraft download indextts2",
        parse_flag_names("output-dir force repo-id"),
        defer_key("belongs to `voxgraft download`"),
    ),
    LegacyScript(
        "inference_script.py",
        "indextts2",
        _SPEAK,
        parse_flag_names(
            "speaker text text-file output config model-dir device fp16 gpt-checkpoint tokenizer emo-audio emo-alpha "
            "emo-text use-emo-text max-text-tokens top-k top-p temperature num-beams interval-silence verbose"
        ),
        defer_key(SPEECH),
    ),
    LegacyScript(
        "view_tensorboard_metrics.py",
        "indextts2",
        "voxgraft plot, or TensorBoard on the run's tensorboard/",
        parse_flag_names("log-dir n"),
        drop_key(LOGS),
    ),
)

CHATTERBOX_SCRIPTS = (
    LegacyScript(
        "training/train.py",
        "chatterbox",
        _TRAIN,
        parse_flag_names("config resume"),
        drop_key(RUN_FOLDER),
        {
            "--config": drop_key("its keys are not in this file: give the config itself with --from"),
            "--resume": drop_key(RESUME),
        },
    ),
    LegacyScript(
        "train_enhanced.py",
        "chatterbox",
        _TRAIN,
        parse_flag_names("config device"),
        drop_key("CUDA where there is a device; train.device names another"),
        {"--config": drop_key("its keys are not in this file: give the config itself with --from")},
    ),
    LegacyScript(
        "merge_tokenizers.py",
        "chatterbox",
        "voxgraft tokenizer merge",
        parse_flag_names("base amharic output base-size validate"),
        drop_key(SIZE),
        {
            "--base": drop_key("the tokenizer in the base folder is the one that grows"),
            "--amharic": drop_key("a flat map of letters is no tokenizer: new pieces are learnt from texts"),
            "--output": _PAIR_TOKENIZER,
            "--base-size": drop_key(f"{SIZE}; the script there ignored it", "base-pieces"),
            "--validate": drop_key("every grown tokenizer is proven"),
        },
    ),
    LegacyScript(
        "extend_model_embeddings.py",
        "chatterbox",
        "voxgraft extend",
        parse_flag_names("model output original-size new-size"),
        drop_key(SIZE),
        _EXTENDED,
    ),
    LegacyScript(
        "fix_vocab_mismatch.py",
        "chatterbox",
        "voxgraft check to see what does not fit, voxgraft extend to grow",
        parse_flag_names("model output original-size target-size"),
        drop_key(SIZE),
        _EXTENDED,
    ),
    LegacyScript(
        "extract_chatterbox_vocab.py",
        "chatterbox",
        "not needed: voxgraft reads the base's own tokenizer",
        parse_flag_names("output"),
        drop_key(OF_THE_BASE),
    ),
    *(
        LegacyScript(
            f"{name}.py",
            "chatterbox",
            "voxgraft tokenizer train",
            parse_flag_names(flags),
            drop_key("pieces are learnt from plain texts, and every letter of the script is added"),
            {"--vocab-size": map_key("tokenizer.pieces", "pieces", "its pieces never reached the merged file there")},
        )
        for name, flags in (
            ("setup_tokenizer_lightning", "dataset vocab-size"),
            ("train_tokenizer", "data vocab-size output"),
        )
    ),
    LegacyScript(
        "auto_detect_vocab_size.py", "chatterbox", "voxgraft check, which rewrites nothing", (), drop_key(SIZE)
    ),
    LegacyScript(
        "fix_unk_issues.py",
        "chatterbox",
        "voxgraft tokenizer prove and voxgraft tokenizer show",
        parse_flag_names("data-path config"),
        drop_key("unknown letters are counted by `voxgraft tokenizer prove`; nothing is rewritten"),
    ),
    *(
        LegacyScript(f"{name}.py", "chatterbox", now, parse_flag_names(flags), defer_key(DATA), words=True)
        for name, now, flags in (
            ("split_dataset", "voxgraft data split", "dataset train val test seed backup"),
            ("validate_dataset", "voxgraft data info and voxgraft data report", "dataset fix"),
            ("fix_metadata_prefixes", "not needed: voxgraft data import finds the files", "dataset apply"),
            ("srt_dataset_builder", _IMPORT, "srt media name speaker no-validate datasets output include-invalid"),
            ("preprocess_audio", _IMPORT, "audio-dir transcript output sample-rate"),
        )
    ),
    *(
        LegacyScript(f"{name}.py", "chatterbox", _SPEAK, parse_flag_names(flags), defer_key(SPEECH))
        for name, flags in (
            ("inference/inference", "checkpoint text output config use-phonemes speed pitch device"),
            ("test_synthesis_cli", "checkpoint tokenizer output-dir text-amharic text-english"),
            ("test_checkpoint_multilingual", "checkpoint"),
        )
    ),
)

SCRIPTS = (*INDEXTTS2_SCRIPTS, *CHATTERBOX_SCRIPTS)


def find_legacy_script(path: str) -> LegacyScript | None:
    """The script that a path such as `trainers/train_gpt_v2.py` names."""
    path = path.replace("\\", "/")
    return next((script for script in SCRIPTS if f"/{path}".endswith(f"/{script.path}")), None)
