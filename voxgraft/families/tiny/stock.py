"""The built-in family has no stock program but voxgraft itself, which needs no loader."""

from __future__ import annotations

from typing import ClassVar

from voxgraft.families.base import BaseFiles
from voxgraft.families.stock import ExportInfo, StockFolder, StockProgram, find_side_files
from voxgraft.families.tiny.family import CARD_NAME, CHECKPOINT_NAME, CODEC_NAME, TOKENIZER_NAME
from voxgraft.families.tiny.voices import VOICES_NAME

REQUIRED_FILES = {CODEC_NAME: "codec: from codes to sound", VOICES_NAME: "names of the speakers"}


class TinyProgram(StockProgram):
    """voxgraft."""

    title: ClassVar[str] = "voxgraft"

    def folder(self, files: BaseFiles, pieces: int) -> StockFolder:  # noqa: ARG002 (the rows stand in the checkpoint alone)
        beside, missing = find_side_files(files, REQUIRED_FILES)
        card, _ = find_side_files(files, {CARD_NAME: ""})
        read = {CHECKPOINT_NAME: "language model", TOKENIZER_NAME: "text tokenizer", **REQUIRED_FILES}
        return StockFolder(CHECKPOINT_NAME, TOKENIZER_NAME, {**beside, **card}, missing=missing, read=read)

    def loader(self, facts: ExportInfo, files: BaseFiles) -> None:  # noqa: ARG002 (there is none)
        return None

    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:  # noqa: ARG002 (there is one way)
        return [
            "from pathlib import Path",
            "",
            "from voxgraft.families import family",
            "from voxgraft.families.opening import open_model",
            "",
            'tiny = family("tiny")',
            'model = open_model(tiny, tiny.files(Path("merged")))',
        ]
