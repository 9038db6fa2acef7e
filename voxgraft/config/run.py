"""Settings of a run's run.yaml, shared by the commands that work on a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from voxgraft.config.base import (
    AnySettings,
    Settings,
    deep_merge,
    format_commented_yaml,
    format_yaml_value,
    iter_setting_fields,
    parse_settings,
    read_settings_values,
)
from voxgraft.config.train_options import (
    RENAMED_SETTINGS,
    EmotionSource,
    LRSchedule,
    TrainIntervals,
    TrainOptions,
    TrainPrecision,
)
from voxgraft.core.errors import ConfigError
from voxgraft.core.families import BUILT_IN_BASES, FAMILIES, FAMILY_NAMES
from voxgraft.core.files import is_file, make_path_relative, read_text, write_text
from voxgraft.core.run import RUN_FILE, RunFolder

# A type checker wants the words of a Literal written out; the registry has them, so it sees a plain text.
if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[FAMILY_NAMES]
RowInit = Literal["romanised", "script-mean", "mean", "random"]
TrainMode = Literal["gated", "merged", "rows-only"]
SingleClipPolicy = Literal["leave-out", "own"]
SpeakerSource = Literal["auto", "folder", "recording", "file"]
MAX_SEED = 2**63 - 1
"""Random generators take no larger ones."""
LANGUAGE_PATTERN = r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$"

# Settings that several classes have, each defined once: its type, its limits and its help.
BaseFolder = Annotated[
    Path | None,
    Field(description="Folder of the base (the pretrained model), or tiny for the built-in base. It is never changed."),
]
FamilyOfBase = Annotated[FamilyName | None, Field(description="Model family. Default: detected from the base folder.")]
NewLanguage = Annotated[
    str | None,
    Field(
        pattern=LANGUAGE_PATTERN, description="Language code (ISO 639) of the new language, for example am for Amharic."
    ),
]
LanguageTexts = Annotated[
    tuple[Path, ...],
    Field(
        description="Text files of the new language, for the tokenizer: one sentence per line, or the "
        "manifest.jsonl of a dataset. Default: the texts of the run's dataset."
    ),
]
ProofTexts = Annotated[
    tuple[Path, ...],
    Field(
        description="Text files of base languages (en.txt, fr.txt ...), to test that the extended tokenizer gives "
        "them the same ids as the base's tokenizer. Built-in sentences are always tested as well."
    ),
]
ComputeDevice = Annotated[
    str | None, Field(description="Device: cpu, cuda, cuda:N or mps (Apple). Default: cuda if available, else cpu.")
]
ComputePrecision = Annotated[
    TrainPrecision | None,
    Field(
        description="Precision: float32, bf16 or fp16. Default: bf16 if supported, fp16 on older GPUs, float32 on CPU."
    ),
]
SpeechRecognizer = Annotated[
    str | None,
    Field(
        description="Speech recognizer: built-in, whisper:SIZE, whisper:FOLDER, 'command:PROGRAM {wav}' or none. "
        "Default: built-in if it knows the language, else an installed Whisper, else none."
    ),
]
TextEncoding = Annotated[
    str | None,
    Field(
        description="Encoding of the text files, for example windows-1252. Default: UTF-8. UTF-16 and "
        "UTF-32 are detected by their byte-order mark."
    ),
]
SourceSpeaker = Annotated[
    SpeakerSource,
    Field(
        description="How to tell speakers apart if the sources do not name them. folder: each folder is one speaker. "
        "file: each audio file is one speaker. recording: all clips of one original recording have one speaker, even "
        "if each clip is a file of its own. "
        "auto: one speaker for each recording with subtitles, transcript file (such as metadata.csv) or folder."
    ),
]


class VocabularySettings(Settings):
    """How the new tokens are trained."""

    pieces: int = Field(1000, ge=0, le=20_000)
    """Maximum number of new tokens with several characters. Single characters are added as well and do not count."""
    min_count: int = Field(5, ge=2)
    """Minimum number of occurrences of a new token in the texts."""
    max_piece_characters: int = Field(12, ge=2, le=32)
    """Maximum length of a new token, in characters."""
    normalise: bool = True
    """Normalize text of the new language: write numbers as words, and use plain punctuation."""
    fold_homophones: bool = False
    """Amharic: write one letter for letters that sound alike, in training and in synthesis."""


class TokenizerSettings(VocabularySettings):
    """Tokenizer of the new language: how it is trained, or an existing file."""

    file: Path | None = None
    """Tokenizer that already has the new tokens. It is verified before use. Default: `graft` trains one."""


class RowSettings(Settings):
    """Initialization of the new embedding rows."""

    init: RowInit = Field(
        "romanised",
        description="Initial value of a new row. romanised: mean of the base rows for the token's Latin spelling. "
        "script-mean: mean of the base rows for tokens in the script of the new token; if the base has none, mean of "
        "the base rows for all tokens made of letters. mean: mean of all base rows. random: noise with the mean and "
        "standard deviation of the base rows.",
    )
    noise: float = Field(0.05, ge=0, le=1)
    """Noise that makes new rows differ from each other, as a fraction of the standard deviation of the base rows."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the noise."""


