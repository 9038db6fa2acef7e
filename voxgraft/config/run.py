"""The settings of run.yaml, which all commands on a run share, and how that file is read, compared and changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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
from voxgraft.config.train_options import EmotionSource, LRSchedule, TrainIntervals, TrainOptions, TrainPrecision
from voxgraft.core.errors import ConfigError
from voxgraft.core.files import is_file, make_path_relative, read_text, write_text
from voxgraft.core.run import RUN_FILE, RunFolder

FamilyName = Literal["chatterbox", "indextts2", "tiny"]
RowInit = Literal["romanised", "script-mean", "mean", "random"]
TrainMode = Literal["gated", "merged", "rows-only"]
SingleClipPolicy = Literal["leave-out", "own"]
SpeakerSource = Literal["auto", "folder", "recording", "file"]
# Bases that come with voxgraft. A run names them by word, so that it does not depend on where voxgraft is installed.
BUILT_IN_BASES = {"tiny": Path(__file__).resolve().parent.parent / "assets" / "tiny"}
MAX_SEED = 2**63 - 1  # random generators take no larger ones
LANGUAGE_PATTERN = r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$"


class VocabularySettings(Settings):
    """How the new pieces are learnt."""

    pieces: int = Field(1000, ge=0, le=20_000)
    """Multi-character pieces to learn, at most. Single characters do not count."""
    min_count: int = Field(5, ge=2)
    """A piece must occur this often in the texts to be taken."""
    max_piece_characters: int = Field(12, ge=2, le=32)
    """Longest piece, in characters."""
    normalise: bool = True
    """Normalise text of the new language, in training and synthesis alike: numbers in words, plain marks."""
    fold_homophones: bool = False
    """Amharic: write one letter for those that sound alike, in training and synthesis."""


class TokenizerSettings(VocabularySettings):
    """How the new pieces are learnt, or the file that has them."""

    file: Path | None = None
    """A ready-made grown tokenizer to use instead of training one. It is proven like our own."""


class RowSettings(Settings):
    """How the new rows start."""

    init: RowInit = "romanised"
    """First values of a new row. romanised: romanise the piece, spell that with the base, average those rows."""
    noise: float = Field(0.05, ge=0, le=1)
    """Noise on each new row, as a share of the base rows' spread, so that no two rows are equal."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of that noise."""


class DataSettings(Settings):
    """What is learnt from: sets that `prepare` made, or pair manifests (*.jsonl) of the IndexTTS-2 forks."""

    sources: tuple[Path, ...] = ()
    """Recordings with subtitles or transcripts, which `go` imports as clips; empty means that you import them."""
    speaker: str | None = None
    """Name of the one speaker of all sources; empty means: what the sources say, else what speaker_from says."""
    speaker_from: SpeakerSource = "auto"
    """Who speaks where a source names nobody: auto (one person per list, folder or film), folder, recording, file."""
    encoding: str | None = None
    """Encoding of text files of the sources that are neither UTF-8 nor marked as UTF-16, such as windows-1252."""
    max_left_out: float = Field(0.2, ge=0, le=1)
    """Share of lines, or of sources, that an import may leave out (unreadable, missing, no text) and `go` continues."""
    dataset: Path | None = None
    """Dataset of clips that `prepare` makes the sets of, and `go` imports into; empty means data in the run folder."""
    train: tuple[Path, ...] = ()
    """Sets of the new language; empty means data/train in the run folder."""
    valid: tuple[Path, ...] = ()
    """Held-out recordings of the new language; empty means data/valid in the run folder."""
    replay: tuple[Path, ...] = ()
    """Sets of base languages, learnt beside the new one in merged mode so that they are not forgotten."""
    replay_valid: tuple[Path, ...] = ()
    """Held-out recordings of base languages, on which retention is measured."""
    replay_texts: tuple[Path, ...] = ()
    """Texts of base languages (en.txt, fr.txt ...) that the base speaks itself as replay; empty means built-in ones."""
    self_replay: int | None = Field(None, ge=0)
    """Utterances that the base speaks itself as replay; empty means 400 where merged mode has no other, 0 is none."""
    replay_share: float = Field(0.25, gt=0, lt=1)
    """Share of every step that replay gets."""
    min_prompt_seconds: float = Field(3.0, ge=0)
    """A voice prompt comes from another clip of the speaker that is at least this long, if there is one."""
    allow_overlap: bool = False
    """Train although held-out clips are also in a training set; the held-out loss then says little."""
    single_clip_speakers: SingleClipPolicy = "leave-out"
    """Speakers with a single clip: leave-out, or own (its own voice is its prompt, which teaches copying)."""


