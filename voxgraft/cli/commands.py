"""The table of commands. A command's function is imported only when it runs, so that help never waits for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from voxgraft.config import commands, data
from voxgraft.config.base import SettingField, Settings, iter_setting_fields
from voxgraft.config.commands import GoSettings, PrepareSettings, UiSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.results import CommandResult

TOKENIZER_FLAGS = {"tokenizer.file": ("--tokenizer.file", "--tokenizer")}
# Keys of run.yaml on the help pages of commands that read a part of it.
COMMON_READS = ("base", "family", "language")
TRAIN_DATA_READS = tuple(
    f"data.{name}"
    for name in (
        *("train", "valid", "replay", "replay_valid", "replay_texts", "self_replay", "replay_share"),
        *("min_prompt_seconds", "allow_overlap", "single_clip_speakers"),
    )
)


@dataclass(frozen=True, slots=True)
class CliCommand:
    """One command: `function` is `module:name` of a function that takes `settings` and returns a CommandResult."""

    name: str
    settings: type[Settings]
    function: str
    help: str
    positional: tuple[str, ...] = ()
    """Settings that are positional arguments, in this order, instead of flags."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flag names, by key, of settings whose flag is not simply their key."""
    reads: tuple[str, ...] = ()
    """Keys and sections of run.yaml that its help shows; others are accepted. Without any, all are shown."""

    def shows(self, leaf: SettingField) -> bool:
        """Whether a setting belongs on the command's help page: its own ones, and what it reads of run.yaml."""
        section = leaf.key.partition(".")[0]
        is_own = section not in RunSettings.model_fields or not issubclass(self.settings, RunSettings)
        return not self.reads or is_own or leaf.key in self.reads or section in self.reads

    @property
    def example(self) -> str:
        """One command line for the help page; empty for commands that are not ours (tests have some)."""
        return EXAMPLES.get(self.name, "")

    def load(self) -> Callable[[Any], CommandResult]:
        """The function itself; imports its module."""
        module, _, name = self.function.partition(":")
        return cast(Callable[[Any], CommandResult], getattr(import_module(module), name))

    def leaves(self) -> list[SettingField]:
        """All settings, positional ones first."""
        by_key = {leaf.key: leaf for leaf in iter_setting_fields(self.settings)}
        return [*(by_key.pop(key) for key in self.positional), *by_key.values()]

    def flag_names(self, leaf: SettingField) -> tuple[str, ...]:
        """Names of the setting on the command line: its positional name (CHECKPOINT) or its flags."""
        if leaf.key in self.positional:
            return (leaf.key.upper(),)
        return self.flags.get(leaf.key) or ("--" + leaf.key.replace("_", "-"),)

    @property
    def usage(self) -> str:
        parts = [f"Usage: voxgraft {self.name}"]
        for leaf in self.leaves()[: len(self.positional)]:
            word = self.flag_names(leaf)[0] + ("..." if leaf.is_list else "")
            parts.append(word if leaf.field.is_required() else f"[{word}]")
        return " ".join([*parts, "[OPTIONS]"])


