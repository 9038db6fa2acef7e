"""Facts about IndexTTS-2's GPT (UnifiedVoice): its files and what its config says of them, its text rows."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from voxgraft.errors import ConfigError, FileError
from voxgraft.families.base import BaseFiles, Family, Front, GraftPoint, RateRange
from voxgraft.families.indextts2.text import IndexFront
from voxgraft.files import existing_folder, is_file, read_yaml

CONFIG_NAME = "config.yaml"
FIRST_VERSION, NEXT_VERSION = 2.0, 2.5
"""1.x has no emotion part; 2.5 has another tokenizer and another way to the speaker."""


class IndexTTS2(Family):
    """Bilibili's IndexTTS-2: a GPT-2 with one text row more than the tokenizer has pieces, and a biased text head."""

    name: ClassVar[str] = "indextts2"
    languages: ClassVar[tuple[str, ...]] = ("en", "zh")
    graft_points: ClassVar[tuple[GraftPoint, ...]] = (
        GraftPoint("text_embedding.weight", "embedding"),
        GraftPoint("text_head.weight", "head"),
        GraftPoint("text_head.bias", "head-bias"),
    )
    spare_rows: ClassVar[int] = 1
    has_tags: ClassVar[bool] = False
    start_id: ClassVar[int] = 0
    stop_id: ClassVar[int] = 1
    special_ids: ClassVar[dict[str, int]] = {"<s>": 0, "</s>": 1, "<unk>": 2}
    deleted_ids: ClassVar[frozenset[int]] = frozenset({0, 1})
    tokenizer_names: ClassVar[tuple[str, ...]] = ("bpe.model",)
    checkpoint_names: ClassVar[tuple[str, ...]] = ("gpt.pth", "gpt.safetensors")
    rates: ClassVar[dict[str, RateRange]] = {
        "rows": RateRange(1e-4, 1e-2),
        "adapter": RateRange(2e-4, 3e-3),
        "body": RateRange(1e-5, 1e-4),
    }
    licence: ClassVar[str] = (
        "IndexTTS-2 is under the bilibili Model Use License Agreement: whoever shares a graft made from it must carry "
        "that agreement and its disclaimer, and pass both on."
    )

    def files(self, folder: Path) -> BaseFiles:
        existing_folder(folder)
        config = folder / CONFIG_NAME
        if not is_file(config):
            raise FileError("base-file-missing", f"{CONFIG_NAME} is not in the folder", where=folder)
        settings = _settings(config)
        _refuse_other_versions(settings, config)
        checkpoint = _file_name(settings, "gpt_checkpoint", config)
        tokenizer = _file_name(_section(settings, "dataset", config), "dataset.bpe_model", config)
        return BaseFiles(
            folder,
            _first_there(folder, (checkpoint,) if checkpoint else self.checkpoint_names),
            _first_there(folder, (tokenizer,) if tokenizer else self.tokenizer_names),
            config,
        )

    def front(self, tokenizer: Path | None = None) -> Front:  # noqa: ARG002 (no tables beside the tokenizer)
        return IndexFront()

    def configured_pieces(self, config: Path) -> int | None:
        pieces = _section(_settings(config), "gpt", config).get("number_text_tokens")
        if pieces is None:
            return None
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            found = f"gpt.number_text_tokens is {pieces!r}"
            raise ConfigError("base-config", found, expected="a whole number, 1 or more", where=config)
        return pieces


def _settings(config: Path) -> dict[Any, Any]:
    settings = read_yaml(config)
    if not isinstance(settings, dict):
        found = f"{config.name} holds a {type(settings).__name__}"
        raise ConfigError("base-config", found, expected="settings by name", where=config)
    return settings


def _section(settings: dict[Any, Any], name: str, config: Path) -> dict[Any, Any]:
    section = settings.get(name, {})
    if not isinstance(section, dict):
        found = f"{name} is {str(section)[:40]!r}"
        raise ConfigError("base-config", found, expected="settings by name", where=config)
    return section


def _file_name(section: dict[Any, Any], path: str, config: Path) -> str | None:
    """The file name that a setting gives, if it is there; it may not lead out of the base folder."""
    name = section.get(path.rpartition(".")[2])
    if name is None:
        return None
    expected = "the name of a file in the same folder"
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError("base-config", f"{path} is {str(name)[:80]!r}", expected=expected, where=config)
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        cure = f"put the file into the folder and write its name as {path}."
        found = f"{path} leads out of the folder: {name!r}"
        raise ConfigError("base-config", found, expected=expected, where=config, cure=cure)
    return name


def _refuse_other_versions(settings: dict[Any, Any], config: Path) -> None:
    version = settings.get("version")
    if isinstance(version, (int, float)) and not FIRST_VERSION <= version < NEXT_VERSION:
        raise ConfigError("base-version", f"version is {version}", expected=f"{FIRST_VERSION}", where=config)


def _first_there(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if is_file(folder / name):
            return folder / name
    missing = " and ".join(names)
    raise FileError(
        "base-file-missing", f"{missing} {'is' if len(names) == 1 else 'are'} not in the folder", where=folder
    )