# Defaults of the settings below are theirs.
_OPTIONS, _INTERVALS = TrainOptions(), TrainIntervals()


class TrainSettings(Settings):
    """How the graft is trained. Rates are checked against the family's sane ranges."""

    mode: TrainMode = "gated"
    """gated (the base never changes), merged (one ordinary checkpoint), rows-only."""
    full_body: bool = _OPTIONS.full_body
    """Merged mode: train the body itself instead of an adapter that is folded in."""
    rank: int = Field(_OPTIONS.rank, ge=1, le=1024)
    """Rank of the adapter."""
    alpha: float | None = Field(None, gt=0)
    """Strength of the adapter is alpha / rank; empty means 1."""
    lr_rows: float = Field(_OPTIONS.lr_rows, gt=0)
    """Learning rate of the new rows."""
    lr_adapter: float = Field(_OPTIONS.lr_adapter, gt=0)
    """Learning rate of the adapter."""
    lr_backbone: float = Field(_OPTIONS.lr_backbone, gt=0)
    """Learning rate of the body; used in merged mode with full_body only."""
    weight_decay: float = Field(_OPTIONS.weight_decay, ge=0, lt=1)
    """Weight decay of adapter and body. New rows are never decayed, base rows are never in the optimizer."""
    max_grad_norm: float = Field(_OPTIONS.max_grad_norm, ge=0)
    """Maximum gradient norm of each part (rows, adapter, body); 0 disables clipping."""
    schedule: LRSchedule = _OPTIONS.schedule
    """How the rates fall after the warm-up: cosine, linear, constant."""
    warmup_steps: int = Field(_OPTIONS.warmup_steps, ge=0)
    """Steps over which the rates rise from zero."""
    min_lr_ratio: float = Field(_OPTIONS.min_lr_ratio, ge=0, le=1)
    """Learning rate at the last step, as a share of the full rate."""
    steps: int | None = Field(None, ge=1)
    """Optimizer steps; empty means 10,000, unless epochs says otherwise."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the training sets, instead of steps."""
    batch_tokens: int = Field(_OPTIONS.batch_tokens, ge=64)
    """Tokens (conditioning, text and speech) of one optimizer step."""
    microbatch_tokens: int | None = Field(None, ge=64)
    """Tokens that go through the model at once; empty means: as many as memory allows, up to batch_tokens."""
    text_weight: float | None = Field(None, ge=0)
    """Weight of the text loss; empty means the family's own (1 for chatterbox, 0.2 for indextts2, 0.1 for tiny)."""
    speech_weight: float | None = Field(None, ge=0)
    """Weight of the speech loss; empty means the family's own (1 for chatterbox and tiny, 0.8 for indextts2)."""
    text_dropout: float | None = Field(None, ge=0, lt=1)
    """Share of items that are trained without text, which guidance needs; empty means 0.1 where the family guides."""
    emotion_from: EmotionSource = _OPTIONS.emotion_from
    """Whose emotion an item is learnt with, in families that know emotions (indextts2): target or prompt."""
    seed: int = Field(_OPTIONS.seed, ge=0, le=MAX_SEED)
    """Seed of everything random: order, prompts, silent items, first values of the adapter."""
    device: str | None = None
    """cpu, cuda or cuda:N; empty means cuda where there is one."""
    precision: TrainPrecision | None = None
    """float32, bf16 or fp16; empty means bf16 where the device has it, fp16 on older cards, float32 on a CPU."""
    gradient_checkpointing: bool = _OPTIONS.gradient_checkpointing
    """Recompute activations in the backward pass instead of keeping them: less memory, slower."""
    compile: bool | None = None
    """Compile the body with torch.compile; empty means: on CUDA."""
    deterministic: bool = _OPTIONS.deterministic
    """Only kernels that give the same bits each time, so that a resumed run on CUDA equals a straight one."""
    log_every: int = Field(_INTERVALS.log_every, ge=1)
    """Steps between two lines of the journal."""
    tensorboard: bool = True
    """Event files for TensorBoard, in tensorboard/ of the run."""
    valid_every: int = Field(_INTERVALS.valid_every, ge=1)
    """Steps between two validations."""
    save_every: int = Field(_INTERVALS.save_every, ge=1)
    """Steps between two saved steps."""
    sample_every: int = Field(_INTERVALS.sample_every, ge=1)
    """Steps between two rounds of samples."""
    sample_texts: tuple[str, ...] = ()
    """Sentences that are spoken on the way, as LANGUAGE:TEXT; empty means one in the new language, two in old ones."""
    sample_sound: bool = True
    """Also as WAV files, where the base has a waveform end here; false saves the time that takes."""
    listen_every: int = Field(_INTERVALS.listen_every, ge=0)
    """Steps between two rounds of listening to 16 held-out texts, which then decide the best step; 0 is never."""
    recognizer: str | None = None
    """Recognizer for these rounds, as in `evaluate`; empty means the built-in one, for languages that it knows."""
    keep_last: int = Field(_INTERVALS.keep_last, ge=1)
    """Saved steps that are kept, beside the first and the best."""
    patience: int = Field(_INTERVALS.patience, ge=0)
    """Validations without improvement after which training stops; 0 is never."""
    min_delta: float = Field(_INTERVALS.min_delta, ge=0)
    """A validation loss counts as better when it is lower by more than this."""
    min_steps: int = Field(_INTERVALS.min_steps, ge=0)
    """No early stop before this step."""
    kl_weight: float = Field(_OPTIONS.kl_weight, ge=0)
    """Merged mode: weight of staying near the base on replay."""
    retention_bound: float | None = Field(0.05, gt=0)
    """Merged mode: training stops when a base language's validation loss has risen by more than this share."""
    interpolate: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field((0.25, 0.5, 0.75, 1.0), min_length=1)
    """Merged mode: shares of the training that are tried at the end; the best one within the bound is kept."""


