"""Every flag that the community forks' scripts have, and what becomes of it here. Data, and one way to look it up."""

from __future__ import annotations

from voxgraft.old_keys import (
    BODY_RATE,
    CLIPS_PER_STEP,
    DATA,
    DECAY,
    EVERY_HELD_OUT,
    LOGS,
    OF_THE_BASE,
    PAIRS,
    PRECISION,
    READING,
    RESUME,
    RUN_FOLDER,
    SIZE,
    SPEECH,
    TOKENIZER,
    gone,
    later,
    mapped,
)
from voxgraft.old_scripts import Script, flags_of

__all__ = ["CHATTERBOX_SCRIPTS", "INDEXTTS2_SCRIPTS", "SCRIPTS", "Script", "script_of"]


_PAIR_TOKENIZER = mapped("tokenizer.file", "tokenizer", TOKENIZER)
_BASE = mapped("base", "base-file", "the base is the folder of this file")
_RENUMBERED = gone(
    "it numbered every piece anew, so that every base row lost its meaning; voxgraft only adds pieces to the base's"
)
_LEARN = "voxgraft tokenizer train, then voxgraft tokenizer merge"
_PREPARE = "voxgraft prepare, after voxgraft data import and voxgraft graft"
_IMPORT = "voxgraft data import, then voxgraft data report and voxgraft data split"
_FETCH = "voxgraft data fetch, then voxgraft data import"
_NO_PAIRS = "not needed: voxgraft prepare keeps a voice for every clip, and training chooses"
_SPEAK = "voxgraft speak"
_NO_MUSIC = "not here: separate the voice with a program for it and give voxgraft data import the result"
_TRAIN = "voxgraft train; voxgraft new --from reads its settings"
_COVERAGE = gone("every letter of a script that the base lacks gets a piece, so there is no share to choose")
_CANDIDATE = gone("there is no candidate model: pieces are learnt by continuing from the base's own spelling")
_EXTENDED = {
    "--model": gone("`voxgraft graft` reads the checkpoint in the base folder; for one loose file: `voxgraft extend`"),
    "--output": gone(RUN_FOLDER),
    "--original-size": gone(SIZE, "base-pieces"),
}

