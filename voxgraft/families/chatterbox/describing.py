"""What can be told of a Chatterbox base beyond its tensors: which release it is, and its other files."""

from __future__ import annotations

from voxgraft.families.base import BaseFiles
from voxgraft.families.chatterbox.family import ENGLISH_RELEASE, ENGLISH_ROWS, RELEASES, Chatterbox
from voxgraft.families.chatterbox.text import CANGJIE_NAME
from voxgraft.families.description import BaseDescription, SideFile
from voxgraft.files import is_file

RELEASE_TITLES_BY_ROWS = {
    2454: "multilingual, by its rows (v2 and v3 have as many)",
    2352: "first multilingual, by its rows",
    ENGLISH_ROWS: "English, by its rows",
}
VOICE_ENCODER_FILES = ("ve.pt", "ve.safetensors")
S3GEN_FILES = ("s3gen.pt", "s3gen_v3.pt", "s3gen_v3.safetensors", "s3gen.safetensors")
"""Names that a file may have: as the multilingual program wants it first, as the English one does last."""
VOICE_ENCODER_PURPOSE = "voice encoder: from a recording to the speaker's vector"
S3GEN_PURPOSE = "S3Gen: from a recording to codes, and from codes to the waveform"
CONDITIONS_PURPOSE = "built-in voice, for speaking without a recording"
CANGJIE_PURPOSE = "Cangjie codes, for spelling Chinese"


def describe_chatterbox(files: BaseFiles, rows: int) -> BaseDescription:
    """By the checkpoint's published name; by its number of text rows where it has another."""
    release = {release.checkpoint: release for release in RELEASES}.get(files.checkpoint.name)
    english = release == ENGLISH_RELEASE or (release is None and rows == ENGLISH_ROWS)
    title = release.title if release else RELEASE_TITLES_BY_ROWS.get(rows, f"no published release ({rows:,} text rows)")
    others = (
        other.checkpoint
        for other in RELEASES
        if other != release and is_file(files.folder / other.checkpoint) and is_file(files.folder / other.tokenizer)
    )
    return BaseDescription(
        title, ("en",) if english else Chatterbox.languages, _list_side_files(english), tuple(others)
    )


def _list_side_files(english: bool) -> tuple[SideFile, ...]:
    """The English program wants safetensors where the multilingual one wants torch files."""
    turn = -1 if english else 1
    files = (
        SideFile(VOICE_ENCODER_FILES[::turn], ("preparing", "speaking"), VOICE_ENCODER_PURPOSE),
        SideFile(S3GEN_FILES[::turn], ("preparing", "speaking"), S3GEN_PURPOSE),
        SideFile(("conds.pt",), (), CONDITIONS_PURPOSE),
    )
    return files if english else (*files, SideFile((CANGJIE_NAME,), (), CANGJIE_PURPOSE))
