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


# One long table on purpose: a reader who looks a code up wants one place, and the docs are made from it.
CATALOGUE: dict[str, Code] = {
    # ---- files -------------------------------------------------------------------------------------------
    "file-missing": Code("files", "A file or folder that was named is not there.", "check the path."),
    "file-unreadable": Code("files", "The system would not let us read it.", "check permissions and the disk."),
    "file-unwritable": Code(
        "files", "The system would not let us write there.", "check permissions and the disk, or choose another place."
    ),
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
        "choose another place; where the verb has it, --overwrite replaces a file.",
    ),
    "disk-full": Code(
        "files", "Writing failed part-way; the unfinished file was removed.", "free some disk space and run it again."
    ),
    "disk-fault": Code(
        "files",
        "The disk or the network drive reported a hardware or connection error. No unfinished file was kept.",
        "check the disk (`dmesg`, `smartctl`) and its connection, or use another disk, and run it again.",
    ),
    "file-size-limit": Code(
        "files",
        "A file would be larger than the file system or `ulimit -f` allows. The unfinished file was removed.",
        "use another file system, or raise the limit, and run it again.",
    ),
    "file-name": Code(
        "files",
        "The system cannot use this path: a name in it is too long, or links in it lead in a circle.",
        "use a shorter path, or remove the link that points to itself.",
    ),
    "no-permission": Code(
        "files",
        "The system denied access: the permissions do not allow it, or the disk is mounted read-only.",
        "check the owner and the permissions of the file and its folder, or choose another place.",
    ),
    "system-limit": Code(
        "files",
        "A limit of the system was reached: open files, processes, or locks.",
        "close other programs, use fewer --workers, or raise the limit (`ulimit -n`, `ulimit -u`), and run it again.",
    ),
    "memory-full": Code(
        "files",
        "The machine has no memory left, or a limit on memory was reached.",
        "close other programs, use smaller batches or fewer --workers, and run it again.",
    ),
    "system-error": Code(
        "files",
        "The system refused to read or write a file.",
        "check the path, the permissions and the disk, and run it again.",
    ),
    "not-a-file": Code(
        "files", "A folder or device stands where a file is needed (or the other way round).", "check the path."
    ),
    # ---- text --------------------------------------------------------------------------------------------
    "text-not-utf8": Code(
        "text",
        "The file is not UTF-8, so its letters would be guessed.",
        "convert it, for example: iconv -f CP1252 -t UTF-8 OLD > NEW (or -f UTF-16, as the file was saved).",
    ),
    "text-binary": Code(
        "text", "The file holds NUL bytes: it is not a text file.", "check that this is the right file."
    ),
    "text-line-too-long": Code(
        "text", "One line is longer than any sentence.", "put one sentence or paragraph on each line."
    ),
    "text-marks": Code(
        "text",
        "No writing puts so many marks on one letter; the text is damaged, or made to keep a computer busy.",
        "remove the line.",
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
    "yaml-tag": Code(
        "config",
        "YAML tags such as !!int or !!python/object are not read: they can ask for any kind of value.",
        "write the plain value; put it in quotes if it is a text.",
    ),
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
    # ---- bases, by looking -------------------------------------------------------------------------------
    "base-several": Code(
        "bases",
        "Several files of the folder would do, and voxgraft never guesses which one is meant.",
        "move the others into another folder, or give the one that is meant its published name.",
    ),
    "base-turbo": Code(
        "bases",
        "Chatterbox Turbo and Chatterbox Nano are models of their own: a GPT-2 with another tokenizer (50,276 text rows), which speaks English only.",
        "use Chatterbox multilingual (t3_mtl23ls_v2.safetensors or t3_mtl23ls_v3.safetensors) or English (t3_cfg.safetensors), from ResembleAI/chatterbox.",
    ),
    "base-speech-parts": Code(
        "bases",
        "The folder holds parts that turn speech into codes or codes into speech, but not the language model, to which a language is taught.",
        "download the whole base: for Chatterbox the T3 file and its tokenizer too, for IndexTTS-2 gpt.pth, bpe.model and config.yaml.",
    ),
    "base-tokenizer-only": Code(
        "bases",
        "The folder holds a tokenizer and no model.",
        "put the checkpoint beside it. The verbs under `voxgraft tokenizer` need the tokenizer alone.",
    ),
    "base-adapter": Code(
        "bases",
        "A LoRA adapter is only a change to a model; by itself it is none.",
        "give the folder of the base that the adapter was made for.",
    ),
    "base-other-model": Code(
        "bases",
        "A model of another library. The bases that voxgraft knows come in formats of their own.",
        "give a folder of Chatterbox or IndexTTS-2 as their makers publish them.",
    ),
    "checkpoint-prefixed": Code(
        "bases",
        "The model was saved from inside a wrapper (DDP, torch.compile, a trainer's own class), which put its name before every tensor's.",
        "save it again without: state = {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}.",
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
        "Signs in the texts that are not the language's own (symbols, letters of other scripts, digits that the base lacks) have no piece. General symbols never become pieces.",
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
    # ---- the tiny family ---------------------------------------------------------------------------------
    "voice-unknown": Code(
        "bases",
        "Some bases speak with voices of their own, by name, and cannot take on another.",
        "choose one of the names.",
    ),
    "voices-broken": Code(
        "bases",
        "The table of speakers does not fit the model or the codec beside it, so that voices would be mixed up.",
        "use the files of one base together, as they were published.",
    ),
    "base-not-shipped": Code(
        "bases",
        "This installation came without the weights of the built-in base.",
        "install voxgraft with its data (voxgraft/assets/tiny), or make the base: recipes/tiny_base/README.md says how.",
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
    # ---- training ----------------------------------------------------------------------------------------
    "loss-not-finite": Code(
        "training",
        "Training on would fill the weights with NaN. The optimizer has not moved since the last whole step.",
        "look at the clips that are named (`voxgraft check`), leave them out, and go on; or lower the rates.",
    ),
    "resume-changed": Code(
        "training",
        "What was saved depends on these settings; going on with others would mean something else than it says.",
        "put the settings back (flags count for one time: give them again, or write them into run.yaml), or begin again with --fresh (saved steps are set aside, not removed).",
    ),
    "device": Code(
        "training",
        "The device is not there, or is none.",
        "leave it empty (--device, or train.device for `train`), or name another.",
    ),
    "step-parts": Code(
        "training",
        "The saved step holds other parts than the run now trains, so that it cannot be gone on from.",
        "go on with the settings that it was made with, or start anew with --fresh.",
    ),
    # ---- watching training -------------------------------------------------------------------------------
    "plateau": Code(
        "watching",
        "The loss on held-out recordings no longer falls though the rates are still up, and the model hardly reads: more steps alone will not help.",
        "look at the other findings and at the data; then try higher rates, a larger rank, or more recordings.",
        "warning",
    ),
    "no-gain": Code(
        "watching",
        "After the warm-up the loss on held-out recordings is where it was at the start, or where guessing would be: nothing is learnt that helps there.",
        "check that texts and recordings belong together and that held-out recordings are of the same language; then try higher rates.",
        "warning",
    ),
    "not-reading": Code(
        "watching",
        "With another sentence's text the model speaks as well as with the right one: it is not reading, however its loss falls.",
        "listen to some clips with their texts: they must say the same; check unknown tokens, the tokenizer and the new rows (`voxgraft check RUN`).",
        "warning",
    ),
    "other-texts": Code(
        "watching",
        "The text of held-out recordings is no easier to foresee than before training, though texts are learnt: held-out texts are spelled by another tokenizer, or are in another language.",
        "prepare training and held-out sets with the same tokenizer, from the same language.",
        "warning",
    ),
    "not-hearing": Code(
        "watching",
        "With another speaker's prompt the model speaks as well as with the right one: it does not use the voice.",
        "check that each clip names its speaker rightly, and that the voices of different speakers are different arrays.",
        "warning",
    ),
    "dead-rows": Code(
        "watching",
        "New rows occur in the texts that were learnt from and have never had a gradient: they stay what they were, and their letters are never learnt.",
        "nothing may freeze or mask the new rows; where nobody does, this is a bug of voxgraft: please report it.",
    ),
    "rows-unused": Code(
        "watching",
        "No clip has these letters or pieces, so that their rows are not learnt. A script is grafted whole, so that some of this is usual.",
        "none is needed, unless letters of the language are among them.",
        "note",
    ),
    "clips-other-tokenizer": Code(
        "watching",
        "The text ids are not what this run's tokenizer makes of the texts: training would teach every row another piece's sound. Equal sizes do not show this.",
        "make the set again with this run's tokenizer.",
    ),
    "prompt-is-target": Code(
        "watching",
        "The voice prompt is the very recording that is to be spoken, under another id: a model learns to copy it instead of reading.",
        "remove recordings that stand twice.",
        "warning",
    ),
    "sample-text": Code(
        "watching",
        "A sentence that is to be spoken on the way cannot be used.",
        "write it as LANGUAGE:TEXT, in the new language or one that the base speaks.",
    ),
    # ---- sequences ---------------------------------------------------------------------------------------
    "ids-outside": Code(
        "sequences",
        "A text id or speech code has no row in the model; on a GPU this ends in a device assert.",
        "prepare the data with this run's tokenizer and this base's speech tokenizer.",
    ),
    "ids-barred": Code(
        "sequences",
        "The stock program takes these ids out of every text, so their sound would be learnt from nothing.",
        "take them out of the tokenizer's output; no piece of a language may stand on them.",
    ),
    "ids-length": Code(
        "sequences",
        "The utterance is empty, or longer than the model has positions for.",
        "cut the clip or the text into shorter ones.",
    ),
    "ids-form": Code("sequences", "Ids and codes are whole numbers in a row.", "check where they come from."),
    "packing": Code("sequences", "These sequences do not make a batch.", "give as many of each, none of them empty."),
    "condition-form": Code(
        "sequences",
        "The voice, prompt or emotion that an utterance is conditioned on has not the form that the model reads.",
        "make the conditions with this family's own front end.",
    ),
    "sampling": Code("sequences", "A setting of how speech is drawn makes no sense.", "choose a value in the range."),
    # ---- IndexTTS-2's conditioning -----------------------------------------------------------------------
    "features-form": Code(
        "sequences",
        "The speech features of a clip are not what the base's encoders read: too few or too many frames, another width, or not finite.",
        "make them with this family's own front end, from a clip of ordinary length.",
    ),
    # ---- layers (continued) ------------------------------------------------------------------------------
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
    # ---- adapters ----------------------------------------------------------------------------------------
    "adapter-settings": Code(
        "layers",
        "With these numbers an adapter cannot be made.",
        "give layers, a rank of at least 1 (8 to 64 are usual) and an alpha above 0.",
    ),
    "adapter-layer": Code(
        "layers",
        "A layer that should get an adapter is not one that can have it without changing what the base computes.",
        "check the family's list of body layers against the model.",
    ),
    "adapter-present": Code(
        "layers",
        "The model has an adapter already, and a model holds one at a time.",
        "take it out or fold it in first (remove_adapter, merge_adapter), or load the values into the one that is there.",
    ),
    "adapter-missing": Code(
        "layers", "The model has no adapter.", "add one first (add_adapter), with the rank and layers of the graft."
    ),
    "adapter-mismatch": Code(
        "layers",
        "The adapter was made for other layers, sizes or another rank than the model has.",
        "use the base and the settings with which the adapter was made.",
    ),
    "adapter-variant": Code(
        "layers",
        "The adapter is of a kind that computes something else than voxgraft does; read as a plain one it would speak noise.",
        "make it as plain LoRA: one rank and alpha for all layers, no DoRA, no rank-stabilised scale, no trained biases or extra modules.",
    ),
    "adapter-broken": Code(
        "layers",
        "The adapter's files do not hold a whole low-rank adapter of finite numbers.",
        "export it again, or get the files from their maker again.",
    ),
    # ---- checkpoints -------------------------------------------------------------------------------------
    "checkpoint-unknown": Code(
        "checkpoints",
        "The file is neither safetensors nor a torch archive.",
        "check that this is the checkpoint itself; unpack it if it is an archive of another kind.",
    ),
    "checkpoint-truncated": Code(
        "checkpoints",
        "The file ends too early: a download or a copy was cut off.",
        "download or copy it again and compare the size with its source.",
    ),
    "checkpoint-changed": Code(
        "checkpoints",
        "Something else wrote to the file while it was being read, so what was read may not belong together.",
        "wait until the other program is done, and run it again.",
    ),
    "checkpoint-page": Code(
        "checkpoints",
        "A web page was saved under the name of a checkpoint: the server sent a login, a licence or an error page.",
        "open the address in a browser, accept the licence or log in, and download the file itself.",
    ),
    "checkpoint-lfs": Code(
        "checkpoints",
        "This is a note of three lines that stands for the file in a git repository, not the file.",
        "run `git lfs pull` in that repository, or download the file itself.",
    ),
    "checkpoint-tar": Code(
        "checkpoints",
        "A tar archive: very old torch files are tar archives, and so are packed folders.",
        "unpack it and name the checkpoint inside, or load it with the torch that wrote it and save it again.",
    ),
    "checkpoint-legacy": Code(
        "checkpoints",
        "torch wrote its files in another form before version 1.6. `diagnose` and `repair` read it without running it; other commands want a newer one.",
        "save it again: `voxgraft repair OLD --base BASE --output NEW.safetensors`.",
    ),
    "checkpoint-float64": Code(
        "checkpoints",
        "The checkpoint keeps its numbers as float64. `diagnose` and `repair` read it; other commands need float32, float16 or bfloat16.",
        "convert it: `voxgraft repair OLD --base BASE --output NEW.safetensors`.",
        "warning",
    ),
    "table-transposed": Code(
        "checkpoints",
        "A text table has its rows and columns exchanged: a conversion has transposed it. Its values are all there.",
        "transpose it back: `voxgraft repair OLD --base BASE --output NEW`.",
    ),
    "checkpoint-shards": Code(
        "checkpoints",
        "The model is kept in several files, and these are not all there or do not fit their index.",
        "copy or download the whole folder again.",
    ),
    "checkpoint-pickle": Code(
        "checkpoints",
        "A bare pickle can run any code when it is loaded, and has no tensors that could be read without that.",
        "get the checkpoint as safetensors or as a file written by torch.save.",
    ),
    "safetensors-header": Code(
        "checkpoints", "The header is not what safetensors has there; the file is damaged.", "download it again."
    ),
    "safetensors-duplicate": Code(
        "checkpoints",
        "The same name stands twice in the header, so it is unclear which tensor is meant.",
        "get the file from its maker again.",
    ),
    "safetensors-entry": Code(
        "checkpoints", "An entry of the header is not the description of a tensor.", "download the file again."
    ),
    "safetensors-metadata": Code(
        "checkpoints",
        "The notes in the header may hold texts only.",
        "write the file again with plain texts as metadata.",
    ),
    "safetensors-offsets": Code(
        "checkpoints",
        "The header does not give every byte of the file to exactly one tensor: the file is damaged or was made to mislead.",
        "download it again, from its maker.",
    ),
    "tensor-dtype": Code(
        "checkpoints",
        "The tensor has a number format that voxgraft does not read.",
        "get the checkpoint in float32, float16 or bfloat16.",
    ),
    "tensor-shape": Code(
        "checkpoints", "No tensor of a model has such a shape.", "check that this is the right file; download it again."
    ),
    "tensor-missing": Code(
        "checkpoints",
        "The checkpoint has no tensor of that name.",
        "check that the checkpoint and the family belong together.",
    ),
    "tensors-mismatch": Code(
        "checkpoints",
        "Tensors of the model are missing from the file, or have another shape there: it belongs to another model or size, or only a part of it was saved.",
        "use the file that the base was published with; where a file was grown, use the tokenizer and the graft that it was grown for.",
    ),
    "torch-archive": Code(
        "checkpoints",
        "The zip archive is damaged, lies about its records, or was not written by torch.save.",
        "download it again; if it is another kind of zip archive, unpack it.",
    ),
    "torch-compressed": Code(
        "checkpoints",
        "torch never compresses; somebody packed the file anew, and it can no longer be read in place.",
        "unpack and get the original, or: torch.save(torch.load(OLD, weights_only=True), NEW).",
    ),
    "torch-checksum": Code(
        "checkpoints",
        "Bytes of the archive are not the ones that were written: the disk or the download is at fault.",
        "download or copy it again.",
    ),
    "torch-pickle": Code(
        "checkpoints",
        "The part of the file that names the tensors is broken, too large, or made to mislead.",
        "download it again, from its maker.",
    ),
    "torch-contents": Code(
        "checkpoints",
        "The file is sound but does not hold a dictionary of tensors, for example because a whole model object was saved.",
        "save the model's state_dict() instead: torch.save(model.state_dict(), NEW).",
    ),
    "torch-tensor": Code(
        "checkpoints",
        "A tensor is described in a way that cannot be read in place, such as sparse or quantised.",
        "save the model again with ordinary tensors.",
    ),
    "torch-storage": Code(
        "checkpoints",
        "A tensor's values are missing from the archive or have another size than they should.",
        "download it again.",
    ),
    "growth-table": Code(
        "checkpoints",
        "The tensor or its new rows cannot be rows of one text table.",
        "check that the tensor is a text embedding, a text head or its bias, and that the rows have its width.",
    ),
    "growth-rows": Code(
        "checkpoints",
        "The table has another number of rows than the base's pieces and spare rows, so new rows would land on wrong ids.",
        "use the tokenizer that belongs to this checkpoint; a file that was grown before is not grown twice.",
    ),
    "growth-uneven": Code(
        "checkpoints",
        "Text embedding and text head would end up with different row counts; such a file cannot be loaded.",
        "make the same number of new rows for each.",
    ),
    "growth-not-finite": Code(
        "checkpoints",
        "A new row is NaN, infinite, or too large for the file's number format.",
        "make the rows again; look at the base's rows if it stays so.",
    ),
    "growth-view": Code(
        "checkpoints",
        "Another tensor is a window on a part of the table, and would be torn off it.",
        "save the model again so that each tensor has its own values (tensor.clone()).",
    ),
    "growth-tied": Code(
        "checkpoints",
        "Two names stand for the same table, so both must get the same new rows.",
        "give both the same rows, or save the model again with separate tables.",
    ),
    "growth-onto-input": Code(
        "checkpoints",
        "The output would replace its own input, and a base is never written to.",
        "choose another --output.",
    ),
    "disk-too-small": Code(
        "checkpoints",
        "The disk has less room than the output needs; nothing was written.",
        "free some space or choose a folder on another disk.",
    ),
    "rows-file": Code(
        "checkpoints",
        "The file with a graft's rows does not hold finite float32 rows.",
        "make the graft again with `voxgraft graft RUN`, or get the file from its maker again.",
    ),
    "text-other-script": Code(
        "text",
        "Hardly any of the letters are of a script in which the language is written: these are texts of another language, or the language code is wrong.",
        "check the texts and the language code; if the language is written so, add the script to its code, as in uz-Cyrl or sw-Arab.",
    ),
    "text-few": Code(
        "text",
        "So few sentences teach hardly any piece, and show little of the language's letters.",
        "give a few thousand sentences if you can.",
        "warning",
    ),
    "tag-taken": Code(
        "tokenizers",
        "The base has the language's tag as an ordinary piece, which is never matched whole.",
        "choose another language code.",
    ),
    "run-changed": Code(
        "check",
        "The graft was made with other settings than the run has now.",
        "run `voxgraft graft RUN` again, or put the settings back.",
        "warning",
    ),
    "output-suffix": Code(
        "rows",
        "The file keeps its format, and its name would promise another.",
        "give the output the ending of the input.",
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
        "rebuild the others: `voxgraft repair CHECKPOINT --base BASE --tokenizer FILE --output NEW`; or start from the base with `voxgraft extend`, which grows all of them.",
    ),
    "embedding-not-grown": Code(
        "rows",
        "The head has more rows than the embedding: the model can answer with new pieces and cannot read them.",
        "rebuild the embedding: `voxgraft repair CHECKPOINT --base BASE --tokenizer FILE --output NEW`; or start from the base with `voxgraft extend`, which grows all tables.",
    ),
    "bias-not-grown": Code(
        "rows",
        "The head has more rows than its bias, so that stock software cannot load the file.",
        "rebuild the bias: `voxgraft repair CHECKPOINT --base BASE --tokenizer FILE --output NEW`; rows of the embedding and of the head are kept.",
    ),
    "weights-not-finite": Code(
        "checkpoints",
        "The checkpoint holds NaN or infinite values. No published base does: its training diverged, or the file is damaged.",
        "download the base again, or use an earlier checkpoint; `voxgraft diagnose` says what can be saved.",
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
    # ---- audio -------------------------------------------------------------------------------------------
    "audio-shape": Code(
        "audio",
        "The waveform is not one channel of floating-point samples.",
        "mix the channels down to one, and divide 16-bit samples by 32768.",
    ),
    "audio-scale": Code(
        "audio",
        "The samples are far larger than any sound: they are 16-bit numbers that were never scaled.",
        "divide them by 32768.",
    ),
    "audio-not-finite": Code(
        "audio",
        "The waveform holds NaN or infinite samples: a damaged file, or a division by its own silence.",
        "read the recording again, or leave the clip out.",
    ),
    "audio-too-short": Code(
        "audio", "The clip is too short to be heard as speech.", "leave the clip out, or cut it longer."
    ),
    "audio-too-long": Code(
        "audio",
        "The clip is longer than the model was made for.",
        "cut it into sentences, for example along its subtitles.",
    ),
    "audio-silent": Code(
        "audio", "The clip holds no sound, so it has no voice.", "leave the clip out, or check how it was cut."
    ),
    "statistics-broken": Code(
        "audio",
        "The file with the mean and the variance of the features holds numbers that cannot be divided by.",
        "download the file again; it comes with the base.",
    ),
    "package-missing": Code(
        "audio",
        "This part of the work is done by an optional package.",
        "install voxgraft with the extra that is named.",
    ),
    # ---- clip sets and data order ------------------------------------------------------------------------
    "set-missing": Code(
        "data",
        "There is nothing to learn from, or to validate with, where the run looks for it.",
        "name sets that are there with data.train and data.valid; on an IndexTTS-2 base also the train_pairs.jsonl and val_pairs.jsonl of a fork. Recordings become sets with `voxgraft prepare RUN`.",
    ),
    "set-incomplete": Code(
        "data",
        "The folder has no set.json, which is written last: preparing it was stopped, or it is another folder.",
        "make the set again.",
    ),
    "set-format": Code(
        "data",
        "set.json is not what this version of voxgraft writes.",
        "make the set again; set.json is not meant to be edited by hand.",
    ),
    "set-damaged": Code(
        "data",
        "A file of the set is not the one that was written: cut off, changed or damaged.",
        "make the set again with `voxgraft prepare RUN`, or copy it again from where it is whole.",
    ),
    "set-stale": Code(
        "data",
        "The set was made with another tokenizer or other settings than the run has now; its ids would stand for other pieces.",
        "make the set again, or restore what changed.",
    ),
    "set-foreign": Code(
        "data",
        "The set was made for another base, family or language than this run's.",
        "give the set that was made for this run.",
    ),
    "set-empty": Code(
        "data", "There is no clip to learn from.", "look at what was left out, and give more recordings."
    ),
    "set-duplicate-ids": Code(
        "data",
        "Two clips have the same id; order, prompts and reports go by ids.",
        "give each clip an id of its own.",
    ),
    "clip-form": Code(
        "data",
        "A prepared clip holds something that a set cannot keep.",
        "prepare the clip with this family's own front end.",
    ),
    "clips-text-outside": Code(
        "data",
        "Texts hold ids for which the model has no row; on a GPU this ends in a device-side assert.",
        "prepare the set again with this run's tokenizer.",
    ),
    "clips-text-barred": Code(
        "data",
        "Texts hold ids that the stock program takes out of every text: training would see them, speaking never does.",
        "prepare the set again with a tokenizer that was grown from the base's.",
    ),
    "clips-text-unknown": Code(
        "data",
        "Part of the text is the unknown token: the model cannot see what is said there.",
        "give the tokenizer every letter of the language (`voxgraft graft RUN`), and prepare the set again.",
        "warning",
    ),
    "clips-codes-outside": Code(
        "data",
        "Speech codes that the model has no row for; on a GPU this ends in a device-side assert.",
        "prepare the set again with this base's own speech tokenizer.",
    ),
    "clips-too-long": Code(
        "data",
        "Clips are longer than the model has positions for; on a GPU this ends in a device-side assert.",
        "cut these clips into shorter ones, or leave them out.",
    ),
    "clips-no-content": Code("data", "Clips without text or without speech teach nothing.", "leave these clips out."),
    "clips-voice-broken": Code(
        "data",
        "The voice of some clips is not finite, empty or all zeros; one of them ends a run.",
        "prepare these clips again, or leave them out.",
    ),
    "clips-trailing-run": Code(
        "data",
        "Clips end in one and the same code for a second or more: padding of a batch, or a long silence. The model would learn to stop late.",
        "prepare the clips one by one, or cut the silence at their end.",
        "warning",
    ),
    "clips-seconds": Code(
        "data",
        "The number of codes does not agree with the length of the clip: padded codes, or the codes of another recording.",
        "prepare these clips again.",
        "warning",
    ),
    "stream-settings": Code(
        "data", "With these settings there is no order of the data.", "choose a value in the range."
    ),
    "stream-empty": Code(
        "data",
        "After all that had to be left out, a set has no clip to learn from.",
        "if they were left out as lone speakers and one person speaks them all, give the speaker: `data.speaker: NAME` in run.yaml, then `voxgraft go RUN --reimport`; else give more clips of each speaker, or allow longer clips.",
    ),
    "step-too-small": Code(
        "data",
        "A step holds fewer tokens than one clip, so that some steps would be empty.",
        "give more tokens a step, or leave the longest clips out.",
    ),
    "share-too-small": Code(
        "data",
        "The set's share of a step is less than its longest clip, so that some steps have none of it. Over many steps the share is right.",
        "give more tokens a step, or the set more weight, for an even mix in every step.",
        "note",
    ),
    "lone-speakers": Code(
        "data",
        "The voice prompt is always another clip of the same speaker, and these speakers have none: with its own voice a clip teaches copying.",
        "give more clips of these speakers, or name them alike if they are one person (`voxgraft data speakers DATASET --rename OLD=NEW`).",
        "warning",
    ),
    "speakers-one-clip": Code(
        "data",
        "Nearly every speaker has a single clip. The voice prompt is always another clip of the same speaker, so that such clips cannot be learnt from. Often the names are those of files and one person speaks them all.",
        "if one person speaks, give the name: `data.speaker: NAME` in run.yaml, then `voxgraft go RUN --reimport` (or `voxgraft data import ... --speaker NAME --reimport`); if folders are speakers, `data.speaker_from: folder`.",
        "warning",
    ),
    "short-prompts": Code(
        "data",
        "A voice is hardly heard in a short prompt; the longest that the speaker has is taken.",
        "give longer clips of these speakers.",
        "note",
    ),
    "clips-left-out": Code(
        "data",
        "Clips over the longest length that is set are not learnt from.",
        "cut them into shorter ones, or allow longer clips.",
        "warning",
    ),
    "pack-too-small": Code(
        "data",
        "The longest clip does not fit into a pack, and a clip is never cut.",
        "make packs larger, or leave the longest clips out.",
    ),
    "memory-too-small": Code(
        "training",
        "Weights, optimizer and a pass over a pack do not fit into the memory of the device.",
        "set a smaller `train.pack_tokens`, or `train.checkpointing: true`; train in gated mode; leave the longest clips out.",
    ),
    # ---- pairs of other trainers -------------------------------------------------------------------------
    "pairs-empty": Code("data", "The manifest has no lines.", "check that this is the right file."),
    "pairs-line": Code(
        "data", "A line of the manifest is not a pair of prompt and target.", "mend or remove the line."
    ),
    "pairs-single": Code(
        "data",
        "The manifest lists single utterances. Training needs pairs, with the voice of another clip: with its own a model learns to copy.",
        "give the manifest of pairs (train_pairs.jsonl).",
    ),
    "pairs-duplicate": Code(
        "data", "Two lines of the manifest have the same id.", "give each line an id of its own, or remove one."
    ),
    "pairs-language": Code(
        "data",
        "A set is in one language, which sets the gate, and the lines do not agree on it.",
        "split the manifest by language, and name each as MANIFEST::LANGUAGE.",
    ),
    "pairs-files": Code(
        "data",
        "Files that the manifest names are missing or cannot be read.",
        "copy the folders codes/, condition/ and emo_vec/ beside the manifest, or make the broken files again.",
    ),
    "array-broken": Code(
        "data",
        "A `.npy` file does not hold the plain numbers that it should.",
        "make the file again; files with Python objects are never read.",
    ),
    "pairs-padded": Code(
        "data",
        "The codes were stored at the length of the longest clip of a batch; what follows a clip is padding, and would teach a late stop. It was cut.",
        "none is needed.",
        "warning",
    ),
    "pairs-other-tokenizer": Code(
        "data",
        "The stored text ids are not what this run's tokenizer makes of the text; a tokenizer of the same size does not show it. They are not used.",
        "none is needed: the texts were spelled anew.",
        "warning",
    ),
    "pairs-old-ids": Code(
        "data", "Old text ids could not be compared with the text. They are not used.", "none is needed.", "note"
    ),
    "pairs-no-emotion": Code(
        "data",
        "With the prompt's emotion instead of the target's own, a model tends to lose emotion.",
        "write target_emo_vec_path into the lines, if the files are there.",
        "note",
    ),
    "pairs-prompt-is-target": Code(
        "data",
        "With a clip's own voice as the prompt a model learns to copy it.",
        "make pairs of different clips of a speaker.",
        "warning",
    ),
    "pairs-no-text": Code(
        "data",
        "Without the text, stored ids cannot be proven to be this tokenizer's.",
        "write target_text into the lines.",
        "warning",
    ),
    "pairs-too-long": Code(
        "data",
        "Longer utterances index past the position tables of the model; on a GPU this ends in a device-side assert.",
        "cut these recordings into shorter ones.",
        "warning",
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
    "text-rules": Code(
        "grafts",
        "Text must be normalised as in training: with other rules the model would be given tokens that it never learnt.",
        "install the version that the graft was made with, or make the graft again.",
    ),
    "text-rules-missing": Code(
        "grafts",
        "The graft was made before text rules were stored with it, so text is read as it is: digits and unusual marks are not normalised.",
        "run `voxgraft graft RUN` again to get text rules; a graft that is trained already must then be trained again.",
        "warning",
    ),
    "text-rules-import": Code(
        "data",
        "The clips were imported with other text rules than the graft has. Letters that one of them folds are not seen in training, or not in synthesis.",
        "import again with the same setting (`--fold-homophones`, run.yaml `tokenizer.fold_homophones`); `import` always normalises, so leave `tokenizer.normalise` true for its clips.",
        "warning",
    ),
    "text-digits": Code(
        "text",
        "voxgraft does not read these numbers in this language, so digits stay in the text: what is said for them is learnt badly or not at all.",
        "write them in words, as they are said.",
        "warning",
    ),
    "text-word-boundaries": Code(
        "text",
        "The original program splits these characters one by one, as it does Chinese, so that spaces between words are lost in training and in synthesis.",
        "nothing has to be done; expect pauses and stress to follow punctuation only. Punctuation marks are kept.",
        "warning",
    ),
    # ---- check -------------------------------------------------------------------------------------------
    "checkpoint-stand-in": Code(
        "check",
        "The file holds a small stand-in model (an encoder with a spectrogram decoder). Nothing of it but the text table comes from the base, so it spoke no language before the training either.",
        "train from the base itself; nothing in this file but its text rows could be kept.",
    ),
    "checkpoint-extras": Code(
        "check",
        "Beside the model's tensors the file holds other things, such as an optimizer state.",
        "none is needed: voxgraft reads the model's tensors and never takes an optimizer state from elsewhere.",
        "note",
    ),
    "pickle-code": Code(
        "check",
        "Loading this file with Python's own unpickler could run any program. voxgraft reads such files without running them.",
        "do not open it with torch.load(weights_only=False); ask where it came from, or save it anew with `voxgraft repair CHECKPOINT --base BASE --output NEW.safetensors`.",
    ),
    "moments-on-base-rows": Code(
        "check",
        "The optimizer keeps moments of the base's text rows. They move these rows at every step, also while their gradients are masked.",
        "in the old trainer start a fresh optimizer; in voxgraft no optimizer ever holds a base row.",
        "warning",
    ),
    "optimizer-restarted": Code(
        "check",
        "The optimizer is younger than the training: a resume threw its state away and kept the step, so that the schedule went on with moments of nothing.",
        "go on with the file as it is, or begin step, schedule and optimizer together anew.",
        "warning",
    ),
    "schedule-ended": Code(
        "check",
        "The schedule has come to its end: a resume would go on at almost no learning rate and learn nothing.",
        "train on with a new schedule, or take the checkpoint as finished.",
        "note",
    ),
    "config-vs-tokenizer": Code(
        "check",
        "The config builds a text table of another size than the tokenizer needs: ids past its end stop the program (a device-side assert on a GPU).",
        "write the tokenizer's number of pieces into the config. voxgraft itself reads sizes from the files and needs no such number.",
    ),
    "config-start-stop": Code(
        "check",
        "The config begins and ends texts with other ids than the model was trained with, so that it never meets the marks that it knows.",
        "take start_text_token and stop_text_token out of the config, or write the base's own numbers.",
    ),
    "prepared-codes-padded": Code(
        "check",
        "The codes were stored at the length of the longest clip of a batch: behind a short clip the model learns codes of nothing, and to stop too late.",
        "train with voxgraft, which cuts the padding from such data, or prepare one clip at a time.",
    ),
    "config-vs-rows": Code(
        "check",
        "The config builds a text table of another size than the checkpoint has, so the table cannot be loaded; trainers that go on regardless start from random rows.",
        "write the number that belongs to the checkpoint into the config, or grow the checkpoint with `voxgraft extend`.",
    ),
    "spare-row": Code(
        "check",
        "This family has one text row more than pieces; the last one is a spare that no text indexes. It is no mismatch.",
        "none is needed; keep the checkpoint, and its optimizer state if you resume with the old trainer.",
        "note",
    ),
    "spare-counted-twice": Code(
        "check",
        "The number of rows, which has the spare in it already, was taken for the number of pieces, and a second spare was added. The row too many is never read, but the sizes no longer fit together.",
        "state the number of pieces in the config, and take the row out: `voxgraft repair CHECKPOINT --base BASE --tokenizer FILE --output NEW`.",
    ),
    "spare-row-copied": Code(
        "check",
        "The base's spare row was trained only as the answer that is never right. A prefix copy puts it on the first new piece, which starts out suppressed.",
        "seat it again: `voxgraft repair CHECKPOINT --base BASE --tokenizer FILE --output NEW`; or grow the base with `voxgraft extend`, which keeps the spare last.",
    ),
    "base-rows-same": Code(
        "check", "Every text row of the base is in the checkpoint, bit for bit.", "none is needed.", "note"
    ),
    "base-rows-rounded": Code(
        "check",
        "The checkpoint keeps its numbers in a shorter format. Its base rows are the base's, rounded to that format.",
        "none is needed; start from the base's own file if you want the same bits.",
        "note",
    ),
    "base-rows-changed": Code(
        "check",
        "Text rows of the base were changed, so the languages that the base spoke are read differently now.",
        "put the base's rows back: `voxgraft repair CHECKPOINT --base BASE --output NEW`. New rows of this checkpoint stay.",
    ),
    "base-rows-shrunk": Code(
        "check",
        "All base rows shrank by one common factor: a gradient mask does not stop weight decay, which pulls masked rows towards zero at every step.",
        "put the base's rows back: `voxgraft repair CHECKPOINT --base BASE --output NEW`. In voxgraft no optimizer ever holds a base row.",
    ),
    "rows-shifted": Code(
        "check",
        "The base's rows are in the table, but on other ids: a row was put before them or taken away. New rows went with them.",
        "move them back: `voxgraft repair CHECKPOINT --base BASE --tokenizer FILE --output NEW`.",
    ),
    "rows-swapped": Code(
        "check",
        "Embedding and head hold each other's rows.",
        "swap them back: `voxgraft repair CHECKPOINT --base BASE --tokenizer FILE --output NEW`.",
    ),
    "rows-copied": Code(
        "check",
        "The embedding holds the rows of the head: its own rows, the new ones among them, are gone.",
        "go back to an earlier checkpoint or to the base.",
    ),
    "rows-scattered": Code(
        "check",
        "Base rows stand among the new ones, in no order that would show where the new rows belong.",
        "go back to an earlier checkpoint, or to the base; keep the base's ids when a tokenizer grows.",
    ),
    "new-rows-untrained": Code(
        "check",
        "The optimizer has never had a gradient for any new row: no text that was trained on used them.",
        "check that texts are spelled with the grown tokenizer (`voxgraft check`), and train again.",
    ),
    "new-rows-zero": Code(
        "check",
        "New rows that are all zero were never given a first value; pieces on them all look the same to the model.",
        "grow the base again with `voxgraft extend`, which starts each row from the base's own rows.",
        "warning",
    ),
    "new-rows-equal": Code(
        "check",
        "New rows that are copies of each other, bit for bit, were never trained apart: the model cannot tell their pieces apart yet.",
        "add a little noise at the start (`rows.noise`), and train on text in which these pieces occur.",
        "note",
    ),
    "new-rows-random": Code(
        "check",
        "The new rows share no direction, as independent random numbers do: they started from noise and have learnt little or nothing.",
        "start them from the base's own rows: `voxgraft extend --rows.init romanised`.",
        "note",
    ),
    "new-rows-scale": Code(
        "check",
        "The new rows are much longer than the base's, or their biases much larger, so that new pieces drown everything else in a sentence.",
        "grow the base again with `voxgraft extend`, which gives new rows the base's own scale.",
        "warning",
    ),
    "body-same": Code(
        "check",
        "Everything but the text tables is the base's own, and speech leaves through a head of its own: growing the text tables has not changed the base's speech by one bit.",
        "none is needed.",
        "note",
    ),
    "body-changed": Code(
        "check",
        "Tensors behind the text rows differ from the base's. Whatever happened to the text rows, the old languages may sound different now.",
        "listen to the old languages before you go on; gated training (`train.mode: gated`) never touches these tensors.",
        "warning",
    ),
    "body-rounded": Code(
        "check",
        "The checkpoint keeps its numbers in a shorter format. Everything but the text tables is the base's, rounded to that format.",
        "none is needed; start from the base's own file if you want the same bits.",
        "note",
    ),
    "body-not-finite": Code(
        "check",
        "Tensors behind the text rows hold NaN or infinite values: whatever passes through them is lost.",
        "take these values from the base: `voxgraft repair CHECKPOINT --base BASE --output NEW`; if most are so, go back to an earlier checkpoint.",
    ),
    "body-overflow": Code(
        "check",
        "The file is kept as fp16, which holds nothing above 65,504: larger values became infinite when it was saved. The training itself may be sound.",
        "export it again as bf16 or float32; or take these values from the base: `voxgraft repair CHECKPOINT --base BASE --output NEW`.",
    ),
    "speech-rows-lost": Code(
        "check",
        "Rows of the speech or position tables are all zero or hold something else than the base's. Without the row of the start no speech begins, without that of the stop none ends.",
        "take these rows from the base: `voxgraft repair CHECKPOINT --base BASE --output NEW`. All others stay.",
    ),
    "body-form": Code(
        "check",
        "Tensors behind the text rows have another shape or another kind of number than the base's: no program can load them as this model, and nothing can be said of what they learnt.",
        "take them from the base: `voxgraft repair CHECKPOINT --base BASE --output NEW`. If most are so, this is another model.",
    ),
    "body-lost": Code(
        "check",
        "Tensors behind the text rows moved farther than any training moves them, or hold nothing but zeros: they were damaged, written anew or never loaded.",
        "take them from the base: `voxgraft repair CHECKPOINT --base BASE --output NEW`.",
    ),
    "body-missing": Code(
        "check",
        "The checkpoint lacks tensors that the base has. Stock loaders pass over that in silence and leave those parts random.",
        "use a whole checkpoint, or take what is missing from the base: `voxgraft repair CHECKPOINT --base BASE --output NEW`.",
    ),
    "special-ids-moved": Code(
        "check",
        "Start, stop, unknown and the like must stay on the ids that the model was trained with.",
        "make the tokenizer with `voxgraft tokenizer merge`, which only appends; a tokenizer trained afresh numbers everything anew.",
    ),
    "piece-on-deleted-id": Code(
        "check",
        "The stock program deletes this id from every text before it speaks, so whatever has it is never heard.",
        "make the tokenizer with `voxgraft tokenizer merge`, which appends behind the base's pieces.",
    ),
    "text-share": Code(
        "check",
        "Where the tokens of your text fall: on new rows, on rows of the base, or on unknown.",
        "none is needed.",
        "note",
    ),
    "text-spelled": Code("check", "A sentence of your text, piece by piece.", "none is needed.", "note"),
    "text-off-new-rows": Code(
        "check",
        "Your text never uses a new row, so training on it would teach the new rows nothing.",
        "check that texts and tokenizer are of the same language.",
        "warning",
    ),
    "npy-broken": Code(
        "check",
        "A file of ids is not a plain list of whole numbers in NumPy's format.",
        "make the prepared data again; files with Python objects are never read.",
    ),
    "prepared-empty": Code(
        "check",
        "The folder of prepared data holds no text ids.",
        "give the folder in which `text_ids/` stands.",
    ),
    "prepared-ids-outside": Code(
        "check",
        "The prepared text holds ids for which there is no row; on a GPU this ends in a device-side assert.",
        "spell the texts again with the tokenizer that belongs to the checkpoint; the speech codes can stay.",
    ),
    "prepared-ids-deleted": Code(
        "check",
        "The prepared text holds ids that mean start or stop and that the stock program deletes: training sees them, speaking never does. A tokenizer whose unknown is one of these ids writes them.",
        "spell the texts again with a tokenizer that was grown from the base's.",
    ),
    "prepared-ids-unknown": Code(
        "check",
        "Part of the prepared text is the unknown token: the model cannot see what is said there.",
        "spell the texts again with a tokenizer that has every letter (`voxgraft tokenizer train`, then `merge`).",
        "warning",
    ),
    "prepared-other-tokenizer": Code(
        "check",
        "The prepared ids are not what this tokenizer makes of the same text, so training would move the wrong rows. Equal sizes do not show this.",
        "spell the texts again with this tokenizer, or give the tokenizer that the data was prepared with.",
    ),
    "freeze-boundary": Code(
        "check",
        "The freeze boundary is not the base's number of pieces: base rows above it are trained, or new rows below it are not.",
        "set it to the base's number of pieces if you use the old trainer. voxgraft needs no boundary: base rows are never in the optimizer.",
    ),
    "freeze-off": Code(
        "check",
        "The config trains the base's own text rows together with the new ones, on the new language alone.",
        "use voxgraft, in which base rows cannot be trained.",
    ),
    "freeze-leaks": Code(
        "check",
        "The freeze is a mask on the gradient. Weight decay and momentum pass it, and everything behind the text rows trains at the full rate.",
        "set the weight decay to 0 if you use the old trainer. In voxgraft no optimizer ever holds a base row.",
        "warning",
    ),
    "freeze-needless": Code(
        "check",
        "The freeze boundary is the base's number of pieces. voxgraft needs none: base rows are never in the optimizer.",
        "leave it out.",
        "note",
    ),
    "rate-out-of-range": Code(
        "check",
        "The learning rate lies outside what makes sense for this part of the model: too low learns nothing, too high destroys what is there.",
        "choose a rate inside the range that is named.",
        "warning",
    ),
    "rate-as-text": Code(
        "check",
        "YAML reads 1e-5 as a text, not as a number; some trainers stop at it, others compare it wrongly.",
        "write it with a point: 1.0e-5.",
        "note",
    ),
    "base-other": Code(
        "check",
        "The base folder is not the one from which this run was made: rows, ids and promises hold for that one only.",
        "give the base that the run was made from, or make the graft again with `voxgraft graft RUN`.",
    ),
    "texts-changed": Code(
        "check",
        "Texts changed after the graft was made, so its tokenizer may lack pieces or characters for them.",
        "run `voxgraft graft RUN` again if the change matters.",
        "warning",
    ),
    "graft-missing": Code(
        "check", "The run has no graft yet, so there is nothing to train.", "make it with `voxgraft graft RUN`."
    ),
    "graft-other-tokenizer": Code(
        "check",
        "The tokenizer that the settings name is not the one in the graft.",
        "run `voxgraft graft RUN` again, or take the setting out.",
    ),
    # ---- runs --------------------------------------------------------------------------------------------
    "run-path": Code(
        "runs",
        "A path holds signs that cannot be written into a run.yaml and read back: a line break, a control sign, a name in another encoding.",
        "rename the file or folder.",
    ),
    "run-incomplete": Code(
        "runs",
        "The run is made, but a graft needs these settings too.",
        "write them into run.yaml, or give them as flags to `voxgraft graft`.",
        "note",
    ),
    "language-unlisted": Code(
        "runs",
        "CLDR, from which a language's letters are known, has no entry for this code. Letters are then taken from the texts alone.",
        "check the code (ISO 639: am, ti, km ...); if it is right, give texts that hold every letter.",
        "warning",
    ),
    "language-spoken": Code(
        "runs",
        "The base speaks this language already, with rows of its own. A graft would add little, and may speak it worse.",
        "check the code; go on if you want another voice or dialect of it.",
        "warning",
    ),
    "old-unknown": Code(
        "runs",
        "The file given with --from is nothing that voxgraft can take settings from.",
        "give the YAML config, or a text with the command line, of the trainer that you come from.",
    ),
    "old-command": Code(
        "runs",
        "A command line in the old file cannot be split into words.",
        "mend the quotes on that line, or give a file with the command alone.",
    ),
    "old-not-read": Code(
        "runs",
        "The old file holds more that looks like settings, which was left alone.",
        "give that file, or that block in a file of its own, with --from if it matters.",
        "note",
    ),
    "old-keys-unknown": Code(
        "runs",
        "Keys that the old trainer does not have either; it ignored them, or they belong elsewhere.",
        "see the table; a key that matters must be set in run.yaml by hand.",
        "warning",
    ),
    "old-base-size": Code(
        "runs",
        "The old settings took the base for smaller or larger than it is, so what was made with them does not fit it.",
        "make the tokenizer and the rows anew with `voxgraft graft RUN`.",
        "warning",
    ),
    "old-other-family": Code(
        "runs",
        "The old settings were made for another kind of model; rates and weights need not carry over.",
        "look through the values in run.yaml.",
        "warning",
    ),
    "old-tokenizer": Code(
        "runs",
        "A tokenizer that another project made is not taken unproven: most of them change how old text reads, or lack letters.",
        "leave it out, and `voxgraft graft RUN` learns one; or judge it with `voxgraft tokenizer prove`.",
        "warning",
    ),
    # ---- run folder, journal, saved steps ----------------------------------------------------------------
    "run-locked": Code(
        "runs",
        "One process at a time may change a run, and another one is at it.",
        "wait until it ends, or stop it; a process that is dead holds nothing.",
    ),
    "run-lock-unsupported": Code(
        "runs",
        "The file system cannot lock files, so two trainers could write into one run.",
        "put the run on a local disk, or mount this one with locks (flock).",
    ),
    "journal-broken": Code(
        "runs",
        "A line in the middle of journal.jsonl is not what voxgraft wrote. Only its end can be torn, and that is mended without a word.",
        "undo the edit, or remove the line; the saved steps do not depend on it.",
    ),
    "step-missing": Code(
        "runs", "The run has no such saved step.", "choose one that is there, or train from the start."
    ),
    "step-damaged": Code(
        "runs",
        "A saved step is not whole: a file is missing, cut off or changed since it was written. The last whole one before it is used.",
        "nothing has to be done; if it happens again, look after the disk. `voxgraft clean RUN` removes old damaged steps.",
        "warning",
    ),
    "step-newer": Code(
        "runs",
        "The saved step was made by a newer voxgraft, in a form that this one does not know.",
        "update voxgraft, or go on with the version that made it.",
    ),
    "step-older": Code(
        "runs",
        "The saved step was made by an old voxgraft, in a form that this one can no longer turn into its own.",
        "go on with the version that made it (state.json names it), or start anew from its rows.",
    ),
    "step-unverified": Code(
        "runs",
        "A step was written and read back, and the two differ: the disk or the memory is failing. Earlier steps were not touched.",
        "copy the run to another disk before you go on.",
    ),
    "step-left": Code(
        "runs",
        "An old step, or a remainder of one, could not be removed. It takes room and does no other harm.",
        "check permissions, or remove it with `voxgraft clean RUN`.",
        "warning",
    ),
    # ---- merged mode: replay and retention ---------------------------------------------------------------
    "self-replay": Code(
        "training",
        "Replay that the base made itself: sentences of its own languages, spoken in the voices of the run's clips.",
        "nothing has to be done; if many were left out, give better sentences with data.replay_texts.",
        "note",
    ),
    "self-replay-runaway": Code(
        "training",
        "The base does not end what it begins to say, so it cannot make its own replay.",
        "give recordings of base languages as data.replay, or go without replay: data.self_replay: 0.",
    ),
    "replay-text-language": Code(
        "training",
        "A text for replay is spelled by the base as a text of its language, which the name of the file must say.",
        "name the file after the language: en.txt, fr.txt.",
    ),
    "replay-texts-empty": Code(
        "training",
        "Not one sentence of the texts for replay can be spelled by the base without unknown tokens.",
        "check the texts and the languages that they are named after.",
    ),
    "replay-language": Code(
        "training",
        "A set that is given as replay, or to measure base languages with, is of the new language itself.",
        "give sets of base languages; a pair manifest says its language as in pairs.jsonl::en.",
    ),
    "replay-missing": Code(
        "training",
        "Merged mode without replay: nothing holds the model to the languages that it speaks.",
        "give data.replay, or let the base make its own (leave data.self_replay empty).",
        "warning",
    ),
    "retention-unmeasured": Code(
        "training",
        "What merged training costs the base languages is not measured, so the bound on it cannot stop the run.",
        "give data.replay_valid, or let the base make its own replay (leave data.self_replay empty).",
        "warning",
    ),
    "retention-bound": Code(
        "training",
        "Base languages have lost more than the bound allows. Training stops, and no step past the bound is taken.",
        "train with a lower rate, more replay (data.replay_share) or a larger train.kl_weight; or allow more: "
        "train.retention_bound.",
        "warning",
    ),
    "point-past-bound": Code(
        "training",
        "Even the point nearest to the base costs base languages more than the bound allows.",
        "use the graft with its gate, which costs them nothing; or train again with a lower rate or more replay.",
        "warning",
    ),
    "merged-broken": Code(
        "runs",
        "The folder of the merged model lacks a file, or one that is there is not the one that was written.",
        "run `voxgraft train RUN` again: a training that is done writes it anew.",
    ),
    "merged-stale": Code(
        "runs",
        "The folder with the merged checkpoint is older than the last training of the run, which was stopped before it wrote one.",
        "let it come to its end: `voxgraft train RUN`. To take the older one all the same, say so: --which merged, or as-in-the-seeds.",
    ),
    "merged-missing": Code(
        "runs",
        "The last training of the run was to leave a checkpoint of its own, and did not get that far.",
        "let it finish with `voxgraft train RUN`; or say what to take: --which graft, or a saved step with --step.",
    ),
    # ---- the tiny codec and listening --------------------------------------------------------------------
    "codes-outside": Code(
        "audio",
        "A speech code that the codec does not have, so there is no sound for it.",
        "decode what the model drew as speech only: without start, stop and padding.",
    ),
    "codec-notes": Code(
        "audio",
        "The file does not say what a codec's or a listener's file says of itself: its format and its sizes.",
        "restore the file; it ships with voxgraft.",
    ),
    "listener-unknown": Code(
        "evaluation",
        "There is no way of listening by that name.",
        'use "built-in", "whisper:FOLDER", "whisper:small" or "command:PROGRAM ARGUMENTS {wav}".',
    ),
    "listener-language": Code(
        "evaluation",
        "The listener was never taught that language, and would write it down as another.",
        "choose another listener: whisper:FOLDER, or command:PROGRAM {wav}.",
    ),
    "listener-model": Code(
        "evaluation",
        "The folder holds no model that the listener can be made of.",
        "give the folder of a model that was converted for faster-whisper (with model.bin in it).",
    ),
    "listener-rate": Code(
        "evaluation",
        "The listener itself takes speech at one sample rate only; `evaluate` gives it any other at that one.",
        "give the speech at the rate that is named.",
    ),
    "listener-failed": Code(
        "evaluation",
        "The program that was to listen did not start, ended with an error, or printed something that is no text.",
        "run the command by hand on one wav file; it must print what it heard, as UTF-8, and end with 0.",
    ),
    # ---- evaluating --------------------------------------------------------------------------------------
    "sentences-name": Code(
        "evaluating",
        "A file of sentences says by its name which language they are in, and a language has one such file.",
        "name the file after the language: am.txt with a sentence on each line, or am.tsv with columns.",
    ),
    "sentences-language": Code(
        "evaluating",
        "Sentences are given in a language that nobody here is to speak.",
        "give sentences of the new language or of languages of the base.",
    ),
    "sentences-columns": Code(
        "evaluating",
        "A table of sentences begins with the names of its columns: text, and if you like rare (words that no training "
        "has heard) and phones (with spaces between).",
        "put the names into the first line, with tabs between them, and no more cells in a line than there are names.",
    ),
    "sentences-missing": Code(
        "evaluating",
        "Evaluation has nothing to say: no --sentences, no held-out texts of the data set, no built-in sentences (am, en, fr).",
        "split the data set so that it has test clips, or give 50 or more sentences that no training has seen, one per line.",
    ),
    "evaluate-language": Code(
        "evaluating",
        "Which language is new, or which old ones are to be spoken, is not said or does not fit the base.",
        "name it with --language or --languages.",
    ),
    "evaluate-voice": Code(
        "evaluating",
        "Sentences are spoken in somebody's voice, and there is none to take.",
        "give a recording or, for a base with voices of its own, a name: --voices VOICE.wav.",
    ),
    "wav-form": Code(
        "evaluating",
        "The file is not a WAV file that can be read here: whole numbers of 8 to 32 bits, not compressed.",
        "convert it, for example with `ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le NEW.wav`.",
    ),
    "recordings-missing": Code(
        "evaluating",
        "The listener's own error is measured on recordings with their texts, and a part of those is not there.",
        "put NAME.txt with what is said beside every NAME.wav.",
    ),
    "scores-format": Code(
        "evaluating",
        "The file is not a scores.json that this version of voxgraft can read.",
        "make it anew with `voxgraft evaluate`.",
    ),
    "compare-nothing": Code(
        "evaluating",
        "No measure was taken in all of these evaluations, so they cannot stand in one picture.",
        "evaluate them with the same listener, or choose another --measure.",
    ),
    # ---- speaking ----------------------------------------------------------------------------------------
    "speak-nothing": Code(
        "speaking",
        "There is no text to say, or a text holds neither a letter nor a digit.",
        "give a text, or a file with --file (- is standard input).",
    ),
    "speak-table": Code(
        "speaking",
        "The table of utterances is not one that can be read.",
        "begin it with the names of its columns, with tabs between: text, and if you like language, voice and name.",
    ),
    "speak-language": Code(
        "speaking",
        "The language chooses how a text is spelled and whether an adapter acts, so it is never guessed.",
        "name one of the languages with --language, or give the graft that speaks it.",
    ),
    "speak-grafts": Code(
        "speaking",
        "These grafts cannot stand beside each other: they are for the same language, or for different kinds of base.",
        "give one graft for each language, all made on one base.",
    ),
    "speak-voice": Code(
        "speaking",
        "Speech is in somebody's voice, and there is none to take.",
        "give a recording of a few seconds: --voice VOICE.wav.",
    ),
    "speak-output": Code(
        "speaking",
        "What is asked for cannot go into a file of that name.",
        "name the output as it is expected.",
    ),
    "manner-unknown": Code(
        "speaking",
        "The family has no such manner of speaking: exaggeration is Chatterbox's, emotion IndexTTS-2's.",
        "leave it out, or speak with a base of the other family.",
    ),
    "no-waveform-end": Code(
        "speaking",
        "This family's codes make no sound here: its waveform end is a program of its own, or a file of it is missing.",
        "Chatterbox: run `voxgraft companion chatterbox` once, and see that s3gen.pt lies beside the checkpoint. Else add --codes FILE.json.",
    ),
    "speak-other-script": Code(
        "speaking",
        "The text is written in another script than its language is. It is said all the same, but may not be understood.",
        "check --language; words in other scripts inside a text are fine.",
        "warning",
    ),
    "speak-unknown-letters": Code(
        "speaking",
        "The tokenizer of the language has no piece for some characters of the text, so that they are not read.",
        "spell them out in letters of the language, or check --language.",
        "warning",
    ),
    "speak-cut": Code(
        "speaking",
        "The speech did not come to its end by itself: it ran into its limit, or went round in a loop, and was cut there.",
        "try another --seed, a little more --temperature or shorter sentences; a model that was trained too little does this often.",
        "warning",
    ),
    # ---- seeing a run ------------------------------------------------------------------------------------
    "tensorboard": Code(
        "runs",
        "The event files for TensorBoard could not be written. Training goes on, and the journal has everything.",
        "check permissions and the disk; the files are made anew from the journal when training goes on.",
        "warning",
    ),
    "plot-nothing": Code(
        "runs",
        "The run's journal holds no losses yet, so there is nothing to draw.",
        "train it first: `voxgraft train RUN`.",
    ),
    # ---- what a run learns from, and who trains it -------------------------------------------------------
    "set-role": Code(
        "data",
        "The set was made for another use: what was made to be held out shall not be learnt from, and what protects base languages teaches no new one.",
        "name it where it belongs (data.train, data.valid, data.replay), or give another set.",
    ),
    "set-not-held-out": Code(
        "data",
        "The same clips are learnt from and held out. A loss on what was learnt from says nothing about what was not.",
        "give data.valid recordings that are not in data.train.",
    ),
    "clips-not-held-out": Code(
        "data",
        "Held-out clips are also in a training set: the same codes, or the same text and length of the same recording. A loss on what was learnt from says nothing about what was not.",
        "take these clips out of one of the sets (`voxgraft data split` holds out whole recordings), then prepare again; `data.allow_overlap: true` trains all the same.",
    ),
    "texts-not-held-out": Code(
        "data",
        "Held-out clips say a text that another clip says in training. The model has learnt to read it, so that the held-out loss looks a little better than it is.",
        "hold out recordings whose texts are not said elsewhere, if there are any.",
        "note",
    ),
    "warmup-too-long": Code(
        "training",
        "The rates rise over the whole run and never reach their height, so that little is learnt.",
        "give a smaller train.warmup_steps, or more steps; a tenth of the steps is a usual warm-up.",
        "warning",
    ),
    "steps-gone": Code(
        "runs",
        "The run was trained before, and none of its saved steps is there. What to begin with is not guessed.",
        "put the folder steps/ back, or begin again with --fresh.",
    ),
    "process-failed": Code(
        "training",
        "One of the processes that train together has met an error, and the others cannot go on without it.",
        "mend what is named; the same command then goes on from the last saved step.",
    ),
    "process-lost": Code(
        "training",
        "A process that trains with this one is gone and did not say why: killed, out of memory, or its machine or the network is down.",
        "look at what torchrun says of it (its exit code, -9 is often memory); the same command goes on from the last saved step.",
    ),
    "processes-differ": Code(
        "training",
        "Processes that train together must see the same run with the same settings and versions; else they would learn different things.",
        "put the run, its data and the base where all machines see them, and give the same command and versions everywhere.",
    ),
    "processes-diverged": Code(
        "training",
        "Processes that train together no longer hold the same weights or optimizer state. Nothing was saved since they last agreed.",
        "start again from the last saved step with the same command; if it happens again, train with one process, or on devices of one kind with the same driver and versions.",
    ),
    # ---- giving the result back --------------------------------------------------------------------------
    "export-subject": Code(
        "exporting",
        "What shall be exported is neither a run nor a graft.",
        "name the folder of a run, or the folder graft of one.",
    ),
    "export-kind": Code(
        "exporting",
        "This kind of export cannot be made of this graft.",
        "choose one that is named; docs/exporting.md has a table of who wants which.",
    ),
    "export-seeds": Code(
        "exporting",
        "A training as in the seeds is for comparison: it has changed rows and body of the base, and nothing bounds what was lost.",
        "train the run in gated or merged mode, and export that.",
    ),
    "export-differs": Code(
        "exporting",
        "The checkpoint that was written is not the base with the graft in it. Nothing of the export was kept.",
        "run `voxgraft check` on the run; if it finds nothing, this is a bug in voxgraft: please report it.",
    ),
    "speak-untrained": Code(
        "speaking",
        "The rows are the first ones, made of the base's own: what is spoken says nothing about the language yet.",
        "train the run first: `voxgraft go RUN` or `voxgraft train RUN`.",
        "warning",
    ),
    "export-untrained": Code(
        "exporting",
        "The rows are the first ones, made of the base's own: the export loads, and speaks no word of the language.",
        "train the run first: `voxgraft train RUN`.",
        "warning",
    ),
    "export-part-missing": Code(
        "exporting",
        "The stock program reads files that the base folder does not have, so that the export is not complete.",
        "put them beside the base's checkpoint and export again; `voxgraft show BASE` says where they come from.",
        "warning",
    ),
    "terms-not-stated": Code(
        "exporting",
        "Whoever gets the export would not know under which terms it may be used.",
        "state them when you export: --data-licence, --consent and --accept-terms.",
        "warning",
    ),
    "terms-broken": Code(
        "exporting", "The file with the terms is not as `export` writes it.", "export again, and leave it as it is."
    ),
    "drop-in-family": Code(
        "exporting",
        "Only a tokenizer whose ids can be given to other pieces can be dropped in.",
        "export without --drop-in.",
    ),
    "drop-in-no-room": Code(
        "exporting",
        "A drop-in folder has the base's own number of rows, and the language has more pieces than it can spare.",
        "make the graft with fewer pieces (--tokenizer.pieces), or export without --drop-in.",
    ),
    "drop-in-moved": Code(
        "exporting",
        "With reused ids a text of the new language would be spelled otherwise than it was learnt.",
        "export without --drop-in; if the text is ordinary text of the language, please report it.",
    ),
    "share-nothing": Code(
        "exporting",
        "The folder holds nothing that is shared: a run is too large and too private for that.",
        "make the folder with `voxgraft export RUN --to graft`.",
    ),
    "share-broken": Code(
        "exporting",
        "Files of the folder are not those that its card names: something was lost or changed on the way.",
        "fetch it again, or export it again.",
    ),
    "share-other-files": Code(
        "exporting",
        "The folder holds files that are no part of a graft or an adapter: programs, hooks, other weights. They are neither sent nor kept.",
        "none is needed; put what others should read into README.md.",
        "warning",
    ),
    "share-program": Code(
        "exporting",
        "The export holds Python that runs with your rights when you use it. Hashes show that it came whole, not who wrote it.",
        "read it before you run it, as any program of somebody else: it is a few lines.",
        "warning",
    ),
    "zip-broken": Code(
        "exporting",
        "The zip file is damaged, or holds what no zip file of ours holds. Nothing of it was kept.",
        "fetch it again from whoever packed it; do not unpack it by hand.",
    ),
    "push-terms": Code(
        "exporting",
        "Nothing is published without its terms: what the base passes on, the licence of the data, the speakers' consent.",
        "export again with --data-licence, --consent and --accept-terms, and push that.",
    ),
    "hub-name": Code(
        "exporting",
        "The name is neither that of a zip file nor that of a repository.",
        "write NAME.zip, or OWNER/NAME.",
    ),
    "hub-missing": Code(
        "exporting",
        "Hubs are reached through the package huggingface_hub, which is not installed.",
        "pip install huggingface_hub; or use a zip file instead.",
    ),
    "hub-unreachable": Code(
        "exporting",
        "The hub could not be reached: no network, a proxy in between, or the hub is down.",
        "try again where there is a network; without one use a zip file, or put files in place by hand.",
    ),
    "hub-refused": Code(
        "exporting",
        "The hub was reached and said no: no such repository, or no right to it.",
        "check the name; sign in with `hf auth login`, and accept the repository's terms on its page.",
    ),
    # ---- diagnosing and repairing ------------------------------------------------------------------------
    "nothing-to-hear": Code(
        "repair",
        "Nothing can be listened to: the family has no waveform end here, or nobody who listens.",
        "choose a point yourself (`--body 0.5`), or listen to the file with the stock program.",
    ),
    "head-missing": Code(
        "repair",
        "The head that tells which text comes next, or its bias, is not in the file. What the embedding has learnt is not touched by that.",
        "make it from the base's: `voxgraft repair CHECKPOINT --base BASE --output NEW`.",
    ),
    "checkpoint-part": Code(
        "repair",
        "This is a part of what voxgraft made: a graft or a saved step has new rows and an adapter, and no model.",
        "look at the run that it belongs to: `voxgraft diagnose RUN`. A graft is looked at whenever it is used: `voxgraft speak TEXT --base BASE --graft GRAFT`.",
    ),
    "checkpoint-low-rank": Code(
        "repair",
        "What was learnt stands in low-rank factors (LoRA) that are kept apart from the model, or beside its matrices. Nothing can be said of it before they are multiplied into them, and stock loaders pass over them.",
        "merge them with the program that trained them (PEFT: `model.merge_and_unload()`), save the model's state_dict(), and diagnose that.",
    ),
    "repair-by-hand": Code(
        "repair",
        "What is wrong is not in what `voxgraft repair` can put right: it is put right by hand, or by another command.",
        "do what `voxgraft diagnose` says.",
    ),
    "base-not-finite": Code(
        "repair",
        "The base itself holds values that are not finite, so that nothing can be measured by it. No published base does.",
        "download the base again, and compare its SHA-256 with the published one.",
    ),
    "repair-hopeless": Code(
        "repair",
        "The checkpoint is not one that a repair can bring back.",
        "start from the base; `voxgraft diagnose` tells why. What you want repaired all the same, name with --only.",
    ),
    "repair-needless": Code(
        "repair",
        "There is nothing to repair, and nothing was asked for.",
        "use the checkpoint as it is; name what you want with --only or --body, or give the output another format.",
    ),
    "repair-misfit": Code(
        "repair",
        "The text tables do not have the form that this repair needs.",
        "check that base, checkpoint and tokenizer belong together: `voxgraft diagnose`.",
    ),
    "repair-differs": Code(
        "repair",
        "The repaired file, read back, is not what was to be written. It was removed.",
        "check the disk, and run it again.",
    ),
    # ---- companions --------------------------------------------------------------------------------------
    "companion-install": Code(
        "companions",
        "A step of making the environment failed. It is not used; the next try begins again.",
        "read the log; without a network give pip another source with --pip-flags, or --environment for one that is there.",
    ),
    "companion-broken": Code(
        "companions",
        "The environment is there and its worker does not answer as ours do.",
        "make it again: `voxgraft companion NAME --anew`.",
    ),
    "companion-failed": Code(
        "companions",
        "The stock program met an error of its own. Its worker goes on, and the next question may be answered.",
        "read what it says; files of the base that are damaged or of another release are the usual cause.",
    ),
    "companion-died": Code(
        "companions",
        "The worker of a stock program ended in the middle of its work: killed, out of memory, or crashed.",
        "try again: the next call starts another one. SIGKILL is often memory: close other programs, or use --device cpu.",
    ),
    "companion-hung": Code(
        "companions",
        "The worker of a stock program gave no answer in time. It was ended, with all that it had started.",
        "try again: the next call starts another one. If it hangs each time, speak shorter texts, or use --device cpu.",
    ),
    "companion-voice": Code(
        "companions",
        "The waveform end takes the sound of the voice from a recording, and there is none.",
        "give one with --voice FILE.wav, or put the base's conds.pt beside its checkpoint.",
    ),
    # ---- published bases ---------------------------------------------------------------------------------
    "download-missing": Code(
        "bases",
        "The repository was reached and does not hold a file that the base needs: it was moved or renamed.",
        "look at the repository's page, put the file in place by hand, and run the command again for the rest.",
    ),
    "download-hash": Code(
        "bases",
        "A file is not the one that the repository holds: it was damaged on the way, or changed since.",
        "remove that file and run the command again: only it is fetched.",
    ),
    # ---- the demonstration -------------------------------------------------------------------------------
    "demo-codec": Code(
        "bases",
        "The speech that ships for the demonstration is codes of one codec, and the built-in base has another now.",
        "install voxgraft again; who has made the base anew makes the speech anew with recipes/tiny_base/demo_set.py.",
    ),
    # ---- importing recordings: manifests, subtitles, media, datasets ---------------------------------------
    "manifest-unknown": Code(
        "data",
        "The first line of a manifest says that it is one, and of which version. This file may be another program's.",
        "bring it in with `voxgraft data import DATASET FILE`, or name a dataset's own manifest.jsonl.",
    ),
    "manifest-version": Code(
        "data",
        "The manifest was written by another version of voxgraft.",
        "use that version, or import the data again.",
    ),
    "manifest-line": Code(
        "data", "A line of the manifest is not a clip.", "mend or remove the line; docs/data.md has every field."
    ),
    "manifest-double-id": Code(
        "data", "Two clips of the manifest have one id.", "give each clip an id of its own, or remove one of the lines."
    ),
    "subtitle-time": Code(
        "data",
        "A time of a subtitle cannot be read, or the subtitle ends before it begins. Its text was left out.",
        "mend the line; times look like 00:01:02,500 --> 00:01:04,000.",
        "warning",
    ),
    "subtitle-stray": Code(
        "data",
        "Text that belongs to no time was left out.",
        "give it a time line, or remove the empty line that parts it from its own.",
        "warning",
    ),
    "subtitle-empty": Code("data", "A subtitle has a time and no text.", "nothing has to be done.", "note"),
    "subtitle-nothing-said": Code(
        "data",
        "A subtitle describes a sound or music and holds nothing that is said. It was left out.",
        "nothing has to be done.",
        "note",
    ),
    "subtitle-repeats": Code(
        "data",
        "A subtitle only shows again what the one before it has shown, as captions that roll do. It was left out.",
        "if it is really said twice, import with --no-rolling.",
        "note",
    ),
    "subtitle-too-long": Code(
        "data",
        "A subtitle stands longer than anybody speaks without a pause. It was left out.",
        "mend its end, or part it into several.",
        "warning",
    ),
    "subtitle-broken": Code(
        "data",
        "The subtitle file cannot be read as what its name says.",
        "open it in a subtitle editor and save it anew.",
    ),
    "subtitle-none": Code("data", "The file holds no subtitle that can be used.", "check that this is the right file."),
    "text-encoding": Code(
        "text",
        "A text is neither UTF-8 nor UTF-16 with a mark, so its letters would be guessed.",
        "save it as UTF-8; or say which encoding such files have, for example --encoding windows-1252 (in run.yaml: data.encoding).",
    ),
    "text-encoding-unknown": Code(
        "text", "There is no encoding of that name.", "give a name such as utf-16, windows-1252, windows-1256, gb18030."
    ),
    "media-unreadable": Code(
        "data",
        "FFmpeg cannot read the file, or finds no sound in it.",
        "play it, and convert it if it plays; a file that was cut off has to be fetched again.",
    ),
    "media-damaged": Code(
        "data",
        "Parts of the recording could not be decoded; silence stands in their place.",
        "fetch the file again if clips of that part matter.",
        "warning",
    ),
    "media-rate": Code(
        "data", "The sampling rate is none that sound is recorded at.", "check that this is the right file."
    ),
    "media-time": Code(
        "data", "The times inside the media file make no sense.", "convert it, for example with ffmpeg -i OLD NEW.flac."
    ),
    "media-missing": Code(
        "data", "A text has no recording beside it.", "put it there under the same name, or remove the text.", "warning"
    ),
    "media-short": Code(
        "data",
        "The recording ends before the text that should be in it.",
        "check that both belong together.",
        "warning",
    ),
    "text-missing": Code(
        "data",
        "A recording has no text: none lies beside it, and no line of a list names it.",
        "put a text beside it under the same name, or add a line to its list.",
        "warning",
    ),
    "transcript-empty": Code(
        "data",
        "A recording has an empty text. It was left out.",
        "write down what is said, or remove the line or the files; then import again with --reimport.",
        "warning",
    ),
    "second-microphone": Code(
        "data",
        "The same sentence was recorded by two microphones at once; the first one is imported.",
        "nothing has to be done.",
        "note",
    ),
    "clip-no-speech": Code(
        "data",
        "No voice was found where a subtitle stands; the clip was made and is rejected.",
        "listen to it; take it back if somebody speaks.",
        "note",
    ),
    "table-line": Code(
        "data",
        "A line of the table has no recording or no text, or is broken. It was left out.",
        "mend the line.",
        "warning",
    ),
    "table-unknown": Code(
        "data",
        "The file is no list of recordings with texts that voxgraft knows.",
        "docs/data.md shows the forms: audio|text, audio|text|normalised, JSON lines with audio and text.",
    ),
    "table-duplicate": Code(
        "data",
        "The same recording stands twice with the same text. The second was left out.",
        "remove one line.",
        "note",
    ),
    "table-double-id": Code(
        "data",
        "The same id or recording is on two lines with different texts. The first line was imported, the other left out.",
        "remove the wrong line, or give it the name of its own recording; then import again with --reimport.",
        "warning",
    ),
    "import-empty": Code(
        "data",
        "After an import the dataset has no clip that can be used, so that nothing can be learnt from it.",
        "see the problems above and in problems.jsonl; mend the sources, or name others, then run the same command again.",
    ),
    "import-left-out": Code(
        "data",
        "More of the sources was left out than is allowed: often one cause that all of them have.",
        "mend what is listed above and in problems.jsonl and import again with --reimport; or allow more with --max-left-out (in run.yaml: data.max_left_out).",
    ),
    "import-settings": Code(
        "data",
        "The source was imported before, with other settings than those that are given now. Its clips were left as they are.",
        "run the same command again with --reimport, which imports it again; clips that stay the same keep their ids and sides.",
    ),
    "dataset-missing": Code(
        "data",
        "The folder is not a dataset: it holds no manifest.jsonl.",
        "make it with `voxgraft data import DATASET SOURCE`.",
    ),
    "dataset-busy": Code(
        "data",
        "Another process works on this dataset, and two would write the same clips.",
        "wait until it has ended; if it was killed, its processes end by themselves within seconds.",
    ),
    "dataset-differs": Code(
        "data",
        "The datasets have clips at different sampling rates, and a dataset has one.",
        "import one of them again with --rate.",
    ),
    "source-none": Code(
        "data", "Nothing that can be imported was found.", "name a folder or files with recordings and texts."
    ),
    "source-unknown": Code(
        "data", "The file is of no kind that can be imported.", "docs/data.md lists the kinds.", "warning"
    ),
    "list-repeated": Code(
        "data",
        "Every sound of a list is in another list beside it, so it was left out: its clips would be learnt twice.",
        "nothing, if the other list is complete; else import the list that you mean by its own name.",
        "warning",
    ),
    "source-changed": Code(
        "data",
        "A source was imported before, and its text or a sound of it has changed since. Its clips were left as they are.",
        "run the same command again with --reimport, which imports it again; clips that stay the same keep their ids and sides.",
    ),
    "source-doubled": Code(
        "data",
        "A source was imported that has the same clips as another source of the dataset: the same sound, or the same text and length. Often it is the same folder, renamed and corrected; its clips now count twice, mostly as two speakers.",
        "remove the older source with `voxgraft data remove DATASET --recording NAME`. If two people read the same sentences, there is nothing to do.",
        "warning",
    ),
    "clip-remade": Code(
        "data",
        "Files of clips were missing or did not hold what the import had written; they were written again.",
        "check the disk; if sets were prepared from these clips, run `voxgraft prepare` again.",
        "warning",
    ),
    "clip-damaged": Code(
        "data",
        "Files of clips are missing or damaged, and this version or this source no longer gives the same clips.",
        "restore the files from a backup, or remove the recording with `voxgraft data remove DATASET --recording NAME` and import again.",
    ),
    "source-own": Code(
        "data",
        "The list is the manifest of a dataset that was made by voxgraft: its clips are cut already.",
        "use `voxgraft data merge DATASET SET`, which takes them as they are.",
        "warning",
    ),
    "source-failed": Code(
        "data", "A recording could not be imported; the others were.", "see what is said of it.", "warning"
    ),
    "extra-missing": Code(
        "data", "This needs a package that is not installed.", "install it: the error names the extra of voxgraft."
    ),
    "clips-unknown": Code(
        "data", "The dataset has no such clip, recording or speaker.", "see `voxgraft data list DATASET`."
    ),
    "clip-audio-missing": Code(
        "data", "The sound file of a clip is not there.", "import the recording again, or remove the clip.", "warning"
    ),
    "split-impossible": Code(
        "data",
        "There are too few recordings and speakers to hold some out whole, and a clip alone is never held out.",
        "give more recordings; run `voxgraft data report` first, which leaves out sounds that are there twice and tie recordings together; or choose --by recording where a voice may be on both sides, or --by stretch.",
    ),
    "split-leak-audio": Code(
        "data",
        "The same sound is learnt from and held out.",
        "run `voxgraft data split` again: clips that sound alike are then kept on one side.",
    ),
    "split-leak-text": Code(
        "data",
        "The same sentence is learnt from and held out, said by others; what is measured on it is too good.",
        "nothing has to be done for a few; for many, leave them out of what is held out.",
        "warning",
    ),
    # ---- preparing ---------------------------------------------------------------------------------------
    "manifest-no-split": Code(
        "data",
        "The manifest has no clip to learn from, or none to hold out: without held-out recordings nobody sees whether the model learns.",
        "split it by recording with `voxgraft data split`, or look at what was rejected with `voxgraft data report`.",
    ),
    "text-manifest": Code(
        "text",
        "The file begins as the manifest of a dataset, and one of its lines is no clip with a text.",
        "let `voxgraft data import` write the manifest, or give a text with a sentence on each line.",
    ),
    "sound-broken": Code(
        "audio",
        "The file is no sound that can be read, or its end is missing.",
        "cut the clip again from its recording, or leave it out.",
    ),
    "prepare-worker": Code(
        "data",
        "The process that encoded the clip was killed or died, and so did the one that tried again; too little memory is the usual reason.",
        "run the same command again with fewer --workers or a smaller --batch-seconds; what is done is kept.",
    ),
    "prepare-left-out": Code(
        "data",
        "Some clips of the manifest are in no set; all others are.",
        "look at the lines with left_out; run the same command again when the cause is gone.",
        "warning",
    ),
    # ---- all stages of a run -----------------------------------------------------------------------------
    "trained-otherwise": Code(
        "runs",
        "What was trained is not what the run asks for now; going on would either throw training away or keep what was changed out of it.",
        "undo the change; or say `--when-changed fresh` to begin again (the graft and the saved steps are set aside), or `--when-changed keep` to go on with what is there.",
    ),
    # ---- web interface -----------------------------------------------------------------------------------
    "ui-outside": Code(
        "web interface",
        "A path that was named in the browser is not inside the folders that the web interface was started with.",
        "choose a file inside, or start `voxgraft ui` with another --roots.",
    ),
    "ui-no-project": Code(
        "web interface",
        "What a tab does is done in a project, and none is open.",
        "choose a project at the top of the page, or make a new one there.",
    ),
    "ui-needed": Code(
        "web interface",
        "The form lacks something that its command cannot do without.",
        "fill in what is named.",
    ),
    "ui-job-elsewhere": Code(
        "web interface",
        "The job's processes were started on another machine or in another container, and cannot be told to stop from here.",
        "stop it where it runs.",
    ),
    "ui-job-running": Code(
        "web interface",
        "The same verb is at work in this project; two at once would do the same work twice.",
        "wait until it ends, or press Stop.",
    ),
    "ui-job-unstarted": Code(
        "web interface",
        "The machine gave no process for the job; nothing of it is left.",
        "close other programs, or wait until they end, and press the button again.",
    ),
    "ui-executed": Code(
        "web interface",
        "The setting names a program that would be started; visitors of a web page may not choose one.",
        "run this on the command line.",
    ),
    "ui-keep": Code(
        "web interface",
        "The run.yaml is written in a form in which single values cannot be replaced safely, so it was left as it is.",
        "edit run.yaml by hand; every key has its meaning beside it.",
    ),
    "ui-upload": Code(
        "web interface",
        "An uploaded file could not be taken over into the project.",
        "check the file and the room on the disk, or copy it into the project's folder by hand.",
    ),
    "ui-password": Code(
        "web interface",
        "A page that others can reach is only served with a password.",
        "put one into a file and give --password-file, or set VOXGRAFT_UI_PASSWORD, or listen on 127.0.0.1.",
    ),
    "ui-port": Code(
        "web interface",
        "The address is not one of this machine, or another program listens on that port.",
        "choose another --port, or stop the other program.",
    ),
}