INDEXTTS2_SCRIPTS = (
    Script(
        "train_gpt_v2.py",
        "indextts2",
        _TRAIN,
        flags_of(
            "train-manifest val-manifest tokenizer config base-checkpoint output-dir batch-size grad-accumulation "
            "epochs learning-rate weight-decay warmup-steps max-steps log-interval val-interval val-batch-size "
            "max-val-batches num-workers grad-clip text-loss-weight mel-loss-weight amp grad-checkpointing resume "
            "save-interval keep-checkpoints seed use-duration-control duration-dropout"
        ),
        later("belongs to training how long speech takes, which voxgraft does not do"),
        {
            "--train-manifest": mapped("data.train", "manifest", PAIRS),
            "--val-manifest": mapped("data.valid", "manifest", PAIRS),
            "--tokenizer": _PAIR_TOKENIZER,
            "--config": _BASE,
            "--base-checkpoint": _BASE,
            "--output-dir": gone(RUN_FOLDER),
            **dict.fromkeys(flags_of("batch-size grad-accumulation"), gone(CLIPS_PER_STEP)),
            "--epochs": mapped("train.epochs", "number"),
            "--learning-rate": mapped("train.body_rate", "number", BODY_RATE),
            "--weight-decay": mapped("train.weight_decay", "number", DECAY),
            "--warmup-steps": mapped("train.warmup_steps", "count"),
            "--max-steps": mapped("train.steps", "steps"),
            "--log-interval": mapped("train.log_every", "count"),
            "--val-interval": mapped("train.valid_every", "steps"),
            "--save-interval": mapped("train.save_every", "count"),
            "--keep-checkpoints": mapped("train.keep_last", "count", "the best one is kept beside them"),
            **dict.fromkeys(flags_of("val-batch-size max-val-batches"), gone(EVERY_HELD_OUT)),
            "--num-workers": gone(READING),
            "--grad-clip": mapped("train.clip", "number", "each part of what is trained is clipped by itself"),
            "--amp": gone(PRECISION),
            "--seed": mapped("train.seed", "count"),
            "--text-loss-weight": mapped("train.text_weight", "number"),
            "--mel-loss-weight": mapped("train.speech_weight", "number", "the codes are the speech"),
            "--grad-checkpointing": gone(
                "was on there whether it was asked for or not; here it is train.checkpointing"
            ),
            "--resume": gone(RESUME),
        },
    ),
    Script(
        "extend_bpe.py",
        "indextts2",
        _LEARN,
        flags_of(
            "base-model manifests output-model output-vocab target-size candidate-size extra-factor character-coverage "
            "model-type"
        ),
        _CANDIDATE,
        {
            "--base-model": _BASE,
            "--manifests": later(f"{DATA}. For their texts: jq -r .text MANIFEST > texts.txt, then --texts texts.txt"),
            "--output-model": _PAIR_TOKENIZER,
            "--output-vocab": gone("the grown tokenizer is one file"),
            "--target-size": mapped("tokenizer.pieces", "total-pieces"),
            "--character-coverage": _COVERAGE,
            "--model-type": gone("new pieces are of the kind that the base's tokenizer has"),
        },
    ),
    Script(
        "train_bpe.py",
        "indextts2",
        _LEARN,
        flags_of("manifest output-prefix vocab-size character-coverage model-type input-sentence-size byte-fallback"),
        _RENUMBERED,
        {"--manifest": later(f"{DATA}. For its texts: jq -r .text MANIFEST > texts.txt, then --texts texts.txt")},
    ),
    Script(
        "train_standalone_bpe.py",
        "indextts2",
        _LEARN,
        flags_of("corpus output vocab-size character-coverage user-defined-symbols"),
        _RENUMBERED,
        {"--corpus": mapped("texts", "texts")},
    ),
    Script(
        "train_multilingual_bpe.py",
        "indextts2",
        _LEARN,
        flags_of("corpus model-prefix vocab-size model-type character-coverage test-files"),
        _RENUMBERED,
        {"--corpus": mapped("texts", "texts")},
    ),
    Script(
        "collect_amharic_corpus.py",
        "indextts2",
        "voxgraft new --texts takes plain text files; repeated lines are left out by themselves",
        flags_of("input output text-field min-length no-shuffle stats"),
        gone("texts are read as they are: each sentence once, in their order"),
        {"--output": mapped("texts", "texts")},
    ),
    Script(
        "check_tokenizer.py", "indextts2", "voxgraft tokenizer prove and voxgraft tokenizer show", (), gone(OF_THE_BASE)
    ),
    Script(
        "verify_amharic_training.py",
        "indextts2",
        "voxgraft check",
        flags_of("tokenizer config"),
        gone(OF_THE_BASE),
        {"--tokenizer": _PAIR_TOKENIZER, "--config": _BASE},
    ),
    Script(
        "check_amharic_data.py",
        "indextts2",
        "voxgraft check --prepared, for the text ids",
        flags_of("train-manifest train-pairs val-pairs"),
        later(DATA),
    ),
    *(
        Script(
            f"{name}.py",
            "indextts2",
            _PREPARE,
            flags_of(
                "manifest dataset output-dir output-root tokenizer config gpt-checkpoint language device val-ratio "
                "seed max-samples audio-sr skip-existing batch-size workers num-processes launch-delay extra-args "
                "hf-cache-dir"
            ),
            later(DATA),
            {
                "--dataset": later(DATA, "dataset"),
                "--tokenizer": _PAIR_TOKENIZER,
                "--config": _BASE,
                "--gpt-checkpoint": _BASE,
                "--language": mapped("language", "language"),
            },
        )
        for name in ("preprocess_data", "preprocess_multiproc", "preprocess_japanese")
    ),
    Script(
        "process_text_ids.py",
        "indextts2",
        "voxgraft graft, then voxgraft prepare: texts are spelled anew, and no sound is read",
        flags_of(
            "manifest tokenizer output-dir output-manifest romanize update-text skip-existing max-samples language"
        ),
        later(DATA),
        {"--tokenizer": _PAIR_TOKENIZER, "--language": mapped("language", "language")},
    ),
    Script(
        "build_gpt_prompt_pairs.py",
        "indextts2",
        _NO_PAIRS,
        flags_of("manifest output pairs-per-target max-pairs min-text-len min-code-len seed"),
        later(DATA),
    ),
    Script(
        "generate_gpt_pairs.py",
        "indextts2",
        _NO_PAIRS,
        flags_of(
            "dataset train-manifest-name val-manifest-name train-output-name val-output-name pairs-per-target "
            "max-pairs min-text-len min-code-len seed force"
        ),
        later(DATA),
    ),
    Script(
        "create_amharic_dataset.py",
        "indextts2",
        _IMPORT,
        flags_of(
            "input-dir output-dir manifest min-duration max-duration no-refine no-quality-check min-snr "
            "max-silence-ratio min-words quality-report single-speaker speaker-prefix start-margin end-margin use-vad "
            "no-vad no-text-dedup min-overlap-words append"
        ),
        later(DATA),
    ),
    Script(
        "youtube_amharic_downloader.py",
        "indextts2",
        _FETCH,
        flags_of(
            "url url-file output-dir no-subtitles subtitle-langs audio-format video no-check-subs no-cleanup "
            "no-cleanup-temp remove-noise noise-model mdx-batch-size no-autocast keep-source"
        ),
        later(DATA),
    ),
    Script(
        "universal_media_downloader.py",
        "indextts2",
        _FETCH,
        flags_of("media-url srt-url media-local srt-local base-name manifest output-dir create-dataset dataset-output"),
        later(DATA),
    ),
    Script(
        "fix_vocal_subtitles.py",
        "indextts2",
        _NO_MUSIC,
        flags_of("vocal-dir original-dir output-dir dry-run"),
        later(DATA),
    ),
    Script(
        "process_dataset_segments.py",
        "indextts2",
        _NO_MUSIC,
        flags_of(
            "audio-dir manifest model keep-backup no-resume batch-size chunk-size mdx-batch-size no-autocast "
            "normalization"
        ),
        later(DATA),
    ),
    Script(
        "prune_gpt_checkpoint.py",
        "indextts2",
        "not needed: voxgraft reads a wrapped checkpoint for its tensors alone",
        flags_of("input output dtype dry-run"),
        gone("a graft holds its own rows and nothing of an optimizer, so there is nothing to prune"),
    ),
    Script(
        "download_checkpoints.py",
        "indextts2",
        "voxgraft download indextts2",
        flags_of("output-dir force repo-id"),
        later("belongs to `voxgraft download`"),
    ),
    Script(
        "inference_script.py",
        "indextts2",
        _SPEAK,
        flags_of(
            "speaker text text-file output config model-dir device fp16 gpt-checkpoint tokenizer emo-audio emo-alpha "
            "emo-text use-emo-text max-text-tokens top-k top-p temperature num-beams interval-silence verbose"
        ),
        later(SPEECH),
    ),
    Script(
        "view_tensorboard_metrics.py",
        "indextts2",
        "voxgraft plot, or TensorBoard on the run's tensorboard/",
        flags_of("log-dir n"),
        gone(LOGS),
    ),
)