class EvaluationSettings(Settings):
    """How `go` and `evaluate` judge what was trained."""

    recognizer: str | None = None
    """built-in, whisper:FOLDER, whisper:small, command:PROGRAM {wav} or none. Empty: one that knows the language."""


class RunSettings(Settings):
    """Everything that a run folder's run.yaml can say."""

    words: ClassVar[Mapping[str, Mapping[str, Path]]] = {"base": BUILT_IN_BASES}

    base: Path | None = None
    """Folder of the base, as its makers publish it, or the word tiny for the built-in one. It is only read."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language, such as am, ti, km."""
    texts: tuple[Path, ...] = ()
    """Text files of the new language, one sentence per line, or the manifest.jsonl of a dataset."""
    proof_texts: tuple[Path, ...] = ()
    """Your own texts of base languages, proven beside the built-in corpus (NAME.txt or en.txt, fr.txt ...)."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """Tokenizer of the new language."""
    rows: RowSettings = RowSettings()
    """New rows."""
    data: DataSettings = DataSettings()
    """What is learnt from."""
    train: TrainSettings = TrainSettings()
    """Training."""
    evaluate: EvaluationSettings = EvaluationSettings()
    """Evaluation."""


def find_overrides(run: RunFolder, settings: RunSettings) -> dict[str, str]:
    """By key, the values that run.yaml has otherwise; as it would have to say them. Nothing where there is no file."""
    if not is_file(run.settings):
        return {}
    stated = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    return {key: _format_override(now) for key, (now, _) in diff_settings(settings, stated).items()}


def diff_settings(settings: RunSettings, stated: RunSettings) -> dict[str, tuple[Any, Any]]:
    """By key, the values that are not those that are stated: both of them. Two ways to one file are the same."""
    found = {}
    for leaf in iter_setting_fields(RunSettings):
        now, then = (reduce(getattr, leaf.key.split("."), one) for one in (settings, stated))
        if _comparable_value(now) != _comparable_value(then):
            found[leaf.key] = now, then
    return found


def _comparable_value(value: Any) -> Any:
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
    "What this run is asked for. Every key stands here with its meaning; flags of a command win over this file.\n"
    "Relative paths start at this folder. A key without a value is not set; its comment says what counts then."
)


def rewrite_run_yaml(path: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file again with other values in its sections. Relative paths start at its folder, as in the file."""
    from voxgraft.core.yaml_files import parse_yaml

    values = deep_merge(parse_yaml(read_text(path), path), changes)
    settings = parse_settings(RunSettings, _drop_missing_values(values), path)
    write_text(path, format_commented_yaml(settings, TITLE), overwrite=True)