class DataSettings(Settings):
    """Recordings, clips, and clips encoded for training (prepared clips)."""

    sources: tuple[Path, ...] = ()
    """Files or folders that `go` imports: recordings with subtitles or transcripts. Default: none."""
    speaker: str | None = None
    """Name of the speaker, if there is only one. Default: the names in the sources, else as set by speaker_from."""
    speaker_from: SourceSpeaker = "auto"
    encoding: TextEncoding = None
    max_left_out: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Maximum share of unusable lines in the sources, and of unusable sources. If either share is above "
        "this maximum, the import fails.",
    )
    dataset: Path | None = None
    """Folder of the run's dataset: manifest.jsonl and clips. Default: RUN/data."""
    train: tuple[Path, ...] = ()
    """Folders with prepared training clips of the new language. Default: RUN/data/train."""
    valid: tuple[Path, ...] = ()
    """Folders with prepared held-out clips of the new language. Default: RUN/data/valid."""
    replay: tuple[Path, ...] = ()
    """Merged mode: folders with prepared clips of base languages to mix in, so that the model keeps them (replay)."""
    replay_valid: tuple[Path, ...] = ()
    """Folders with prepared held-out clips of base languages, to measure how much the model forgets."""
    replay_texts: tuple[Path, ...] = Field(
        (),
        description="Text files of base languages (en.txt, fr.txt ...). The base speaks them, and this speech is the "
        "replay data. Default: built-in sentences.",
    )
    self_replay: int | None = Field(
        None,
        ge=0,
        description="Merged mode: number of sentences that the base speaks as replay data. Default: 400; with "
        "data.replay but without data.replay_texts, 0.",
    )
    replay_share: float = Field(0.25, gt=0, lt=1)
    """Share of the tokens in every step that comes from replay data."""
    min_prompt_seconds: float = Field(3.0, ge=0)
    """Minimum length of voice prompts, in seconds. Speakers without a clip of this length use shorter ones."""
    allow_overlap: bool = False
    """Train even if held-out clips are also training clips. The held-out loss is then too low to be trusted."""
    single_clip_speakers: SingleClipPolicy = Field(
        "leave-out",
        description="What to do with the clip of a speaker who has only one. leave-out: do not train on the clip. own: "
        "use the clip as its own voice prompt, from which the model may learn to copy the prompt.",
    )


_OPTIONS, _INTERVALS = TrainOptions(), TrainIntervals()
"""Defaults of the settings below are theirs."""


def _describe_loss_weight(part: Literal["text", "speech"]) -> str:
    """The help of a weight whose default is the family's."""
    families: dict[float, list[str]] = {}
    for name, facts in FAMILIES.items():
        families.setdefault(facts.loss_weights[part == "speech"], []).append(name)
    defaults = "; ".join(f"{weight:g} for {', '.join(names)}" for weight, names in families.items())
    return f"Weight of the {part} loss. Default: {defaults}."