CHATTERBOX_SCRIPTS = (
    Script(
        "training/train.py",
        "chatterbox",
        _TRAIN,
        flags_of("config resume"),
        gone(RUN_FOLDER),
        {
            "--config": gone("its keys are not in this file: give the config itself with --from"),
            "--resume": gone(RESUME),
        },
    ),
    Script(
        "train_enhanced.py",
        "chatterbox",
        _TRAIN,
        flags_of("config device"),
        gone("CUDA where there is a device; train.device names another"),
        {"--config": gone("its keys are not in this file: give the config itself with --from")},
    ),
    Script(
        "merge_tokenizers.py",
        "chatterbox",
        "voxgraft tokenizer merge",
        flags_of("base amharic output base-size validate"),
        gone(SIZE),
        {
            "--base": gone("the tokenizer in the base folder is the one that grows"),
            "--amharic": gone("a flat map of letters is no tokenizer: new pieces are learnt from texts"),
            "--output": _PAIR_TOKENIZER,
            "--base-size": gone(f"{SIZE}; the script there ignored it", "base-pieces"),
            "--validate": gone("every grown tokenizer is proven"),
        },
    ),
    Script(
        "extend_model_embeddings.py",
        "chatterbox",
        "voxgraft extend",
        flags_of("model output original-size new-size"),
        gone(SIZE),
        _EXTENDED,
    ),
    Script(
        "fix_vocab_mismatch.py",
        "chatterbox",
        "voxgraft check to see what does not fit, voxgraft extend to grow",
        flags_of("model output original-size target-size"),
        gone(SIZE),
        _EXTENDED,
    ),
    Script(
        "extract_chatterbox_vocab.py",
        "chatterbox",
        "not needed: voxgraft reads the base's own tokenizer",
        flags_of("output"),
        gone(OF_THE_BASE),
    ),
    *(
        Script(
            f"{name}.py",
            "chatterbox",
            "voxgraft tokenizer train",
            flags_of(flags),
            gone("pieces are learnt from plain texts, and every letter of the script is added"),
            {"--vocab-size": mapped("tokenizer.pieces", "pieces", "its pieces never reached the merged file there")},
        )
        for name, flags in (
            ("setup_tokenizer_lightning", "dataset vocab-size"),
            ("train_tokenizer", "data vocab-size output"),
        )
    ),
    Script("auto_detect_vocab_size.py", "chatterbox", "voxgraft check, which rewrites nothing", (), gone(SIZE)),
    Script(
        "fix_unk_issues.py",
        "chatterbox",
        "voxgraft tokenizer prove and voxgraft tokenizer show",
        flags_of("data-path config"),
        gone("unknown letters are counted by `voxgraft tokenizer prove`; nothing is rewritten"),
    ),
    *(
        Script(f"{name}.py", "chatterbox", now, flags_of(flags), later(DATA), words=True)
        for name, now, flags in (
            ("split_dataset", "voxgraft data split", "dataset train val test seed backup"),
            ("validate_dataset", "voxgraft data info and voxgraft data report", "dataset fix"),
            ("fix_metadata_prefixes", "not needed: voxgraft data import finds the files", "dataset apply"),
            ("srt_dataset_builder", _IMPORT, "srt media name speaker no-validate datasets output include-invalid"),
            ("preprocess_audio", _IMPORT, "audio-dir transcript output sample-rate"),
        )
    ),
    *(
        Script(f"{name}.py", "chatterbox", _SPEAK, flags_of(flags), later(SPEECH))
        for name, flags in (
            ("inference/inference", "checkpoint text output config use-phonemes speed pitch device"),
            ("test_synthesis_cli", "checkpoint tokenizer output-dir text-amharic text-english"),
            ("test_checkpoint_multilingual", "checkpoint"),
        )
    ),
)

SCRIPTS = (*INDEXTTS2_SCRIPTS, *CHATTERBOX_SCRIPTS)


def script_of(path: str) -> Script | None:
    """The script that a path such as `trainers/train_gpt_v2.py` names."""
    path = path.replace("\\", "/")
    return next((script for script in SCRIPTS if f"/{path}".endswith(f"/{script.path}")), None)
