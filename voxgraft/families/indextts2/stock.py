"""IndexTTS-2's own program: the files that it reads by its config, and a step before it for text of a new language.

The program reads numbers in Chinese or English whatever the language is, and does not know the marks of other scripts;
so the loader of an export gives it text in which neither stands.
"""

from __future__ import annotations

import re
from typing import ClassVar

from voxgraft.errors import ConfigError
from voxgraft.families.base import BaseFiles
from voxgraft.families.indextts2.config_file import CONFIG_NAME, file_name, settings_of
from voxgraft.families.indextts2.describing import describe
from voxgraft.families.indextts2.family import IndexTTS2
from voxgraft.families.indextts2.marks import MARKS_INSIDE_WORDS, NEW_MARKS
from voxgraft.families.stock import GROWN, MERGED, Facts, StockFolder, StockProgram, beside_of

NAMED = {
    "s2mel_checkpoint": ("s2mel.pth", "from codes to a spectrogram"),
    "w2v_stat": ("wav2vec2bert_stats.pt", "mean and variance of the speech features"),
    "spk_matrix": ("feat1.pt", "voices behind the emotion vectors"),
    "emo_matrix": ("feat2.pt", "emotion vectors"),
    "qwen_emo_path": ("qwen0.6bemo4-merge", "emotion from a text"),
}
"""What the program reads from the folder, by the key of its config: the published name, and what for."""
_PIECES = re.compile(r"^(\s+number_text_tokens\s*:\s*)\d+", re.MULTILINE)
_SECTION = re.compile(r"^gpt\s*:[ \t]*$", re.MULTILINE)

_LOAD = '''"""Load this export with a checkout of IndexTTS-2 whose `indextts` can be imported.

    from load import LANGUAGE, load, prepared
    tts = load(LANGUAGE)
    tts.infer(spk_audio_prompt="voice.wav", text=prepared("..."), output_path="out.wav")

The old languages are spoken by {grown}/, the base's own weights; the new one by {merged}/. Both hold config.yaml with
gpt.number_text_tokens = {pieces:d}: the number of pieces; the tables have one row more, which no text uses.
"""

import re
import unicodedata
from pathlib import Path

from indextts.infer_v2 import IndexTTS2

FOLDER = Path(__file__).resolve().parent
LANGUAGE = {language!r}
MARKS = {marks}
INSIDE_WORDS = {inside}


def load(language, **options):
    """The model that speaks a language; options are those of IndexTTS2."""
    folder = FOLDER / ("{merged}" if language == LANGUAGE else "{grown}")
    return IndexTTS2(cfg_path=str(folder / "config.yaml"), model_dir=str(folder), **options)


def prepared(text):
    """Text of the new language as the program can read it: numbers in words, and marks that its tokenizer has."""
    text = in_words(unicodedata.normalize("NFC", text))
    text = re.sub(r"(?<=[\\u1200-\\u135f\\u1380-\\u139f\\u2d80-\\u2ddf\\uab00-\\uab2f])::", ".", text)
    for mark, written in INSIDE_WORDS.items():
        text = re.sub(rf"(\\w*){{mark}}(\\w*)", rf"\\g<1>\\g<2>{{written}}", text)
    for mark in sorted(MARKS, key=len, reverse=True):
        text = text.replace(mark, MARKS[mark])
    return f"{{text.strip()}}." if len(text.strip()) == 1 and text.strip().isalpha() else text


def in_words(text):
    """Numbers as they are said. The program would read them in Chinese."""
    try:
        from voxgraft.normalising import normaliser_of
    except ModuleNotFoundError:
        if re.search(r"\\d", text):
            raise ValueError("write numbers in words, or install voxgraft, which does: " + text) from None
        return text
    return normaliser_of(LANGUAGE).normalise(text).text
'''


class IndexProgram(StockProgram):
    """IndexTTS-2's `indextts.infer_v2`."""

    title: ClassVar[str] = "IndexTTS-2, from a checkout of its own"

    def folder(self, files: BaseFiles, pieces: int) -> StockFolder:
        assert files.config is not None
        settings = settings_of(files.config)
        read = {file_name(settings, key, files.config) or published: what for key, (published, what) in NAMED.items()}
        beside, missing = beside_of(files, read)
        more, _ = beside_of(files, {name: "" for side in describe(files).side_files for name in side.names})
        own = {
            CONFIG_NAME: "sizes and file names; number_text_tokens is the number of pieces",
            files.checkpoint.name: "the GPT; names that lack are not told of, other shapes are an error",
            files.tokenizer.name: "text tokenizer",
        }
        return StockFolder(
            files.checkpoint.name,
            files.tokenizer.name,
            {**more, **beside},
            {CONFIG_NAME: config_text(files, pieces)},
            missing,
            {**own, **read},
        )

    def loader(self, facts: Facts, files: BaseFiles) -> str:  # noqa: ARG002 (one for all)
        return _LOAD.format(
            language=facts.language,
            pieces=facts.pieces,
            grown=GROWN,
            merged=MERGED,
            marks=_written(NEW_MARKS),
            inside=_written(MARKS_INSIDE_WORDS),
        )

    def usage(self, facts: Facts, files: BaseFiles, *, drop_in: bool) -> list[str]:  # noqa: ARG002 (one for all)
        return [
            "from load import load, prepared  # in this folder, with indextts importable",
            "",
            f"tts = load({facts.language!r})",
            'tts.infer(spk_audio_prompt="voice.wav", text=prepared("..."), output_path="out.wav")',
        ]


def config_text(files: BaseFiles, pieces: int) -> str:
    """The base's config with another number of pieces, and nothing else changed: comments and order stay."""
    from voxgraft.files import read_text
    from voxgraft.yaml_files import parse_yaml

    assert files.config is not None
    text = read_text(files.config)
    new, count = _PIECES.subn(rf"\g<1>{pieces}", text)
    if not count:
        new = _SECTION.sub(f"gpt:\n    number_text_tokens: {pieces}", text)
    found = parse_yaml(new, files.config)
    stated = found.get("gpt", {}).get("number_text_tokens") if isinstance(found, dict) else None
    before = IndexTTS2().configured_pieces(files.config)
    if stated != pieces:
        told = f"gpt.number_text_tokens is {before} in {files.config.name}, and could not be written as {pieces:,}"
        expected = "a line `number_text_tokens: N` of its own in the section gpt"
        raise ConfigError("base-config", told, expected=expected, where=files.config)
    return new


def _written(marks: dict[str, str]) -> str:
    lines = [f"    {mark!r}: {written!r}," for mark, written in marks.items()]
    return "\n".join(["{", *lines, "}"])