class TrainSettings(Settings):
    """Training. For tiny, `new` writes fewer steps and smaller batches into run.yaml."""

    mode: TrainMode = Field(
        "gated",
        description="Training mode. gated: train new rows, and an adapter that runs for the new language only. merged: "
        "train the same, but the adapter becomes part of the weights, so old languages can change. rows-only: train "
        "new rows only.",
    )
    full_backbone: bool = _OPTIONS.full_backbone
    """Merged mode: train the whole backbone instead of an adapter."""
    rank: int = Field(_OPTIONS.rank, ge=1, le=1024)
    """LoRA rank of the adapter."""
    alpha: float | None = Field(None, gt=0)
    """LoRA alpha: the adapter is scaled by alpha / rank. Default: equal to the rank."""
    lr_rows: float = Field(_OPTIONS.lr_rows, gt=0)
    """Learning rate of the new rows."""
    lr_adapter: float = Field(_OPTIONS.lr_adapter, gt=0)
    """Learning rate of the adapter."""
    lr_backbone: float = Field(_OPTIONS.lr_backbone, gt=0)
    """Learning rate of the backbone (merged mode with full_backbone only)."""
    weight_decay: float = Field(_OPTIONS.weight_decay, ge=0, lt=1)
    """Weight decay of adapter and backbone. It does not apply to embedding rows."""
    max_grad_norm: float = Field(_OPTIONS.max_grad_norm, ge=0)
    """Maximum gradient norm per parameter group (rows, adapter, backbone); 0 disables clipping."""
    schedule: LRSchedule = _OPTIONS.schedule
    """Learning rate schedule after the warm-up: cosine, linear or constant."""
    warmup_steps: int = Field(_OPTIONS.warmup_steps, ge=0)
    """Number of warm-up steps."""
    min_lr_ratio: float = Field(_OPTIONS.min_lr_ratio, ge=0, le=1)
    """Final learning rate as a fraction of the peak."""
    steps: int | None = Field(None, ge=1)
    """Number of optimizer steps. Default: 10,000, or as set by epochs. For tiny, `new` sets 300."""
    epochs: float | None = Field(None, gt=0)
    """Number of passes over the training clips. Set either this or steps."""
    batch_tokens: int = Field(_OPTIONS.batch_tokens, ge=64)
    """Tokens (conditioning, text and speech) per optimizer step."""
    microbatch_tokens: int | None = Field(None, ge=64)
    """Maximum number of tokens per forward pass. Default: as many as fit into memory, up to batch_tokens."""
    text_weight: float | None = Field(None, ge=0, description=_describe_loss_weight("text"))
    speech_weight: float | None = Field(None, ge=0, description=_describe_loss_weight("speech"))
    text_dropout: float | None = Field(None, ge=0, lt=1)
    """Share of samples trained without text. Default: 0.1 if the family uses classifier-free guidance, else 0."""
    emotion_from: EmotionSource = _OPTIONS.emotion_from
    """IndexTTS-2: source of the emotion vector: target (the clip to speak) or prompt (the clip with the voice)."""
    seed: int = Field(_OPTIONS.seed, ge=0, le=MAX_SEED)
    """Seed of all random choices: data order, prompts, text dropout, adapter initialization."""
    device: ComputeDevice = None
    precision: ComputePrecision = None
    gradient_checkpointing: bool = _OPTIONS.gradient_checkpointing
    """Recompute activations in the backward pass. This needs less memory and is slower."""
    compile: bool | None = None
    """Compile the backbone with torch.compile: true or false. Default: true on CUDA, else false."""
    deterministic: bool = _OPTIONS.deterministic
    """Use deterministic kernels. On CUDA, a resumed run then gives exactly the same weights as one without a break."""
    log_every: int = Field(_INTERVALS.log_every, ge=1)
    """Number of steps between lines in journal.jsonl."""
    tensorboard: bool = True
    """Write event files for TensorBoard into RUN/tensorboard."""
    valid_every: int = Field(_INTERVALS.valid_every, ge=1)
    """Number of steps between validations."""
    save_every: int = Field(_INTERVALS.save_every, ge=1)
    """Save a checkpoint every so many steps."""
    sample_every: int = Field(_INTERVALS.sample_every, ge=1)
    """Number of steps between audio samples."""
    sample_texts: tuple[str, ...] = ()
    """Sentences of the samples, each as LANGUAGE:TEXT. Default: one in the new language, up to two in old ones."""
    sample_sound: bool = True
    """Write the samples as WAV files, too, if the base has a vocoder. Otherwise only speech codes are written."""
    listen_every: int = Field(
        _INTERVALS.listen_every,
        ge=0,
        description="Number of steps between tests that speak and transcribe 16 held-out sentences; 0: no tests. The "
        "step with the lowest error rate becomes the best step.",
    )
    recognizer: str | None = None
    """Speech recognizer for listen_every; values as for `evaluate`. It must know the language. Default: built-in."""
    keep_last: int = Field(_INTERVALS.keep_last, ge=1)
    """Number of saved steps to keep: the latest ones. The first and the best step are kept as well."""
    patience: int = Field(_INTERVALS.patience, ge=0)
    """Number of validations without improvement after which training stops; 0 disables early stopping."""
    min_delta: float = Field(_INTERVALS.min_delta, ge=0)
    """Minimum decrease of the validation loss that counts as an improvement, for train.patience."""
    min_steps: int = Field(_INTERVALS.min_steps, ge=0)
    """First step at which early stopping may happen."""
    kl_weight: float = Field(_OPTIONS.kl_weight, ge=0)
    """Merged mode: weight of the KL divergence from the base, measured on replay data."""
    retention_bound: float | None = Field(0.05, gt=0)
    """Merged mode: maximum increase of a base language's validation loss (0.05: 5 %). Beyond it, training stops."""
    interpolate: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (0.25, 0.5, 0.75, 1.0),
        min_length=1,
        description="Merged mode: mixtures of base (0) and trained model (1) to validate after training. Of those "
        "within train.retention_bound, the best one in the new language is kept.",
    )