def update_run_yaml(run: RunFolder, settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Put the values in which `settings` differ from the file into it; by key what they are now, and what they were."""
    stated = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    changes = diff_settings(settings, stated)
    texts = {}
    for key, (value, _) in changes.items():
        # Paths as run.yaml has them: relative to its folder.
        items = [
            make_path_relative(run.path, item) if isinstance(item, Path) else item
            for item in (value if isinstance(value, tuple) else (value,))
        ]
        texts[key] = format_yaml_value(tuple(items) if isinstance(value, tuple) else items[0]).strip()
    if texts:
        set_run_yaml_values(run.path, texts)
    return changes


def set_run_yaml_values(run_folder: Path, yaml_values: Mapping[str, str]) -> None:
    """Write new values, given as YAML text, at the lines of their keys. All of them, or none.

    Comments stay, and so does the order of the keys.
    """
    from voxgraft.core.yaml_files import parse_yaml

    path = run_folder / RUN_FILE
    text = read_text(path)
    before = parse_yaml(text, path) or {}
    after, expected = text, before
    for key, value in yaml_values.items():
        after = _replace_yaml_line(after, key, value)
        section, _, name = key.rpartition(".")
        parsed = parse_yaml(f"value: {value}\n", path)["value"]
        expected = deep_merge(expected, {section: {name: parsed}} if section else {name: parsed})
    try:
        found = parse_yaml(after, path)
    except ConfigError:
        found = None
    # Lines are replaced without a parser. If the result does not have the expected values (lists over several lines,
    # sections in braces), the file is left as it is.
    if found != expected:
        raise ConfigError("ui-keep", f"{', '.join(yaml_values)} cannot be put at one line", where=path)
    parse_settings(RunSettings, _drop_missing_values(found), path)
    write_text(path, after, overwrite=True)


def _replace_yaml_line(text: str, key: str, value: str) -> str:
    *sections, name = key.split(".")
    lines = text.splitlines()
    start, indent = 0, ""
    for section in sections:
        at = _find_yaml_line(lines, start, indent, section)
        if at is None:
            return text + f"\n{section}:\n  {name}: {value}\n"
        start, indent = at + 1, indent + "  "
    at = _find_yaml_line(lines, start, indent, name)
    new = f"{indent}{name}: {value}".rstrip()
    if at is None:
        lines[start:start] = [new]
    else:
        lines[at] = new
    return "\n".join(lines) + "\n"


def _find_yaml_line(lines: list[str], start: int, indent: str, name: str) -> int | None:
    pattern = re.compile(rf"^{indent}{re.escape(name)}:")
    for number in range(start, len(lines)):
        line = lines[number]
        if pattern.match(line):
            return number
        if line.strip() and not line.lstrip().startswith("#") and not line.startswith(indent):
            return None
    return None


def load_command_settings(kind: type[AnySettings], run: RunFolder, **flags: Any) -> AnySettings:
    """A command's settings: what run.yaml says, and flags over it."""
    values = {**read_settings_values(RunSettings, run.settings), "run": run.path}
    return parse_settings(kind, deep_merge(values, flags), run.settings)


def _drop_missing_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A key without a value is not given."""
    given = {
        name: _drop_missing_values(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }
    return {name: value for name, value in given.items() if value is not None}