# Panels of `voxgraft --help`, in this order. The first has the eight commands that most people need.
HELP_PANELS = {
    "Start": ("demo", "doctor", "new", "go", "check", "train", "speak", "ui"),
    "Data": ("data", "prepare"),
    "Train": ("graft", "tokenizer", "plot", "clean"),
    "Evaluate": ("evaluate", "compare", "preference"),
    "Use and share": ("serve", "export", "push", "pull", "download", "companion"),
    "Inspect and repair": ("show", "diagnose", "repair", "extend", "update"),
}
EXAMPLES = {
    "demo": "voxgraft demo --minutes 1",
    "doctor": "voxgraft doctor",
    "show": "voxgraft show models/chatterbox",
    "new": "voxgraft new runs/amharic --base tiny --language am --sources talks",
    "update": "voxgraft update runs/amharic",
    "go": "voxgraft go runs/amharic --train.steps 900",
    "graft": "voxgraft graft runs/amharic",
    "prepare": "voxgraft prepare runs/amharic --workers 4",
    "train": "voxgraft train runs/amharic --train.steps 2000",
    "plot": "voxgraft plot runs/amharic",
    "speak": 'voxgraft speak "hello" --run runs/amharic --language en --output hello.wav',
    "serve": "voxgraft serve runs/amharic",
    "evaluate": "voxgraft evaluate runs/amharic --recognizer whisper:small",
    "compare": "voxgraft compare runs/amharic runs/other",
    "preference": "voxgraft preference runs/amharic/eval/default-listening anna.json ben.json",
    "export": "voxgraft export runs/amharic --to chatterbox",
    "push": "voxgraft push runs/amharic/export/graft amharic.zip",
    "pull": "voxgraft pull amharic.zip",
    "download": "voxgraft download chatterbox-multilingual models/chatterbox",
    "companion": "voxgraft companion chatterbox",
    "check": "voxgraft check runs/amharic",
    "diagnose": "voxgraft diagnose model.pth --base models/indextts2 --tokenizer bpe.model",
    "repair": "voxgraft repair model.pth --base models/indextts2 --output repaired.safetensors",
    "clean": "voxgraft clean runs/amharic --keep 1",
    "extend": "voxgraft extend gpt.pth --tokenizer bpe.model --output extended.pth",
    "data import": "voxgraft data import sets/films recordings --language am",
    "data list": "voxgraft data list sets",
    "data info": "voxgraft data info sets/films --problems",
    "data merge": "voxgraft data merge sets/all sets/films sets/radio",
    "data remove": "voxgraft data remove sets/films --recording film-2",
    "data speakers": "voxgraft data speakers sets/films --rename A=Abebe",
    "data report": "voxgraft data report sets/films",
    "data split": "voxgraft data split sets/films --by speaker",
    "data align": "voxgraft data align book.mp3 book.txt --dataset sets/book --language am",
    "data transcribe": "voxgraft data transcribe sets/talks talk.mp3 --language fr --recognizer whisper:small",
    "data verify": "voxgraft data verify sets/films --recognizer whisper:small",
    "data text": 'voxgraft data text "in 1987" --language fr',
    "tokenizer train": "voxgraft tokenizer train --base tiny --language am --texts amharic.txt",
    "tokenizer merge": "voxgraft tokenizer merge --base tiny --additions additions.json --output tokenizer.json",
    "tokenizer prove": "voxgraft tokenizer prove --base tiny --extended tokenizer.json --language am",
    "tokenizer show": 'voxgraft tokenizer show "hello" --base tiny --language en',
    "ui": "voxgraft ui",
}
# Settings that few people change: `--help` leaves them out, `--help --all` shows them. By key, in every command.
RARE_SETTINGS = frozenset(
    """
    tokenizer.min_count tokenizer.max_piece_characters tokenizer.normalise rows.noise rows.seed proof_texts
    data.encoding data.max_left_out data.replay_valid data.replay_texts data.self_replay data.replay_share
    data.min_prompt_seconds data.allow_overlap data.single_clip_speakers
    train.alpha train.weight_decay train.max_grad_norm train.min_lr_ratio train.microbatch_tokens train.text_weight
    train.speech_weight train.text_dropout train.emotion_from train.compile train.deterministic train.log_every
    train.tensorboard train.sample_sound train.recognizer train.min_delta train.min_steps train.kl_weight
    train.retention_bound train.interpolate
    listening_pairs players name dtype copy_files fingerprint hash batch_seconds points worse names
    """.split()
)

# First words that several commands share, with their help.
COMMAND_GROUPS = {
    "data": "Import and manage recordings and texts.\n\nExample: voxgraft data import clips talks --language am",
    "tokenizer": "Train, merge, verify and show tokenizers.\n\n"
    "Example: voxgraft tokenizer show hello --base tiny --language en",
}

