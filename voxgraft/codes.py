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
    "config-missing": Code(
        "config", "A setting without a default was not given.", "give it on the command line, or in a --config file."
    ),
    "config-shape": Code(
        "config",
        "A settings file must hold keys with values, and this one holds something else.",
        "write one `key: value` on each line, as in the run.yaml that `voxgraft new` makes.",
    ),
    "usage": Code("command line", "The command line cannot be read.", "see `voxgraft VERB --help`."),
    "usage-unknown-verb": Code("command line", "voxgraft has no verb of that name.", "see `voxgraft --help`."),
    "usage-unknown-flag": Code("command line", "The verb has no flag of that name.", "see `voxgraft VERB --help`."),
    "interrupted": Code(
        "command line",
        "The verb was stopped before its end; files that were not finished are not there.",
        "run it again.",
    ),
    "bug": Code(
        "command line",
        "voxgraft met something that it was not written for. That is our fault, not yours.",
        "please report it, with the lines above and the command that you ran.",
    ),
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
    "base-config": Code(
        "bases",
        "The base's own config file does not say what the stock program would need, or says it in the wrong form.",
        "restore the config file that came with the base.",
    ),
    "base-version": Code(
        "bases",
        "The base is another generation of this family, whose tensors and tokenizer are not the same.",
        "use a base of the version that is expected.",
    ),
    # ---- tokenizers --------------------------------------------------------------------------------------
    "tokenizer-broken": Code(
        "tokenizers", "The tokenizer file is damaged or is not a tokenizer.", "restore it from where it came."
    ),
    "tokenizer-unsupported": Code(
        "tokenizers",
        "The tokenizer works in a way about which voxgraft can prove nothing.",
        "use the tokenizer that the base was published with.",
    ),
    "tokenizer-duplicate-id": Code(
        "tokenizers",
        "Two pieces claim one id, or one piece two ids: one of them could never be read back.",
        "restore the file; do not edit ids by hand.",
    ),
    "tokenizer-flat-map": Code(
        "tokenizers",
        "A flat map from token to id without merges is no tokenizer: multi-character pieces can never occur, and there is no tag, start or stop.",
        "rebuild it: `voxgraft tokenizer train --base BASE --language CODE --texts FILE --output additions.json`, then `voxgraft tokenizer merge --base BASE --additions additions.json --output tokenizer.json`.",
    ),
    "tokenizer-not-grown": Code(
        "tokenizers",
        "The grown tokenizer does not begin with the base's own pieces on their own ids.",
        "make it with `voxgraft tokenizer merge`, which only appends.",
    ),
    "tokenizer-kind": Code(
        "tokenizers",
        "The two tokenizers are of different kinds, so one cannot be grown from the other.",
        "use the base tokenizer that the grown one was made from.",
    ),
    "tokenizer-gaps": Code(
        "tokenizers",
        "The id map has holes: a count of pieces is then smaller than the table that its ids need, which ends in an index past the table.",
        "make the tokenizer again with `voxgraft tokenizer merge`, which numbers without gaps.",
    ),
    "tag-splits": Code(
        "tokenizers",
        "The language tag is not one token, so the model would read it as letters.",
        "add it with `voxgraft tokenizer merge`, which makes it an added token.",
    ),
    "proof-changed": Code(
        "tokenizers",
        "Text that the base could spell is spelled otherwise now: the base's languages would meet untrained rows.",
        "use a tokenizer made by `voxgraft tokenizer train` and `merge`, which adds only pieces with a new character.",
    ),
    "proof-unknown-letters": Code(
        "tokenizers",
        "Letters of the new language have no piece: the model cannot see them. Merges that keep only the first pieces of a larger candidate lose all single characters this way.",
        "make the tokenizer with `voxgraft tokenizer train` and `merge`: every letter of the script gets a piece.",
    ),
    "proof-unknown-symbols": Code(
        "tokenizers",
        "Signs in the texts that are not the language's own (symbols, digits that the base lacks) have no piece. General symbols never become pieces.",
        "write them as words in the texts, or leave them out.",
        "warning",
    ),
    "proof-unreachable": Code(
        "tokenizers",
        "Rows for pieces that no text can become are dead weight; usually the stock program changes the text first (lower-case, upper-case, decomposition).",
        "train on prepared text with `voxgraft tokenizer train`.",
    ),
    "tokenizer-family": Code(
        "tokenizers",
        "From the tokenizer file alone it is not clear which family it belongs to.",
        "say it with --family.",
    ),
    "additions-broken": Code(
        "tokenizers",
        "The additions file is damaged or is something else.",
        "make it again with `voxgraft tokenizer train`.",
    ),
    "additions-other-base": Code(
        "tokenizers",
        "The additions were learnt on another base tokenizer; their ids would be wrong.",
        "train them again on this base.",
    ),
    # ---- grown layers ------------------------------------------------------------------------------------
    "rows-layout": Code(
        "layers",
        "These numbers or shapes make no text table.",
        "give the base's own table, the number of its pieces, and the family's number of spare rows.",
    ),
    "token-id-outside": Code(
        "layers",
        "The text holds an id for which the model has no row; on a GPU this ends in a device assert.",
        "spell the text with the tokenizer of this graft, and make the model with this graft's rows.",
    ),
    "layer-rows-mismatch": Code(
        "layers",
        "The table has other rows than the model that should hold it.",
        "use the graft and the checkpoint that were made together; a base's own table is grown with `voxgraft extend`.",
    ),
    "graft-point": Code(
        "layers",
        "A layer that should get new rows is not one that can be grown without changing what it computes.",
        "check the family's list of text layers against the model.",
    ),
    "base-moved": Code(
        "layers",
        "Tensors of the base changed, which nothing in voxgraft may do: something else wrote to them.",
        "go back to the last checkpoint whose hashes agree, and load the base again.",
    ),
    "base-not-loaded": Code(
        "layers",
        "The model was built without values, so there is nothing to compare.",
        "load the base's weights first.",
    ),
    "moments-mismatch": Code(
        "layers",
        "The optimizer state was made for other tensors, for example by a run that trained the whole table; its moments would push the wrong rows.",
        "start the optimizer afresh from this checkpoint, or resume the run that the state belongs to.",
    ),
    # ---- rows against tokenizer --------------------------------------------------------------------------
    "checkpoint-family": Code(
        "rows",
        "The file has no text table of a family that voxgraft knows.",
        "check that this is the checkpoint of the text-to-speech language model, not of its vocoder; or say --family.",
    ),
    "rows-vs-tokenizer": Code(
        "rows",
        "The text table has another number of rows than the tokenizer needs.",
        "use the tokenizer that belongs to this checkpoint, or grow the checkpoint with `voxgraft extend`.",
    ),
    "ids-past-table": Code(
        "rows",
        "The tokenizer gives ids past the end of the text table: an index error on a CPU, a device-side assert on a GPU.",
        "grow the checkpoint with `voxgraft extend CHECKPOINT --tokenizer FILE --output NEW`.",
    ),
    "head-not-grown": Code(
        "rows",
        "The text tables have different row counts; usually the embedding was grown and the head was not.",
        "start again from the base's own file with `voxgraft extend`, which grows all of them.",
    ),
    "tensor-not-finite": Code(
        "rows",
        "A text table holds NaN or infinite values: the checkpoint is ruined.",
        "go back to an earlier checkpoint or to the base.",
    ),
    "growth-differs": Code(
        "rows",
        "Reading the written file back gave other bits than the input has; the disk or the memory is at fault.",
        "write to another disk, and check this machine's memory.",
    ),
    # ---- grafts ------------------------------------------------------------------------------------------
    "graft-broken": Code(
        "grafts", "The graft folder is damaged or is no graft.", "make it again with `voxgraft graft RUN`."
    ),
    "graft-mismatch": Code(
        "grafts",
        "The parts of the graft folder do not belong together.",
        "run `voxgraft graft RUN` again, or restore the folder from `graft.previous` beside it.",
    ),
}
