"""Facts about Chatterbox's T3: its releases and their files, its text rows, its tags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from voxgraft.errors import FileError
from voxgraft.families.base import BaseFiles, Family, Front, GraftPoint, RateRange
from voxgraft.families.chatterbox.text import CANGJIE_NAME, ChatterboxFront, EnglishFront, read_cangjie
from voxgraft.files import existing_folder, is_file


@dataclass(frozen=True, slots=True)
class Release:
    """A checkpoint and the tokenizer that belongs to it. The published folder holds several of them side by side."""

    title: str
    checkpoint: str
    tokenizer: str


ENGLISH = Release("English", "t3_cfg.safetensors", "tokenizer.json")
RELEASES = (
    Release("multilingual v2", "t3_mtl23ls_v2.safetensors", "grapheme_mtl_merged_expanded_v1.json"),
    Release("multilingual v3", "t3_mtl23ls_v3.safetensors", "grapheme_mtl_merged_expanded_v1.json"),
    Release("first multilingual", "t3_23lang.safetensors", "mtl_tokenizer.json"),
    ENGLISH,
)
"""In the order in which they are looked for; version 2 is what the stock program loads unless told otherwise."""


class Chatterbox(Family):
    """Resemble AI's Chatterbox: a Llama that reads text rows and speaks through a head of its own."""

    name: ClassVar[str] = "chatterbox"
    languages: ClassVar[tuple[str, ...]] = tuple(
        "ar da de el en es fi fr he hi it ja ko ms nl no pl pt ru sv sw tr zh".split()
    )
    graft_points: ClassVar[tuple[GraftPoint, ...]] = (
        GraftPoint("text_emb.weight", "embedding"),
        GraftPoint("text_head.weight", "head"),
    )
    spare_rows: ClassVar[int] = 0
    has_tags: ClassVar[bool] = True
    start_id: ClassVar[int] = 255
    stop_id: ClassVar[int] = 0
    special_ids: ClassVar[dict[str, int]] = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "[START]": 255}
    deleted_ids: ClassVar[frozenset[int]] = frozenset()
    tokenizer_names: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys(release.tokenizer for release in RELEASES))
    checkpoint_names: ClassVar[tuple[str, ...]] = tuple(release.checkpoint for release in RELEASES)
    rates: ClassVar[dict[str, RateRange]] = {
        "rows": RateRange(1e-4, 1e-2),
        "adapter": RateRange(2e-4, 3e-3),
        "body": RateRange(1e-5, 1e-4),
    }
    licence: ClassVar[str] = (
        "Chatterbox is under the MIT licence, (c) 2025 Resemble AI: keep its notice with the graft, and note that the "
        "stock program marks its speech with the Perth watermark."
    )

    def files(self, folder: Path) -> BaseFiles:
        release = self.release(folder)
        return BaseFiles(folder, folder / release.checkpoint, folder / release.tokenizer)

    def tokenizer_of(self, checkpoint: Path) -> Path:
        """Of the release whose checkpoint has that name; for a name of one's own, of the first release there is."""
        named = tuple(release for release in RELEASES if release.checkpoint == checkpoint.name)
        return checkpoint.parent / self.release(checkpoint.parent, named or RELEASES).tokenizer

    def release(self, folder: Path, among: tuple[Release, ...] = RELEASES) -> Release:
        """The first release whose checkpoint and tokenizer are both in the folder; never a pair of two releases."""
        existing_folder(folder)
        half: list[str] = []
        for release in among:
            checkpoint, tokenizer = is_file(folder / release.checkpoint), is_file(folder / release.tokenizer)
            if checkpoint and tokenizer:
                return release
            if checkpoint:
                half.append(f"{release.checkpoint} is there without its tokenizer {release.tokenizer}")
        looked = "; ".join(half) or f"none of {', '.join(self.checkpoint_names)} is in the folder"
        expected = "; or ".join(f"{release.checkpoint} with {release.tokenizer}" for release in among)
        raise FileError("base-file-missing", looked, expected=expected, where=folder)

    def front(self, tokenizer: Path | None = None) -> Front:
        if tokenizer is None:
            return ChatterboxFront()
        # By itself the name says nothing: an export and a graft have a tokenizer.json too.
        if tokenizer.name == ENGLISH.tokenizer and is_file(tokenizer.with_name(ENGLISH.checkpoint)):
            return EnglishFront()
        table = tokenizer.with_name(CANGJIE_NAME)
        return ChatterboxFront(read_cangjie(table) if is_file(table) else None)

    def configured_pieces(self, config: Path) -> int | None:  # noqa: ARG002 (this family has no config file)
        return None
