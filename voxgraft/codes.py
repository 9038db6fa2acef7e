"""The catalogue: every code that an error or a finding can carry, with its meaning and its cure.

`docs/errors.md` is generated from this table. Codes are words, never numbers, and never change their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Code:
    """One entry: `why` tells what it means for the user, `cure` what to do."""

    area: str
    why: str
    cure: str
    level: Literal["error", "warning", "note"] = "error"


CATALOGUE: dict[str, Code] = {
    # ---- files -------------------------------------------------------------------------------------------
    "file-missing": Code("files", "A file or folder that was named is not there.", "check the path."),
    "file-unreadable": Code("files", "The system would not let us read it.", "check permissions and the disk."),
    "file-empty": Code(
        "files", "The file has no bytes, often a download or a copy that was cut off.", "fetch or copy it again."
    ),
    "file-too-large": Code(
        "files",
        "A file of this kind is never this large; reading it would fill memory.",
        "check that this is the right file.",
    ),
    "file-exists": Code(
        "files",
        "The output is there already, and nothing is ever overwritten unasked.",
        "choose another --output, or add --overwrite.",
    ),
    "disk-full": Code(
        "files", "Writing failed part-way; the unfinished file was removed.", "free some disk space and run it again."
    ),
    "not-a-file": Code(
        "files", "A folder or device stands where a file is needed (or the other way round).", "check the path."
    ),
    # ---- text --------------------------------------------------------------------------------------------
    "text-not-utf8": Code(
        "text",
        "The file is not UTF-8, so its letters would be guessed.",
        "convert it, for example: iconv -f UTF-16 -t UTF-8 OLD > NEW.",
    ),
    "text-binary": Code(
        "text", "The file holds NUL bytes: it is not a text file.", "check that this is the right file."
    ),
    "text-line-too-long": Code(
        "text", "One line is longer than any sentence.", "put one sentence or paragraph on each line."
    ),
    "text-empty": Code(
        "text", "No line of the text holds a letter.", "give a file with sentences of the language, one per line."
    ),
    # ---- JSON and YAML -----------------------------------------------------------------------------------
    "json-broken": Code(
        "files", "The file is not valid JSON.", "restore the file; JSON is not meant to be edited by hand."
    ),
    "json-duplicate-key": Code(
        "files", "The same key stands twice in one object, so its meaning is unclear.", "remove one of the two."
    ),
    "json-too-deep": Code(
        "files", "The JSON is nested deeper than any file of this kind.", "check that this is the right file."
    ),
    "json-shape": Code(
        "files", "The JSON is valid but is not what this file should hold.", "check that this is the right file."
    ),
    "yaml-broken": Code(
        "config", "The file is not valid YAML.", "mend the line that is named; indentation is the usual fault."
    ),
    "yaml-alias": Code(
        "config",
        "YAML anchors and aliases are not read: they can blow a small file up to any size.",
        "write the value out.",
    ),
    "yaml-duplicate-key": Code("config", "The same key stands twice.", "remove one of the two."),
    # ---- config ------------------------------------------------------------------------------------------
    "config-unknown-key": Code(
        "config", "The key is not a setting of voxgraft.", "use the name that is suggested, or remove the key."
    ),
    "config-value": Code(
        "config", "The value does not fit the setting.", "see `voxgraft VERB --help` for what it takes."
    ),
    "config-missing": Code("config", "A setting without a default was not given.", "give it as a flag or in run.yaml."),
    # ---- bases and families ------------------------------------------------------------------------------
    "family-unknown": Code(
        "bases", "voxgraft does not know a kind of base of that name.", "use one of the names that are listed."
    ),
    "base-unknown": Code(
        "bases",
        "The folder holds the files of no base that voxgraft knows.",
        "check the path; the files that were looked for are named.",
    ),
    "base-file-missing": Code(
        "bases",
        "A file that every base of this family has is not in the folder.",
        "download the base again, or check the path.",
    ),
    # ---- tokenizers --------------------------------------------------------------------------------------
    "tokenizer-broken": Code("tokenizers", "The tokenizer file is damaged or is not a tokenizer.", "restore it from where it came."),
    "tokenizer-unsupported": Code("tokenizers", "The tokenizer works in a way about which voxgraft can prove nothing.", "use the tokenizer that the base was published with."),
    "tokenizer-duplicate-id": Code("tokenizers", "Two pieces claim one id, or one piece two ids: one of them could never be read back.", "restore the file; do not edit ids by hand."),
    "tokenizer-flat-map": Code("tokenizers", "A flat map from token to id without merges is no tokenizer: multi-character pieces can never occur, and there is no tag, start or stop.", "rebuild it: `voxgraft tokenizer train --base BASE --language CODE --texts FILE --output additions.json`, then `voxgraft tokenizer merge --base BASE --additions additions.json --output tokenizer.json`."),
    "tokenizer-not-grown": Code("tokenizers", "The grown tokenizer does not begin with the base's own pieces on their own ids.", "make it with `voxgraft tokenizer merge`, which only appends."),
    "tokenizer-kind": Code("tokenizers", "The two tokenizers are of different kinds, so one cannot be grown from the other.", "use the base tokenizer that the grown one was made from."),
    "additions-broken": Code("tokenizers", "The additions file is damaged or is something else.", "make it again with `voxgraft tokenizer train`."),
    "additions-other-base": Code("tokenizers", "The additions were learnt on another base tokenizer; their ids would be wrong.", "train them again on this base."),
}