class EvaluationSettings(Settings):
    """Evaluation settings of `go` and `evaluate`."""

    recognizer: SpeechRecognizer = None


class RunSettings(Settings):
    """All settings of a run's run.yaml."""

    words: ClassVar[Mapping[str, Mapping[str, Path]]] = {"base": BUILT_IN_BASES}

    base: BaseFolder = None
    family: FamilyOfBase = None
    language: NewLanguage = None
    texts: LanguageTexts = ()
    proof_texts: ProofTexts = ()
    tokenizer: TokenizerSettings = TokenizerSettings()
    """Tokenizer of the new language."""
    rows: RowSettings = RowSettings()
    """New rows."""
    data: DataSettings = DataSettings()
    """Training data."""
    train: TrainSettings = TrainSettings()
    """Training."""
    evaluate: EvaluationSettings = EvaluationSettings()
    """Evaluation."""


# Flags are for one time: `train` reports flags that differ from run.yaml, and the file stays the user's own text.
def find_overrides(run: RunFolder, settings: RunSettings) -> dict[str, str]:
    """By key, the values that run.yaml has otherwise; as it would have to say them. Nothing where there is no file."""
    if not is_file(run.settings):
        return {}
    file_settings = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    return {key: _format_override(now) for key, (now, _) in diff_settings(settings, file_settings).items()}


def format_override_flags(run: RunFolder, settings: RunSettings) -> list[str]:
    """The values that run.yaml has otherwise, as words of a command line, quoted for a shell."""
    if not is_file(run.settings):
        return []
    file_settings = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    words: list[str] = []
    for key, (now, _) in diff_settings(settings, file_settings).items():
        flag = "--" + key.replace("_", "-")
        if isinstance(now, bool):
            words.append(flag if now else f"{flag}=false")
            continue
        # A value that only the file has cannot be cleared by a flag.
        for value in now if isinstance(now, tuple) else () if now is None else (now,):
            words += [flag, shlex.quote(_format_override(value))]
    return words


def diff_settings(settings: RunSettings, file_settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """By key, the values that are not those that are stated: both of them. Two ways to one file are the same."""
    different = {}
    for leaf in iter_setting_fields(RunSettings):
        now, then = (reduce(getattr, leaf.key.split("."), source) for source in (settings, file_settings))
        if _comparable_value(now) != _comparable_value(then):
            different[leaf.key] = (now, then)
    return different


def _comparable_value(value: Any) -> Any:
    """Two ways to one file are the same."""
    if isinstance(value, tuple):
        return [_comparable_value(item) for item in value]
    return os.path.realpath(value) if isinstance(value, Path) else value


def _format_override(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_override, value))}]"
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    return os.path.abspath(value) if isinstance(value, Path) else str(value)


TITLE = (
    "Settings of this run, each with a comment. Flags of a command override this file.\n"
    "Relative paths are relative to this folder. A key without a value is not set; its comment gives the default."
)


