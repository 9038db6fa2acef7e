"""The table of verbs. A verb's function is imported only when it runs, so that help never waits for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from voxgraft import checkup_settings, data_settings, exchange_settings, settings
from voxgraft.config import SettingField, Settings, iter_setting_fields
from voxgraft.going.settings import GoSettings
from voxgraft.preparing.settings import PrepareSettings
from voxgraft.results import CommandResult
from voxgraft.ui_settings import UiSettings

TOKENIZER_FLAGS = {"tokenizer.file": ("--tokenizer.file", "--tokenizer")}


@dataclass(frozen=True, slots=True)
class CliCommand:
    """One verb: `function` is `module:name` of a function that takes `settings` and gives a Result."""

    name: str
    settings: type[Settings]
    function: str
    help: str
    positional: tuple[str, ...] = ()
    """Settings that are given by place, in this order, instead of by flag."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flag names, by key, of settings whose flag is not simply their key."""

    def load(self) -> Callable[[Any], CommandResult]:
        """The function itself; imports its module."""
        module, _, name = self.function.partition(":")
        return cast(Callable[[Any], CommandResult], getattr(import_module(module), name))

    def leaves(self) -> list[SettingField]:
        """All settings, those given by place first."""
        by_key = {leaf.key: leaf for leaf in iter_setting_fields(self.settings)}
        return [*(by_key.pop(key) for key in self.positional), *by_key.values()]

    def flag_names(self, leaf: SettingField) -> tuple[str, ...]:
        """What the setting is called on the command line: its place (CHECKPOINT) or its flags."""
        if leaf.key in self.positional:
            return (leaf.key.upper(),)
        return self.flags.get(leaf.key) or ("--" + leaf.key.replace("_", "-"),)

    @property
    def has_own_dry_run(self) -> bool:
        """Whether the verb itself answers --dry-run, by what it would do."""
        return "dry_run" in self.settings.model_fields

    @property
    def usage(self) -> str:
        words = [f"Usage: voxgraft {self.name}"]
        for leaf in self.leaves()[: len(self.positional)]:
            word = self.flag_names(leaf)[0] + ("..." if leaf.is_list else "")
            words.append(word if leaf.field.is_required() else f"[{word}]")
        return " ".join([*words, "[OPTIONS]"])


COMMAND_GROUPS = {
    "data": "Make training data of texts and recordings.",
    "tokenizer": "Train, merge, prove and show tokenizers.",
}
"""First words that several verbs share, with their help."""

