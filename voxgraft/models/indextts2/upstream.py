"""IndexTTS-2's own program: the files that it reads by its config, and a step before it for text of a new language.

The program reads numbers in Chinese or English whatever the language is, and does not know the marks of other scripts;
so the loader of an export gives it text in which neither stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import ClassVar

from voxgraft.core.errors import ConfigError
from voxgraft.models.base import (
    GROWN,
    MERGED,
    TEXT_PACKAGE_LOADER,
    BaseFiles,
    ExportInfo,
    StockFolder,
    StockProgram,
    find_side_files,
)
from voxgraft.models.indextts2.family import CONFIG_NAMED_FILES, IndexTTS2, describe_indextts2
from voxgraft.models.indextts2.shapes import CONFIG_NAME, get_config_file_name, read_base_config

_NUM_PIECES_LINE = re.compile(r"^(\s+number_text_tokens\s*:\s*)\d+", re.MULTILINE)
_GPT_SECTION_LINE = re.compile(r"^gpt\s*:[ \t]*$", re.MULTILINE)

_LOADER = '''"""Load this export with a checkout of IndexTTS-2 whose `indextts` can be imported.

    from load import LANGUAGE, load
    tts = load(LANGUAGE)
    tts.infer(spk_audio_prompt="voice.wav", text="...", output_path="out.wav")

The old languages are spoken by {grown}/, the base's own weights; the new one by {merged}/, whose text is normalised as
in training by the package voxgraft_text beside this file. Both hold config.yaml with gpt.number_text_tokens =
{pieces:d}: the number of pieces; the tables have one row more, which no text uses.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

from indextts.infer_v2 import IndexTTS2

FOLDER = Path(__file__).resolve().parent
LANGUAGE = {language!r}


{text_package}

class GraftedTTS(IndexTTS2):
    """Reads text as it was read in training."""

    def infer(self, spk_audio_prompt, text, *args, **options):
        return super().infer(spk_audio_prompt, prepared(text), *args, **options)


def load(language, **options):
    """The model that speaks a language; options are those of IndexTTS2."""
    is_new = language.lower() == LANGUAGE.lower()
    kind, folder = (GraftedTTS, FOLDER / "{merged}") if is_new else (IndexTTS2, FOLDER / "{grown}")
    return kind(cfg_path=str(folder / "config.yaml"), model_dir=str(folder), **options)
'''

_TEXT_STEP_SOURCE = """    text = RULES.apply(text)
    digits = [word for word in text.split() if any(map(str.isdecimal, word))]
    if digits:
        raise ValueError(f"{digits[0]!r} stays in digits, which IndexTTS-2 would read in Chinese: write it in words")
    return text if len(text.strip()) < 2 else plain_marks(text)"""


class IndexTTS2Program(StockProgram):
    """IndexTTS-2's `indextts.infer_v2`."""

    title: ClassVar[str] = "IndexTTS-2, from a checkout of its own"

    def folder(self, files: BaseFiles, pieces: int) -> StockFolder:
        assert files.config is not None
        settings = read_base_config(files.config)
        read = {
            get_config_file_name(settings, key, files.config) or published: what
            for key, (published, what) in CONFIG_NAMED_FILES.items()
        }
        beside, missing = find_side_files(files, read)
        more, _ = find_side_files(
            files, {name: "" for side in describe_indextts2(files).side_files for name in side.names}
        )
        own = {
            CONFIG_NAME: "sizes and file names; number_text_tokens is the number of pieces",
            files.checkpoint.name: "the GPT; names that lack are not told of, other shapes are an error",
            files.tokenizer.name: "text tokenizer",
        }
        return StockFolder(
            files.checkpoint.name,
            files.tokenizer.name,
            {**more, **beside},
            {CONFIG_NAME: build_config_text(files, pieces)},
            missing,
            {**own, **read},
        )

    def loader(self, facts: ExportInfo, files: BaseFiles) -> str:  # noqa: ARG002 (one for all)
        return _LOADER.format(
            language=facts.language,
            pieces=facts.pieces,
            grown=GROWN,
            merged=MERGED,
            text_package=TEXT_PACKAGE_LOADER,
        )

    def text_step(self, files: BaseFiles) -> tuple[str, Mapping[str, str]]:  # noqa: ARG002 (one for all)
        return _TEXT_STEP_SOURCE, {
            "marks": resources.files(__package__).joinpath("marks.py").read_text(encoding="utf-8")
        }

    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:  # noqa: ARG002 (one for all)
        return [
            "from load import load  # in this folder, with indextts importable",
            "",
            f"tts = load({facts.language!r})",
            'tts.infer(spk_audio_prompt="voice.wav", text="...", output_path="out.wav")',
        ]


def build_config_text(files: BaseFiles, pieces: int) -> str:
    """The base's config with another number of pieces, and nothing else changed: comments and order stay."""
    from voxgraft.core.files import read_text
    from voxgraft.core.yaml_files import parse_yaml

    assert files.config is not None
    text = read_text(files.config)
    new, count = _NUM_PIECES_LINE.subn(rf"\g<1>{pieces}", text)
    if not count:
        new = _GPT_SECTION_LINE.sub(f"gpt:\n    number_text_tokens: {pieces}", text)
    found = parse_yaml(new, files.config)
    stated = found.get("gpt", {}).get("number_text_tokens") if isinstance(found, dict) else None
    before = IndexTTS2().read_config_pieces(files.config)
    if stated != pieces:
        told = f"gpt.number_text_tokens is {before} in {files.config.name}, and could not be written as {pieces:,}"
        expected = "a line `number_text_tokens: N` of its own in the section gpt"
        raise ConfigError("base-config", told, expected=expected, where=files.config)
    return new
