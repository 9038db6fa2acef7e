"""The table of commands. A command's function is imported only when it runs, so that help never waits for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from voxgraft.config import commands, data
from voxgraft.config.base import SettingField, Settings, iter_setting_fields
from voxgraft.config.commands import GoSettings, PrepareSettings, UiSettings
from voxgraft.core.results import CommandResult

TOKENIZER_FLAGS = {"tokenizer.file": ("--tokenizer.file", "--tokenizer")}


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
        words = [f"Usage: voxgraft {self.name}"]
        for leaf in self.leaves()[: len(self.positional)]:
            word = self.flag_names(leaf)[0] + ("..." if leaf.is_list else "")
            words.append(word if leaf.field.is_required() else f"[{word}]")
        return " ".join([*words, "[OPTIONS]"])


# First words that several commands share, with their help.
COMMAND_GROUPS = {
    "data": "Make training data of texts and recordings.",
    "tokenizer": "Train, merge, prove and show tokenizers.",
}

COMMANDS = (
    CliCommand(
        "demo",
        commands.DemoSettings,
        "voxgraft.demo:demo",
        "Graft Amharic onto the built-in base, which speaks English and French, in minutes; listen, and prove it.",
        positional=("folder",),
    ),
    CliCommand(
        "show",
        commands.ShowSettings,
        "voxgraft.inspect.show:show_base",
        "Show a base: its parts, rows, tokenizer, languages, fingerprint, and what is missing.",
        positional=("base",),
    ),
    CliCommand(
        "new",
        commands.NewSettings,
        "voxgraft.pipeline.command:create_run",
        "Make a run: a folder with a commented run.yaml.",
        positional=("run",),
        flags={"old": ("--from",)},
    ),
    CliCommand(
        "go",
        GoSettings,
        "voxgraft.pipeline.command:run_pipeline",
        "Run all stages of a run, from recordings to an export; skip those that are finished, and say why.",
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
        "Train, merge and prove the tokenizer of a run and make its new rows.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "prepare",
        PrepareSettings,
        "voxgraft.preprocess.command:prepare",
        "Make the sets that `train` reads of a manifest of clips: codes, voices and text ids. Goes on where it was.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "train",
        commands.TrainCommandSettings,
        "voxgraft.pipeline.train:train",
        "Train a run's graft, or go on from where it was.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "plot",
        commands.PlotSettings,
        "voxgraft.training.plots:plot",
        "Draw the curves of a run, or compare several, as PNG and SVG. Reads only, also while a run trains.",
        positional=("runs",),
    ),
    CliCommand(
        "speak",
        commands.SpeakSettings,
        "voxgraft.synthesis.command:speak",
        "Say texts with a base, a run or grafts; write WAV files, or speech codes.",
        positional=("text",),
    ),
    CliCommand(
        "evaluate",
        commands.EvaluateSettings,
        "voxgraft.evaluation.command:evaluate",
        "Judge what was trained: base and graft say the same sentences, a listener writes them down; report, scores.",
        positional=("model",),
    ),
    CliCommand(
        "compare",
        commands.CompareSettings,
        "voxgraft.evaluation.compare:compare",
        "Compare evaluated runs: a picture and a table of what each gains in the new language and loses in old ones.",
        positional=("runs",),
    ),
    CliCommand(
        "export",
        commands.ExportSettings,
        "voxgraft.export.command:export",
        "Give a graft back: folders that the stock programs load, a PEFT adapter, or the graft to share.",
        positional=("model",),
    ),
    CliCommand(
        "push",
        commands.PushSettings,
        "voxgraft.export.share:push",
        "Pack a graft or an export into a zip file, or send it to a hub repository.",
        positional=("folder", "to"),
    ),
    CliCommand(
        "pull",
        commands.PullSettings,
        "voxgraft.export.share:pull",
        "Unpack a graft or an export from a zip file or a hub repository, and check that it is whole.",
        positional=("source", "folder"),
    ),
    CliCommand(
        "download",
        commands.DownloadSettings,
        "voxgraft.export.download:download",
        "Fetch a published base with every file that it needs; without a network, say what to put where.",
        positional=("name", "folder"),
        flags={"list_only": ("--list",)},
    ),
    CliCommand(
        "companion",
        commands.CompanionSettings,
        "voxgraft.companions.environments:create_companion",
        "Make an environment of its own for a stock program, which then makes sound of codes.",
        positional=("name",),
    ),
    CliCommand(
        "check",
        commands.CheckSettings,
        "voxgraft.inspect.check:check",
        "Find everything in a run, or in loose files, that would go wrong. Changes nothing.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "diagnose",
        commands.DiagnoseSettings,
        "voxgraft.inspect.diagnose:diagnose",
        "Say what happened to a checkpoint of anyone's, and whether to resume, repair or start fresh. Changes nothing.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "repair",
        commands.RepairSettings,
        "voxgraft.inspect.repair:repair",
        "Write a checkpoint again with what was damaged taken from its base. The input is only read.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "clean",
        commands.CleanSettings,
        "voxgraft.training.clean:clean",
        "Show what the saved steps of a run take, and remove those that are not needed. Asks before it removes.",
        positional=("run",),
    ),
    CliCommand(
        "extend",
        commands.ExtendSettings,
        "voxgraft.graft.command:extend",
        "Write a checkpoint again with rows for every piece of a grown tokenizer.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "data import",
        data.DataImportSettings,
        "voxgraft.data.import_command:data_import",
        "Cut recordings with subtitles or transcripts into clips with a manifest. Goes on where it was killed.",
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
        "Show what a dataset holds: hours, speakers, splits, reasons, what is missing. Changes nothing.",
        positional=("dataset",),
    ),
    CliCommand(
        "data merge",
        data.DataMergeSettings,
        "voxgraft.data.manage:data_merge",
        "Put datasets into one; no clip overwrites another.",
        positional=("dataset", "sets"),
    ),
    CliCommand(
        "data remove",
        data.DataRemoveSettings,
        "voxgraft.data.manage:data_remove",
        "Take recordings, speakers or clips out of a dataset. Asks before it removes.",
        positional=("dataset",),
    ),
    CliCommand(
        "data speakers",
        data.DataSpeakersSettings,
        "voxgraft.data.manage:data_speakers",
        "Show who speaks in a dataset; tell voices apart, give speakers other names, or make two one.",
        positional=("dataset",),
    ),
    CliCommand(
        "data report",
        data.DataReportSettings,
        "voxgraft.data.report:data_report",
        "Measure every clip, reject by thresholds, write a page with histograms and players. Deletes nothing.",
        positional=("dataset",),
    ),
    CliCommand(
        "data split",
        data.DataSplitSettings,
        "voxgraft.data.split:data_split",
        "Divide a dataset into train, validation and test by whole recordings or speakers, and look for leaks.",
        positional=("dataset",),
    ),
    CliCommand(
        "data text",
        commands.DataTextSettings,
        "voxgraft.data.manage:data_text",
        "Write texts as they are said: numbers, dates, money and abbreviations in words. Changes no file.",
        positional=("text",),
    ),
    CliCommand(
        "tokenizer train",
        commands.TokenizerTrainSettings,
        "voxgraft.graft.command:tokenizer_train",
        "Learn the pieces and characters that a base lacks for a language.",
    ),
    CliCommand(
        "tokenizer merge",
        commands.TokenizerMergeSettings,
        "voxgraft.graft.command:tokenizer_merge",
        "Add what was learnt to the base's tokenizer; every old id stays.",
    ),
    CliCommand(
        "tokenizer prove",
        commands.TokenizerProveSettings,
        "voxgraft.graft.command:tokenizer_prove",
        "Compare two tokenizers, id for id, on thousands of sentences.",
    ),
    CliCommand(
        "tokenizer show",
        commands.TokenizerShowSettings,
        "voxgraft.graft.command:tokenizer_show",
        "Spell sentences piece by piece, old against new, unknowns marked.",
        positional=("text",),
    ),
    CliCommand(
        "ui",
        UiSettings,
        "voxgraft.ui.server:ui",
        "The same verbs in a browser, for this machine alone unless told otherwise (needs voxgraft[ui]).",
    ),
)