COMMANDS = (
    CliCommand(
        "demo",
        settings.DemoSettings,
        "voxgraft.demo:demo",
        "Graft Amharic onto the built-in base, which speaks English and French, in minutes; listen, and prove it.",
        positional=("folder",),
    ),
    CliCommand(
        "show",
        settings.ShowSettings,
        "voxgraft.show:show_base",
        "Show a base: its parts, rows, tokenizer, languages, fingerprint, and what is missing.",
        positional=("base",),
    ),
    CliCommand(
        "new",
        settings.NewSettings,
        "voxgraft.new:create_run",
        "Make a run: a folder with a commented run.yaml.",
        positional=("run",),
        flags={"old": ("--from",)},
    ),
    CliCommand(
        "go",
        GoSettings,
        "voxgraft.go:run_pipeline",
        "Run all stages of a run, from recordings to an export; skip those that are finished, and say why.",
        positional=("run",),
        flags={
            **TOKENIZER_FLAGS,
            "evaluate.recogniser": ("--evaluate.recogniser", "--recogniser"),
            # What the stage `import` prints as its own flags.
            "data.speaker": ("--data.speaker", "--speaker"),
            "data.speaker_from": ("--data.speaker-from", "--speaker-from"),
            "data.encoding": ("--data.encoding", "--encoding"),
            "data.max_left_out": ("--data.max-left-out", "--max-left-out"),
        },
    ),
    CliCommand(
        "graft",
        settings.GraftSettings,
        "voxgraft.graft:graft",
        "Train, merge and prove the tokenizer of a run and make its new rows.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "prepare",
        PrepareSettings,
        "voxgraft.prepare:prepare",
        "Make the sets that `train` reads of a manifest of clips: codes, voices and text ids. Goes on where it was.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "train",
        settings.TrainCommandSettings,
        "voxgraft.train:train",
        "Train a run's graft, or go on from where it was.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "plot",
        settings.PlotSettings,
        "voxgraft.plot:plot",
        "Draw the curves of a run, or compare several, as PNG and SVG. Reads only, also while a run trains.",
        positional=("runs",),
    ),
    CliCommand(
        "speak",
        settings.SpeakSettings,
        "voxgraft.speak:speak",
        "Say texts with a base, a run or grafts; write WAV files, or speech codes.",
        positional=("text",),
    ),
    CliCommand(
        "evaluate",
        settings.EvaluateSettings,
        "voxgraft.evaluate:evaluate",
        "Judge what was trained: base and graft say the same sentences, a listener writes them down; report, scores.",
        positional=("subject",),
        flags={"listener": ("--listener", "--recogniser")},
    ),
    CliCommand(
        "compare",
        settings.CompareSettings,
        "voxgraft.compare:compare",
        "Compare evaluated runs: a picture and a table of what each gains in the new language and loses in old ones.",
        positional=("runs",),
    ),
    CliCommand(
        "export",
        exchange_settings.ExportSettings,
        "voxgraft.export:export",
        "Give a graft back: folders that the stock programs load, a PEFT adapter, or the graft to share.",
        positional=("subject",),
    ),
    CliCommand(
        "push",
        exchange_settings.PushSettings,
        "voxgraft.push_pull:push",
        "Pack a graft or an export into a zip file, or send it to a hub repository.",
        positional=("folder", "to"),
    ),
    CliCommand(
        "pull",
        exchange_settings.PullSettings,
        "voxgraft.push_pull:pull",
        "Unpack a graft or an export from a zip file or a hub repository, and check that it is whole.",
        positional=("source", "folder"),
    ),
    CliCommand(
        "download",
        exchange_settings.DownloadSettings,
        "voxgraft.download:download",
        "Fetch a published base with every file that it needs; without a network, say what to put where.",
        positional=("name", "folder"),
        flags={"list_only": ("--list",)},
    ),
    CliCommand(
        "companion",
        exchange_settings.CompanionSettings,
        "voxgraft.companion:create_companion",
        "Make an environment of its own for a stock program, which then makes sound of codes.",
        positional=("name",),
    ),
    CliCommand(
        "check",
        settings.CheckSettings,
        "voxgraft.check:check",
        "Find everything in a run, or in loose files, that would go wrong. Changes nothing.",
        positional=("run",),
        flags=TOKENIZER_FLAGS,
    ),
    CliCommand(
        "diagnose",
        checkup_settings.DiagnoseSettings,
        "voxgraft.diagnose:diagnose",
        "Say what happened to a checkpoint of anyone's, and whether to resume, repair or start fresh. Changes nothing.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "repair",
        checkup_settings.RepairSettings,
        "voxgraft.repair:repair",
        "Write a checkpoint again with what was damaged taken from its base. The input is only read.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "bundle",
        checkup_settings.BundleSettings,
        "voxgraft.bundle:bundle",
        "Gather what others need to help with a run, as one zip: no audio, no texts, home folders masked.",
        positional=("run",),
    ),
    CliCommand(
        "clean",
        settings.CleanSettings,
        "voxgraft.clean:clean",
        "Show what the saved steps of a run take, and remove those that are not needed. Asks before it removes.",
        positional=("run",),
    ),
    CliCommand(
        "extend",
        settings.ExtendSettings,
        "voxgraft.extend:extend",
        "Write a checkpoint again with rows for every piece of a grown tokenizer.",
        positional=("checkpoint",),
    ),
    CliCommand(
        "data import",
        data_settings.DataImportSettings,
        "voxgraft.data_import:data_import",
        "Cut recordings with subtitles or transcripts into clips with a manifest. Goes on where it was killed.",
        positional=("dataset", "sources"),
    ),
    CliCommand(
        "data list",
        data_settings.DataListSettings,
        "voxgraft.data_sets:data_list",
        "List the datasets in a folder, or the recordings of a dataset.",
        positional=("folder",),
    ),
    CliCommand(
        "data info",
        data_settings.DataInfoSettings,
        "voxgraft.data_sets:data_info",
        "Show what a dataset holds: hours, speakers, splits, reasons, what is missing. Changes nothing.",
        positional=("dataset",),
    ),
    CliCommand(
        "data merge",
        data_settings.DataMergeSettings,
        "voxgraft.data_sets:data_merge",
        "Put datasets into one; no clip overwrites another.",
        positional=("dataset", "sets"),
    ),
    CliCommand(
        "data remove",
        data_settings.DataRemoveSettings,
        "voxgraft.data_sets:data_remove",
        "Take recordings, speakers or clips out of a dataset. Asks before it removes.",
        positional=("dataset",),
    ),
    CliCommand(
        "data speakers",
        data_settings.DataSpeakersSettings,
        "voxgraft.data_speakers:data_speakers",
        "Show who speaks in a dataset; tell voices apart, give speakers other names, or make two one.",
        positional=("dataset",),
    ),
    CliCommand(
        "data report",
        data_settings.DataReportSettings,
        "voxgraft.data_report:data_report",
        "Measure every clip, reject by thresholds, write a page with histograms and players. Deletes nothing.",
        positional=("dataset",),
    ),
    CliCommand(
        "data split",
        data_settings.DataSplitSettings,
        "voxgraft.data_split:data_split",
        "Divide a dataset into train, validation and test by whole recordings or speakers, and look for leaks.",
        positional=("dataset",),
    ),
    CliCommand(
        "data fetch",
        data_settings.DataFetchSettings,
        "voxgraft.data_fetch:data_fetch",
        "Fetch media and captions by their addresses (needs yt-dlp).",
        positional=("folder", "addresses"),
    ),
    CliCommand(
        "data text",
        settings.DataTextSettings,
        "voxgraft.data_text:data_text",
        "Write texts as they are said: numbers, dates, money and abbreviations in words. Changes no file.",
        positional=("text",),
    ),
    CliCommand(
        "tokenizer train",
        settings.TokenizerTrainSettings,
        "voxgraft.tokenizer_verbs:tokenizer_train",
        "Learn the pieces and characters that a base lacks for a language.",
    ),
    CliCommand(
        "tokenizer merge",
        settings.TokenizerMergeSettings,
        "voxgraft.tokenizer_verbs:tokenizer_merge",
        "Add what was learnt to the base's tokenizer; every old id stays.",
    ),
    CliCommand(
        "tokenizer prove",
        settings.TokenizerProveSettings,
        "voxgraft.tokenizer_verbs:tokenizer_prove",
        "Compare two tokenizers, id for id, on thousands of sentences.",
    ),
    CliCommand(
        "tokenizer show",
        settings.TokenizerShowSettings,
        "voxgraft.tokenizer_verbs:tokenizer_show",
        "Spell sentences piece by piece, old against new, unknowns marked.",
        positional=("text",),
    ),
    CliCommand(
        "ui",
        UiSettings,
        "voxgraft.ui.verb:ui",
        "The same verbs in a browser, for this machine alone unless told otherwise (needs voxgraft[ui]).",
    ),
    CliCommand(
        "random-base",
        settings.RandomBaseSettings,
        "voxgraft.random_base:create_random_base",
        "Make a base of random weights in the published format, for tests and demonstrations.",
        positional=("family", "folder"),
    ),
)