COMMANDS = (
    CliCommand(
        "demo",
        commands.DemoSettings,
        "voxgraft.demo.command:demo",
        "Teach Amharic to the built-in base in about five minutes, evaluate the result, and write a report.",
        positional=("folder",),
    ),
    CliCommand(
        "show",
        commands.ShowSettings,
        "voxgraft.inspect.show:show_base",
        "Show a base: parts, rows, tokenizer, languages, fingerprint, missing files.",
        positional=("base",),
    ),
    CliCommand(
        "new",
        commands.NewSettings,
        "voxgraft.pipeline.command:create_run",
        "Create a run: a folder for one new language. Its run.yaml has all settings, with comments.",
        positional=("run",),
        flags={"old": ("--from",)},
    ),
    CliCommand(
        "update",
        commands.UpdateSettings,
        "voxgraft.pipeline.command:update_run",
        "Update the run.yaml of an older version: rename its settings, and keep values and comments.",
        positional=("run",),
    ),
    CliCommand(
        "go",
        GoSettings,
        "voxgraft.pipeline.command:run_pipeline",
        "Run all stages, from recordings to an export. Finished stages are skipped; interrupted ones resume.",
        positional=("run",),
        flags={
            **TOKENIZER_FLAGS,
            "evaluate.recognizer": ("--evaluate.recognizer", "--recognizer"),
            # What the stage `import` prints as its own flags.
            "data.speaker": ("--data.speaker", "--speaker"),
            "data.speaker_from": ("--data.speaker-from", "--speaker-from"),
            "data.encoding": ("--data.encoding", "--encoding"),
            "data.max_left_out": ("--data.max-left-out", "--max-left-out"),
        },
    ),
    CliCommand(
        "graft",
        commands.GraftSettings,
        "voxgraft.graft.command:graft",
        "Extend the base's tokenizer for the new language, verify it, and initialize the new embedding rows.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
        reads=(*COMMON_READS, "texts", "proof_texts", "tokenizer", "rows", "data.dataset"),
    ),
    CliCommand(
        "prepare",
        PrepareSettings,
        "voxgraft.preprocess.command:prepare",
        "Encode the clips of a dataset for training: speech codes, speaker conditioning, text ids. Resumable.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
        reads=(*COMMON_READS, "data.dataset"),
    ),
    CliCommand(
        "train",
        commands.TrainCommandSettings,
        "voxgraft.pipeline.train:train",
        "Train the graft of a run (its new rows and adapter), or resume the training.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
        reads=(*COMMON_READS, *TRAIN_DATA_READS, "train"),
    ),
    CliCommand(
        "plot",
        commands.PlotSettings,
        "voxgraft.training.plots:plot",
        "Plot the losses of one or several runs as PNG and SVG, also during training.",
        positional=("runs",),
    ),
    CliCommand(
        "speak",
        commands.SpeakSettings,
        "voxgraft.synthesis.command:speak",
        "Speak texts with a base, a run or grafts; write audio files or speech codes.",
        positional=("text",),
    ),
    CliCommand(
        "serve",
        commands.ServeSettings,
        "voxgraft.server.command:serve",
        "Serve speech over HTTP with an OpenAI-compatible API (needs voxgraft[server]).",
        positional=("model",),
    ),
    CliCommand(
        "evaluate",
        commands.EvaluateSettings,
        "voxgraft.evaluation.command:evaluate",
        "Evaluate a run: base and graft speak the same sentences, and a report compares their transcripts.",
        positional=("model",),
    ),
    CliCommand(
        "compare",
        commands.CompareSettings,
        "voxgraft.evaluation.command:compare",
        "Compare evaluated runs in a chart and a table: error in the new language, and change in old ones.",
        positional=("runs",),
    ),
    CliCommand(
        "preference",
        commands.PreferenceSettings,
        "voxgraft.evaluation.listening:preference",
        "Compute which system people prefer, from their answers to a listening test.",
        positional=("test", "answers"),
    ),
    CliCommand(
        "export",
        commands.ExportSettings,
        "voxgraft.export.command:export",
        "Export a graft for the original package, for PEFT, or as a small folder to share.",
        positional=("model",),
    ),
    CliCommand(
        "push",
        commands.PushSettings,
        "voxgraft.export.share:push",
        "Pack a graft or an export into a zip file, or publish it in a Hugging Face Hub repository.",
        positional=("folder", "to"),
    ),
    CliCommand(
        "pull",
        commands.PullSettings,
        "voxgraft.export.share:pull",
        "Get a graft or an export from a zip file or a Hugging Face Hub repository, and verify it.",
        positional=("source", "folder"),
    ),
    CliCommand(
        "download",
        commands.DownloadSettings,
        "voxgraft.export.share:download",
        "Download a published base. Without a network, list the files and where to put them.",
        positional=("name", "folder"),
        flags={"list_only": ("--list",)},
    ),
    CliCommand(
        "companion",
        commands.CompanionSettings,
        "voxgraft.companions.environments:create_companion",
        "Install the original program of a family in its own virtual environment, to test exports with it.",
        positional=("name",),
    ),
    CliCommand(
        "check",
        commands.CheckSettings,
        "voxgraft.inspect.check:check_command",
        "Check a run, or single files, for known problems before training. Changes nothing.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
        # The settings of training are checked as well, but people set them in run.yaml or for `train`.
        reads=(*COMMON_READS, "texts", "tokenizer.file"),
    ),
    CliCommand(
        "diagnose",
        commands.DiagnoseSettings,
        "voxgraft.inspect.diagnose:diagnose",
        "Report what is damaged in a checkpoint, and whether to resume its training, repair it, or start over.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "repair",
        commands.RepairSettings,
        "voxgraft.inspect.repair:repair",
        "Write a repaired copy of a checkpoint: damaged parts are restored from its base.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "doctor",
        commands.DoctorSettings,
        "voxgraft.inspect.show:doctor",
        "Report device, memory, versions, optional parts, free disk, and what this machine supports.",
    ),
    CliCommand(
        "clean",
        commands.CleanSettings,
        "voxgraft.checkpoints.steps:clean",
        "Remove saved steps that a run no longer needs, to free disk space. Asks first.",
        positional=("run",),
    ),
    CliCommand(
        "extend",
        commands.ExtendSettings,
        "voxgraft.graft.command:extend",
        "Add rows to a checkpoint for the new tokens of an extended tokenizer.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "data import",
        data.DataImportSettings,
        "voxgraft.data.import_command:data_import",
        "Cut recordings with subtitles or transcripts into clips, and add them to a dataset. Resumable.",
        positional=("dataset", "sources"),
    ),
    CliCommand(
        "data list",
        data.DataListSettings,
        "voxgraft.data.manage:data_list",
        "List the datasets in a folder, or the recordings of a dataset.",
        positional=("folder",),
    ),
    CliCommand(
        "data info",
        data.DataInfoSettings,
        "voxgraft.data.manage:data_info",
        "Show a dataset: hours, speakers, splits, rejections, missing files. Changes nothing.",
        positional=("dataset",),
    ),
    CliCommand(
        "data merge",
        data.DataMergeSettings,
        "voxgraft.data.manage:data_merge",
        "Merge datasets into one. No clip is overwritten.",
        positional=("dataset", "sets"),
    ),
    CliCommand(
        "data remove",
        data.DataRemoveSettings,
        "voxgraft.data.manage:data_remove",
        "Remove recordings, speakers or clips from a dataset. Asks first.",
        positional=("dataset",),
    ),
    CliCommand(
        "data speakers",
        data.DataSpeakersSettings,
        "voxgraft.data.manage:data_speakers",
        "Show, separate, rename or merge the speakers of a dataset.",
        positional=("dataset",),
    ),
    CliCommand(
        "data report",
        data.DataReportSettings,
        "voxgraft.data.report:data_report",
        "Measure every clip, reject bad ones, and write a page with histograms and players. Deletes nothing.",
        positional=("dataset",),
    ),
    CliCommand(
        "data align",
        data.DataAlignSettings,
        "voxgraft.asr.align:data_align",
        "Cut a long recording into clips, one for each sentence of its text. Uncertain sentences are rejected.",
        positional=("recording", "text"),
    ),
    CliCommand(
        "data transcribe",
        data.DataTranscribeSettings,
        "voxgraft.asr.align:data_transcribe",
        "Transcribe recordings that have no texts, and import them. Their texts are marked as machine-made.",
        positional=("dataset", "recordings"),
    ),
    CliCommand(
        "data verify",
        data.DataVerifySettings,
        "voxgraft.asr.transcripts:data_verify",
        "Compare every text with a recognizer's transcript, list the worst, and reject outliers. Deletes nothing.",
        positional=("dataset",),
    ),
    CliCommand(
        "data split",
        data.DataSplitSettings,
        "voxgraft.data.split:data_split",
        "Split a dataset into training, validation and test, and check for leaks.",
        positional=("dataset",),
    ),
    CliCommand(
        "data text",
        commands.DataTextSettings,
        "voxgraft.data.manage:data_text",
        "Normalize texts: numbers, dates, money and abbreviations as words. Changes no file.",
        positional=("text",),
    ),
    CliCommand(
        "tokenizer train",
        commands.TokenizerTrainSettings,
        "voxgraft.graft.command:tokenizer_train",
        "Train new tokens for a language from its texts. `tokenizer merge` adds them to the base's tokenizer.",
    ),
    CliCommand(
        "tokenizer merge",
        commands.TokenizerMergeSettings,
        "voxgraft.graft.command:tokenizer_merge",
        "Append new tokens to the base's tokenizer. Old tokens keep their ids.",
    ),
    CliCommand(
        "tokenizer prove",
        commands.TokenizerProveSettings,
        "voxgraft.graft.command:tokenizer_prove",
        "Test with thousands of sentences whether an extended tokenizer encodes old text as the base's tokenizer does.",
    ),
    CliCommand(
        "tokenizer show",
        commands.TokenizerShowSettings,
        "voxgraft.graft.command:tokenizer_show",
        "Show how the base's tokenizer, and an extended one, tokenize sentences. Unknown tokens are marked.",
        positional=("text",),
    ),
    CliCommand(
        "ui",
        UiSettings,
        "voxgraft.ui.server:ui",
        "Start the web UI on this machine (needs voxgraft[ui]).",
    ),
)