def rewrite_run_yaml(path: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file again with other values in its sections. Relative paths start at its folder, as in the file."""
    from voxgraft.core.files import parse_yaml

    values = deep_merge(parse_yaml(read_text(path), path), changes)
    settings = parse_settings(RunSettings, drop_missing_values(values), path)
    write_text(path, format_commented_yaml(settings, TITLE), overwrite=True)


def update_run_yaml(run: RunFolder, settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Put the values in which `settings` differ from the file into it; by key what they are now, and what they were."""
    file_settings = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    changes = diff_settings(settings, file_settings)
    if changes:
        yaml_values = {
            key: format_yaml_value(_make_value_relative(run.path, value)).strip() for key, (value, _) in changes.items()
        }
        set_run_yaml_values(run.path, yaml_values)
    return changes


def set_run_yaml_values(run_folder: Path, yaml_values: Mapping[str, str]) -> None:
    """Replace values, each given as its YAML text, or add their keys. All of them, or none; comments and order stay."""
    from voxgraft.core.files import find_yaml_keys, parse_yaml

    path = run_folder / RUN_FILE
    text = read_text(path)
    parse_yaml(text, path)
    # Lists over several lines and sections in braces are how somebody chose to write them: the file is left as it is.
    refusal = ConfigError("ui-keep", f"{', '.join(yaml_values)} cannot be written to one line", where=path)
    for key, value in yaml_values.items():
        section, _, name = key.rpartition(".")
        nodes = find_yaml_keys(text)  # again for each value: offsets have moved
        item = f"{name}: {value}".rstrip()
        if section in nodes and getattr(nodes[section][1], "flow_style", False):
            raise refusal
        if key in nodes:
            start, end = nodes[key][0].start_mark, nodes[key][1].end_mark
            if start.line != end.line:
                raise refusal
            text = text[: start.index] + item + text[end.index :]
        elif section in nodes:
            # First below the section's own line, indented as its other keys are.
            head, tail = text[: nodes[section][0].end_mark.index], text[nodes[section][0].end_mark.index :]
            rest, _, tail = tail.partition("\n")
            inside = (node.start_mark.column for key, (node, _) in nodes.items() if key.startswith(f"{section}."))
            text = f"{head}{rest}\n{' ' * next(inside, 2)}{item}\n{tail}"
        else:
            text = f"{text}\n{section}:\n  {item}\n" if section else f"{item}\n{text}"
    try:
        values = parse_yaml(text, path)
    except ConfigError:
        raise refusal from None
    parse_settings(RunSettings, drop_missing_values(values), path)
    write_text(path, text, overwrite=True)


def rename_run_yaml_keys(path: Path) -> dict[str, str]:
    """Give the settings of an older run.yaml their new names, in place; new names by old ones. Comments stay."""
    from voxgraft.core.files import find_yaml_keys, parse_yaml

    text = read_text(path)
    parse_yaml(text, path)
    valid = {leaf.key for leaf in iter_setting_fields(RunSettings)}
    # Only keys are replaced, at their offsets: dumping the values would lose the user's comments and order.
    nodes = find_yaml_keys(text)
    renamed = {old: new for old, new in RENAMED_SETTINGS.items() if old in nodes and new in valid}
    # From the end of the file, so that offsets before it stay right.
    for old in sorted(renamed, key=lambda old: nodes[old][0].start_mark.index, reverse=True):
        node = nodes[old][0]
        text = text[: node.start_mark.index] + renamed[old].rpartition(".")[2] + text[node.end_mark.index :]
    if renamed:
        # A file that has an old and the new name of one setting fails here, since YAML keys must not repeat.
        parse_settings(RunSettings, drop_missing_values(parse_yaml(text, path)), path)
        write_text(path, text, overwrite=True)
    return renamed


def _make_value_relative(folder: Path, value: Any) -> Any:
    """Paths as run.yaml has them."""
    if isinstance(value, tuple):
        return tuple(_make_value_relative(folder, item) for item in value)
    return make_path_relative(folder, value) if isinstance(value, Path) else value


def load_command_settings(kind: type[AnySettings], run: RunFolder, **flags: Any) -> AnySettings:
    """A command's settings as its command line would have them: what run.yaml says, and flags over it."""
    values = {**read_settings_values(RunSettings, run.settings), "run": run.path}
    return parse_settings(kind, deep_merge(values, flags), run.settings)


def drop_missing_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A key without a value is not given."""
    given = {
        name: drop_missing_values(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }
    return {name: value for name, value in given.items() if value is not None}
