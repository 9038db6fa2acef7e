"""From the values of a form to the words of a command: the same settings, names and defaults as on the command line.

Needs no gradio. A value that a run or a default has already is not said again; paths are only taken inside the roots.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import gradio as gr

from voxgraft.cli.commands import COMMANDS, CliCommand
from voxgraft.cli.flags import CommandLine, parse_command_line, resolve_settings
from voxgraft.config.base import SettingField, Settings, parse_settings, read_settings_values
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import make_path_relative, text_lines
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.data.manifest import MANIFEST_NAME, ManifestClip, read_manifest
from voxgraft.data.selection import resolve_manifest_path
from voxgraft.export.share import ADAPTER_CARD
from voxgraft.export.sources import EXPORT_CARD_NAME as EXPORT_CARD
from voxgraft.graft.folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.models import resolve_base_folder
from voxgraft.ui.files import UPLOADS_FOLDER, Roots

if TYPE_CHECKING:
    from voxgraft.ui.forms import CommandForm, JobView


LEGACY_CLIPS_FOLDER = "clips"
"""Where pages of earlier versions kept the clips."""
MAX_CLIPS = 2000


def load_run_settings(project: Path) -> RunSettings:
    """What the project's run.yaml says."""
    path = project / RUN_FILE
    try:
        status = path.stat()
    except OSError:
        raise FileError("file-missing", f"{project} has no {RUN_FILE}", where=path) from None
    return _load_run_settings_cached(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _load_run_settings_cached(path: Path, _changed: int, _size: int) -> RunSettings:
    """Read once and kept until the file changes: a page asks two dozen times when a project is opened."""
    return parse_settings(RunSettings, read_settings_values(RunSettings, path), path)


def run_language(project: Path) -> str | None:
    """The new language, where run.yaml names it."""
    try:
        return load_run_settings(project).language
    except VoxgraftError:
        return None


def run_base_folder(project: Path) -> Path | None:
    """The base's folder, where run.yaml names it."""
    try:
        named = load_run_settings(project).base
    except VoxgraftError:
        return None
    return resolve_base_folder(named) if named is not None else None


def run_yaml_stamp(project: Path) -> str:
    """Changes when run.yaml does."""
    try:
        status = (project / RUN_FILE).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def run_dataset_folder(project: Path) -> Path:
    """Where the project's own dataset is, or will be: the same place that `go` and `prepare` take."""
    try:
        named = load_run_settings(project).data.dataset
    except VoxgraftError:
        named = None
    folder = resolve_manifest_path(named, RunFolder(project).data).parent
    old = project / LEGACY_CLIPS_FOLDER
    is_old = named is None and not (folder / MANIFEST_NAME).is_file() and (old / MANIFEST_NAME).is_file()
    return old if is_old else folder


def recording_sources(project: Path) -> list[Path] | None:
    """Where recordings come from: what run.yaml names, or the folder of uploaded ones, once there is one."""
    try:
        named = load_run_settings(project).data.sources
    except VoxgraftError:
        named = ()
    folder = project / UPLOADS_FOLDER
    return list(named) or ([folder] if folder.is_dir() else None)


def default_texts(project: Path) -> list[Path] | None:
    """What the language is learnt from unless run.yaml says it: the dataset's texts, where there are any."""
    try:
        if load_run_settings(project).texts:
            return None
    except VoxgraftError:
        return None
    manifest = run_dataset_folder(project) / MANIFEST_NAME
    return [manifest] if manifest.is_file() else None


def paths_named_by_run(project: Path) -> dict[str, list[Path]]:
    """What forms are filled with because run.yaml names it, also outside the roots; by setting."""
    try:
        settings = load_run_settings(project)
    except VoxgraftError:
        return {}
    dataset = run_dataset_folder(project)
    return {
        "dataset": [dataset],
        "manifest": [dataset],
        "sources": [*settings.data.sources],
        "texts": [*settings.texts, dataset / MANIFEST_NAME],
    }


def modified_time(path: Path) -> float:
    """When a file was last written; long ago, where a verb is just replacing it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def find_grown_tokenizer(project: Path) -> Path | None:
    """The tokenizer of the project's graft."""
    graft = RunFolder(project).graft
    return next((path for path in (graft / "tokenizer.json", graft / "tokenizer.model") if path.is_file()), None)


def read_first_clips(dataset: Path) -> list[ManifestClip]:
    """The first clips of a dataset."""
    found = []
    for clip in read_manifest(dataset / "manifest.jsonl"):
        found.append(clip)
        if len(found) >= MAX_CLIPS:
            break
    return found


EXECUTABLE_SETTINGS = frozenset(
    {"recognizer", "train.recognizer", "evaluate.recognizer", "pip_flags", "python", "environment", "checkout"}
)
"""Settings that name a program: never free to type here."""
TINY_BASE_SETTINGS = {("new", "base"), ("diagnose", "base"), ("repair", "base")}
"""Paths for which the word `tiny` stands too."""


def find_command(name: str) -> CliCommand:
    """The verb of that name; one that is not there is our bug."""
    return next(verb for verb in COMMANDS if verb.name == name)


def effective_values(verb: CliCommand, project: Path | None) -> dict[str, Any]:
    """Every setting of a verb as it counts if nothing is said: the run's own value, else the default."""
    values = {leaf.key: leaf.default for leaf in verb.leaves()}
    if project is not None and issubclass(verb.settings, RunSettings):
        values.update((key, value) for key, value in _flatten_settings(load_run_settings(project)) if key in values)
    return values


@dataclass(frozen=True, slots=True)
class CommandBuilder:
    """What a form makes of its values: the words of the command, checked as the command line would check them."""

    verb: CliCommand
    roots: Roots
    json: bool = False
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Words to choose from, by key, where the setting itself leaves them free."""
    path_keys: Collection[str] = ()
    """Texts that may be the path of a file, beside those that always are."""

    def words(self, values: Mapping[str, Any], project: Path | None, fixed: Mapping[str, Any]) -> list[str]:
        """The words after `voxgraft`. `fixed` values are ours; `values` were typed by somebody."""
        own = effective_values(self.verb, project)
        words_of = {}
        for leaf in self.verb.leaves():
            if leaf.key in fixed:
                words_of[leaf.key] = self.plain(leaf, fixed[leaf.key])
            elif leaf.key in values:
                known = self.plain(leaf, own[leaf.key])
                given = self._judged(
                    leaf, self.plain(leaf, values[leaf.key]), [*known, *self._paths_named_by_run(leaf, project)]
                )
                words_of[leaf.key] = given if leaf.field.is_required() or given != known else []
        self._check(words_of, project)
        return [*self.verb.name.split(), *self._line(words_of)]

    def changed(self, values: Mapping[str, Any], project: Path, fixed: Mapping[str, Any]) -> dict[str, str]:
        """The settings of a run that are not as its run.yaml has them, each as a YAML text; paths seen from the run.

        An empty value means what the run has, so it is none of them.
        """
        self.words(values, project, fixed)
        own = effective_values(self.verb, project)
        run_keys = dict(_flatten_settings(RunSettings()))
        found = {}
        for leaf in self.verb.leaves():
            if leaf.key not in values or leaf.key not in run_keys:
                continue
            known = self.plain(leaf, own[leaf.key])
            ours = [*known, *self._paths_named_by_run(leaf, project)]
            words = self._judged(leaf, self.plain(leaf, values[leaf.key]), ours)
            if not words or words == known:
                continue
            if leaf.is_path:
                words = [self._relative_to_run(word, ours, project) for word in words]
            found[leaf.key] = _to_yaml(leaf, words)
        return found

    def plain(self, leaf: SettingField, value: Any) -> list[str]:
        """A value as the words that stand for it; none where it is empty."""
        if value is None or value == "" or value == [] or value == ():
            return []
        if isinstance(value, bool):
            return ["yes" if value else "no"]
        if isinstance(value, Path):
            return [self.roots.short((self.roots.home / value).resolve())]
        if isinstance(value, int | float):
            return [str(int(value)) if float(value).is_integer() else repr(float(value))]
        if isinstance(value, str) and leaf.is_list:
            return [line.strip() for line in text_lines(value) if line.strip()]
        if isinstance(value, list | tuple):
            return [word for item in value for word in self.plain(leaf, item)]
        return [str(value)]

    def _judged(self, leaf: SettingField, words: list[str], own: Collection[str]) -> list[str]:
        """Typed words: paths must be inside, chosen words among the choices. What is the run's `own` is not judged."""
        typed = [word for word in words if word not in own]
        if typed and leaf.key in EXECUTABLE_SETTINGS and leaf.key not in self.choices:
            raise ConfigError("ui-executed", f"`{leaf.key}` names a program, and nothing typed here is executed")
        known = self.choices.get(leaf.key)
        if known is not None and (other := [word for word in typed if word not in known]):
            raise ConfigError("config-value", f"`{leaf.key}` is {other[0]!r}", expected=", ".join(map(str, known)))
        is_path = leaf.is_path or (leaf.key in self.path_keys and any("/" in word or "." in word for word in typed))
        if not is_path:
            return words
        passed = {*own, "tiny"} if (self.verb.name, leaf.key) in TINY_BASE_SETTINGS else {*own}
        return [word if word in passed else self.roots.short(self.roots.resolve_inside(word)) for word in words]

    def _paths_named_by_run(self, leaf: SettingField, project: Path | None) -> list[str]:
        """Paths that forms of this setting are filled with because the run names them, wherever they are."""
        if project is None or not leaf.is_path:
            return []
        found = [self.roots.short((self.roots.home / path).resolve()) for path in _run_paths_for_key(leaf.key, project)]
        return [*found, *map(str, _run_paths_for_key(leaf.key, project))]

    def _relative_to_run(self, word: str, own: Collection[str], project: Path) -> str:
        """A path as run.yaml states it."""
        if word in own and Path(word).is_absolute():
            return word
        return str(make_path_relative(project, Path(os.path.relpath(self.roots.resolve_inside(word)))))

    def _check(self, words_of: Mapping[str, list[str]], project: Path | None) -> None:
        """Raise what the verb itself would say of its settings."""
        leaves = {leaf.key: leaf for leaf in self.verb.leaves()}
        values: dict[str, Any] = {}
        for key, words in words_of.items():
            if words:
                is_switch = leaves[key].field.annotation is bool
                single = words[0] == "yes" if is_switch else words[-1]
                values[key] = list(words) if leaves[key].is_list else single
        if project is not None and issubclass(self.verb.settings, RunSettings) and values.get("run"):
            values["run"] = str(project)  # the server may stand in another folder than the command will
        resolve_settings(CommandLine(self.verb, values, None, json=self.json, dry_run=False, quiet=False))

    def _line(self, words_of: Mapping[str, list[str]]) -> list[str]:
        places: list[str] = []
        flags: list[str] = []
        for leaf in self.verb.leaves():
            words = words_of.get(leaf.key, [])
            name = self.verb.flag_names(leaf)[0]
            if leaf.key in self.verb.positional:
                places += words
            elif leaf.field.annotation is bool and words:
                off = f"{name}=no" if "." in name else name.replace("--", "--no-", 1)
                flags.append(name if words[0] == "yes" else off)
            elif words and any(word.startswith("-") for word in words):
                flags += [f"{name}={word}" for word in words]
            elif words:
                flags += [name, *words]
        flags += ["--json"] if self.json else []
        if any(word.startswith("-") for word in places):
            return [*flags, "--", *places]  # after it nothing is a flag any more
        return [*places, *flags]


def format_command(argv: Sequence[str]) -> str:
    """A command as somebody would type it."""
    return shlex.join(["voxgraft", *argv])


def run_command_in_process(argv: Sequence[str]) -> dict[str, Any]:
    """What a quick verb has to say, for machines. It runs in this process, which stands in the first root."""
    line = parse_command_line(list(argv), COMMANDS)
    assert isinstance(line, CommandLine), f"no verb: {argv}"
    return line.verb.load()(resolve_settings(line)).to_json()


def _run_paths_for_key(key: str, project: Path) -> list[Path]:
    """What a run reads, also outside the roots, because whoever wrote its run.yaml said so."""
    if key == "base":
        found = run_base_folder(project)
        return [found] if found is not None else []
    return paths_named_by_run(project).get(key, [])


def _to_yaml(leaf: SettingField, words: Sequence[str]) -> str:
    """Words as YAML on one line: numbers and switches bare, texts in quotes, nothing where it is empty."""
    is_bare = leaf.is_number or bool in (leaf.field.annotation, *get_args(leaf.field.annotation))
    bare = {"yes": "true", "no": "false"}
    texts = [bare.get(word, _yaml_number(word)) if is_bare else json.dumps(word, ensure_ascii=False) for word in words]
    return f"[{', '.join(texts)}]" if leaf.is_list else "".join(texts[:1])


def _yaml_number(word: str) -> str:
    """YAML 1.1 takes 1e-05 for a word; 1.0e-05 is a number."""
    mantissa, mark, exponent = word.partition("e")
    return word if not mark or "." in mantissa else f"{mantissa}.0e{exponent}"


def _flatten_settings(settings: Settings, prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        pairs += (
            _flatten_settings(value, f"{prefix}{name}.") if isinstance(value, Settings) else [(prefix + name, value)]
        )
    return pairs


ProjectHandler = Callable[[str], Sequence[Any]]
RECEIVED_CARDS = (GRAFT_CARD, EXPORT_CARD, ADAPTER_CARD)
"""What lies on top of everything that `pull` has taken in."""


@dataclass(frozen=True, slots=True)
class EventHandler:
    """What is called when something has happened: `function(project, *inputs)`, with a value for each output."""

    function: Callable[..., Sequence[Any]]
    inputs: list[Any]
    outputs: list[Any]
    slow: bool = False
    """Whether it takes so long that the others shall not wait for it."""
    tab: str = ""
    """The tab that it belongs to; only what is in view is looked after."""


@dataclass(slots=True)
class PageContext:
    """The page while it is built."""

    roots: Roots
    project: Any
    """A hidden text: the short name of the open project's folder, or nothing. The first input of every event."""
    pages: str = ""
    """First part of the addresses under which reports of a project are served; see `pages.py`."""
    tab: str = ""
    """The tab that is being built."""
    forms: list[CommandForm] = field(default_factory=list)
    views: list[JobView] = field(default_factory=list)
    project_handlers: list[EventHandler] = field(default_factory=list)
    job_end_handlers: list[EventHandler] = field(default_factory=list)
    refresh_ticks: dict[str, Any] = field(default_factory=dict)

    def project_folder(self, project: str) -> Path:
        """The folder of the open project; an error where none is open or it is not a project any more."""
        if not project:
            raise ConfigError("ui-no-project", "no project is open")
        folder = self.roots.resolve_inside(project)
        if not (folder / RUN_FILE).is_file():
            raise FileError("ui-no-project", f"{project} has no {RUN_FILE} any more", where=folder)
        if (above := self._find_received_folder(folder)) is not None:
            # A run.yaml may name programs, and files anywhere: one that somebody sent is not followed.
            raise FileError("ui-no-project", f"{project} is part of what was taken in from elsewhere", where=above)
        return folder

    def _find_received_folder(self, folder: Path) -> Path | None:
        """What was sent by somebody and holds the folder; the roots themselves and all above them are not asked."""
        for path in (folder, *folder.parents):
            if path in self.roots.paths:
                break
            if any((path / name).is_file() for name in RECEIVED_CARDS):
                return path
        return None

    def wire(
        self, triggers: Sequence[Any], function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any],
        **more: Any,
    ) -> Any:  # fmt: skip
        """An event without spinner and without a public address."""
        # Gradio tells every part that ever waited for something of every event: so nothing but one part waits.
        quiet = {"show_progress": "hidden", "show_progress_on": [self.project], "api_visibility": "private"}
        settings: dict[str, Any] = {**quiet, **more}
        return gr.on(list(triggers), function, list(inputs), list(outputs), **settings)

    def on_project(
        self,
        function: Callable[..., Sequence[Any]],
        outputs: list[Any],
        inputs: Sequence[Any] = (),
        *,
        slow: bool = False,
    ) -> None:
        """Call `function(project, *inputs)` when a project is opened or reloaded; it gives a value for each output."""
        self.project_handlers.append(EventHandler(function, list(inputs), outputs, slow, self.tab))

    def on_change(self, function: ProjectHandler, outputs: list[Any], *, slow: bool = False) -> None:
        """The same, and again whenever a job of the project has ended, or its run.yaml has changed."""
        self.on_project(function, outputs, slow=slow)
        self.on_job_end(function, [], outputs, slow=slow)

    def on_job_end(
        self, function: Callable[..., Sequence[Any]], inputs: list[Any], outputs: list[Any], *, slow: bool = False
    ) -> None:
        """Call `function(project, *inputs)` whenever a job of the project has ended, or its run.yaml has changed."""
        self.job_end_handlers.append(EventHandler(function, inputs, outputs, slow, self.tab))

    def refresh_tick(self) -> Any:
        """A hidden part that changes every two seconds while this tab is in view, and when a project is opened."""
        return self.refresh_ticks.setdefault(self.tab, gr.State(""))

    def add_view(self, view: JobView) -> None:
        """Keep the view of a verb's newest job up to date."""
        self.views.append(view)
