"""The graft folder: everything that is added to a base for one language, small enough to share.

`graft.json` says what it belongs to; `tokenizer.*` and `rows.safetensors` are the graft; `README.md` is for people.
Also here: finding the base folder, family, tokenizer and text rules that a path names.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxgraft import __version__
from voxgraft.checkpoints.write import read_rows_file
from voxgraft.config.run import LANGUAGE_PATTERN, RunSettings, VocabularySettings
from voxgraft.config.train_options import rename_saved_options
from voxgraft.core.errors import (
    CheckpointError,
    FileError,
    Finding,
    GraftError,
    TextError,
    TokenizerError,
    VoxgraftError,
    fill_placeholders,
    finding,
)
from voxgraft.core.files import (
    compute_sha256,
    is_file,
    is_folder,
    path_exists,
    read_bytes,
    read_json,
    require_file,
    require_folder,
    write_text,
)
from voxgraft.core.languages import is_same_language
from voxgraft.core.results import pluralize
from voxgraft.core.run import RUN_FILE
from voxgraft.models import family_names, get_family, resolve_base_family, resolve_base_folder
from voxgraft.models.base import Family
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import NO_RULES, TextRules, TextRulesError, build_text_rules
from voxgraft.text.normalize.rules import caseless_key, fold_word
from voxgraft.tokenizers import Tokenizer, open_tokenizer

if TYPE_CHECKING:
    from voxgraft.graft.rows import Float32Array


GRAFT_FORMAT = "voxgraft-graft-1"
# Words and their respellings, one pair a line with a tab. A file in the run replaces that of its graft.
PRONUNCIATIONS_NAME = "pronunciations.tsv"
MAX_PRONUNCIATIONS_BYTES = 4 << 20
MAX_README_WORDS = 20
GRAFT_CARD_NAME, ROWS_NAME, README_NAME = "graft.json", "rows.safetensors", "README.md"
ADAPTER_NAME = "adapter"
MERGED_CARD_NAME = "merged.json"
# In an export: the normalizer on its own, and the text rules that it follows.
TEXT_FOLDER, TEXT_RULES_NAME = "voxgraft_text", "rules.json"
# In the run folder, beside the graft: what the run was made from.
RUN_CARD_NAME = "card.json"
_VERSIONED_PACKAGES = ("numpy", "safetensors", "sentencepiece", "tokenizers", "uroman", "regex", "num2words")
_TAG_PATTERN = re.compile(r"\[[a-z0-9-]+\]")
# In graft.json: SHA-256 of all its other values, so that an edited or damaged card is noticed.
SUM_KEY = "card_sha256"
_STRING_KEYS = ("family", "language", "tokenizer", "tokenizer_sha256", "rows_sha256")


@dataclass(frozen=True, slots=True)
class GraftCard:
    """What graft.json holds."""

    family: str
    language: str
    tag: str | None
    num_rows: int
    base: dict[str, Any]
    """File names and SHA-256 of the base's checkpoint and tokenizer, its number of pieces."""
    tokenizer: str
    tokenizer_sha256: str
    rows_sha256: str
    method: dict[str, Any]
    proof: dict[str, Any]
    licence: str
    versions: dict[str, str]
    adapter: dict[str, str] | None = None
    """SHA-256 of the files in adapter/, by name; None where there is none."""
    text: dict[str, Any] | None = None
    """Text rules: how text of the language is normalized. None in grafts from before these were stored."""

    def to_json(self) -> dict[str, Any]:
        return {"format": GRAFT_FORMAT, **{name: getattr(self, name) for name in self.__slots__}}

    @property
    def base_pieces(self) -> int:
        return int(self.base["pieces"])

    @property
    def rules(self) -> TextRules:
        """The text rules; texts of a graft from before are read as they are, as they were in its training."""
        return TextRules.from_json(self.text)


@dataclass(frozen=True, slots=True)
class Graft:
    """A graft folder, opened and checked: its parts belong together."""

    folder: Path
    card: GraftCard
    tokenizer: Tokenizer
    rows: dict[str, Float32Array]


def collect_versions() -> dict[str, str]:
    """What made a graft."""
    return {"voxgraft": __version__, **{name: version(name) for name in _VERSIONED_PACKAGES}}


def read_graft_card(folder: Path) -> GraftCard:
    """graft.json alone, with every value of the right kind."""
    if not path_exists(folder) and is_file(folder.parent / RUN_FILE):
        with fill_placeholders({"RUN": shlex.quote(str(folder.parent))}):  # commands with several runs set none
            raise GraftError("graft-missing", f"{folder.parent} has no graft yet", where=folder.parent)
    path = require_folder(folder) / GRAFT_CARD_NAME
    if not path_exists(path):
        cure = f"this is a run; its graft is {folder / 'graft'}." if is_file(folder / RUN_FILE) else ""
        found = f"{folder.name} is not a graft: {path.name} is missing"
        raise GraftError("graft-broken", found, where=folder, cure=cure)
    value = read_json(require_file(path))
    if not isinstance(value, dict) or value.get("format") != GRAFT_FORMAT:
        raise GraftError("graft-broken", f"{GRAFT_CARD_NAME} has no format {GRAFT_FORMAT!r}", where=path)
    fields: dict[str, Any] = {name: value.get(name) for name in GraftCard.__slots__}
    wrong = [name for name in _STRING_KEYS if not isinstance(fields[name], str)]
    wrong += [name for name in ("base", "method", "proof", "versions") if not isinstance(fields[name], dict)]
    if type(fields["num_rows"]) is not int or fields["num_rows"] < 0:
        wrong.append("num_rows")
    if isinstance(fields["base"], dict) and type(fields["base"].get("pieces")) is not int:
        wrong.append("base.pieces")
    # Both are written into programs and pages that others run and read.
    if isinstance(fields["language"], str) and not re.fullmatch(LANGUAGE_PATTERN, fields["language"]):
        wrong.append("language")
    if fields["tag"] is not None and not (isinstance(fields["tag"], str) and _TAG_PATTERN.fullmatch(fields["tag"])):
        wrong.append("tag")
    adapter = fields["adapter"]  # names of files in one folder, with their hashes
    if adapter is not None and not (
        isinstance(adapter, dict)
        and all(isinstance(digest, str) for digest in adapter.values())
        and all(name and "/" not in name and not name.startswith(".") for name in adapter)
    ):
        wrong.append("adapter")
    if wrong or "/" in fields["tokenizer"] or fields["tokenizer"].startswith("."):
        found = f"{GRAFT_CARD_NAME} has no valid value for {', '.join(wrong) or 'tokenizer'}"
        raise GraftError("graft-broken", found, where=path)
    fields["licence"] = str(fields["licence"] or "")
    fields["text"] = add_pronunciations(fields["text"], folder)
    parse_text_rules(fields["text"], path)
    # Last, so that a value that cannot be right is named itself. Grafts from before have no sum.
    if SUM_KEY in value and value[SUM_KEY] != (actual := _sum_of(value)):
        found = f"{GRAFT_CARD_NAME} was changed after it was written: its values have sha256 {actual[:12]}"
        sources = f"`{previous.name}` or from its source" if is_folder(previous := _previous(folder)) else "its source"
        cure = f"restore {GRAFT_CARD_NAME} from {sources}. If you edited it on purpose, remove the line `{SUM_KEY}`."
        raise GraftError("graft-broken", found, expected=f"{value[SUM_KEY]!s:.12}", where=path, cure=cure)
    if isinstance(trained := fields["method"].get("trained"), dict):
        fields["method"] = {**fields["method"], "trained": rename_saved_options(trained)}
    return GraftCard(**fields)


def parse_text_rules(document: Any, where: Path) -> TextRules:
    """Text rules as a card states them; an error where they cannot be followed with what is installed."""
    try:
        rules = TextRules.from_json(document)
        rules.require_edition()
    except TextRulesError as error:
        raise GraftError("text-rules", error.found, where=where, cure=f"{error.fix}.") from None
    return rules


def add_pronunciations(stated: Any, folder: Path) -> Any:
    """Text rules as a card states them, with the pronunciations of the graft's folder or of its run."""
    path = find_pronunciations(folder)
    if path is None or not (stated is None or isinstance(stated, dict)):
        return stated
    without_list = {name: part for name, part in (stated or {}).items() if name != "pronunciations"}
    in_run, rules = path.parent != folder, None
    if in_run:
        try:
            rules = TextRules.from_json(without_list or None)
            rules.require_edition()
        except TextRulesError:
            return stated  # `parse_text_rules` reports it
    # A list in a graft is taken as it is: a graft from before keeps its meaning, and later ones hold normalized words.
    words = read_pronunciations(path, rules) if is_file(path) else {}
    if not words:
        return stated and without_list
    return {**(without_list or {"version": NO_RULES}), "pronunciations": words}


def find_pronunciations(folder: Path) -> Path | None:
    """The list that counts for a graft or merged folder; it does not exist where a run has withdrawn its list."""
    run = folder.resolve().parent
    listed = run / PRONUNCIATIONS_NAME
    # In a run that made its graft itself, the list in the graft is a copy: it must not outlive the original.
    if is_file(run / RUN_FILE) and (is_file(listed) or is_file(run / RUN_CARD_NAME)):
        return listed
    return folder / PRONUNCIATIONS_NAME if is_file(folder / PRONUNCIATIONS_NAME) else None


def graft_language_findings(graft: Graft, language: str | None) -> list[Finding]:
    """An error if a run names another language than the one that its graft was made for."""
    if language is None or is_same_language(graft.card.language, language):
        return []
    found = f"the graft was made for {graft.card.language}, but the run's language is {language}"
    return [finding("graft-other-language", found, expected=graft.card.language, where=graft.folder)]


def require_graft_language(graft: Graft, language: str | None) -> None:
    """Raise unless a graft is for the language of its run."""
    for item in graft_language_findings(graft, language):
        raise GraftError.of(item)


def build_language_rules(settings: RunSettings, run: Path | None, language: str) -> TextRules:
    """The text rules that a graft of these settings states, with the run's list of pronunciations."""
    own = settings.tokenizer
    rules = build_text_rules(language, normalize=own.normalise, fold_homophones=own.fold_homophones)
    if run is not None and is_file(listed := run / PRONUNCIATIONS_NAME):
        rules = replace(rules, pronunciations=read_pronunciations(listed, rules))
    return rules


def read_pronunciations(path: Path, rules: TextRules | None = None) -> dict[str, str]:
    """`pronunciations.tsv`: a word, a tab, and how it is written for the model. Lines with # are comments.

    With `rules`, words are written as these leave them in texts, to which the list is applied.
    """
    words: dict[str, str] = {}
    seen: dict[str, tuple[int, str]] = {}  # line and respelling
    data = read_bytes(path, MAX_PRONUNCIATIONS_BYTES)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        found = f"line {data[: error.start].count(10) + 1} is not UTF-8"
        raise TextError("pronunciations", found, where=path) from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, said = (unicodedata.normalize("NFC", part.strip()) for part in line.partition("\t"))
        if not word or not said or "\t" in said:
            found = f"line {number} is {line!r:.80}"
            raise TextError("pronunciations", found, expected="a word, a tab and its respelling", where=path)
        written = fold_word(word) if rules is None else rules.normalize_word(word)
        if not written:
            found = f"normalization removes all characters of {word!r:.60} on line {number}"
            raise TextError("pronunciations", found, where=path)
        first, first_said = seen.setdefault(caseless_key(written), (number, said))
        if first_said != said:
            found = f"{word!r:.60} is on lines {first} and {number}, with two respellings"
            raise TextError("pronunciations", found, where=path)
        words[written] = said
    try:
        TextRules.from_json({"version": NO_RULES, "pronunciations": words})
    except TextRulesError as error:
        raise TextError("pronunciations", error.found, where=path, cure=f"{error.fix}.") from None
    return words


def write_graft_card(folder: Path, card: GraftCard) -> None:
    """graft.json, and the pronunciations beside it, where people can edit them."""
    write_pronunciations(folder, card.rules)
    write_text(folder / GRAFT_CARD_NAME, format_graft_card(card), overwrite=True)


def write_pronunciations(folder: Path, rules: TextRules) -> None:
    """The list of a graft; none where there are no words."""
    text = "".join(f"{word}\t{said}\n" for word, said in sorted(rules.pronunciations.items()))
    if text:
        write_text(folder / PRONUNCIATIONS_NAME, text, overwrite=True)
    else:
        (folder / PRONUNCIATIONS_NAME).unlink(missing_ok=True)


def find_text_rules(tokenizer: Path) -> TextRules | None:
    """The text rules of the graft, the merged checkpoint or the export that a tokenizer file is a part of."""
    folder = tokenizer.parent
    for name in (GRAFT_CARD_NAME, MERGED_CARD_NAME):
        if is_file(folder / name):
            card = read_json(folder / name)
            if isinstance(card, dict) and card.get("tokenizer") == tokenizer.name:
                return parse_text_rules(add_pronunciations(card.get("text"), folder), folder / name)
    for parent in (folder, folder.parent):
        if is_file(path := parent / TEXT_FOLDER / TEXT_RULES_NAME):
            return parse_text_rules(read_json(path), path)
    return None


def _previous(folder: Path) -> Path:
    """Where a command that replaces a graft keeps the old one."""
    return folder.with_name(f"{folder.name}.previous")


def _mismatch(folder: Path, found: str, expected: str = "") -> GraftError:
    cure = ""
    if is_folder(previous := _previous(folder)):
        cure = (
            f"run `voxgraft graft RUN` again, or restore the folder from `{previous.name}` next to it. A trained run "
            "then needs `voxgraft train RUN`, which takes the trained rows from the saved steps (without any, add "
            "--fresh to train again)."
        )
    return GraftError("graft-mismatch", found, expected=expected, where=folder, cure=cure)


def load_graft(folder: Path) -> Graft:
    """The whole graft; refused with the difference if a part does not belong."""
    card = read_graft_card(folder)
    for name in (card.tokenizer, ROWS_NAME):
        if not path_exists(folder / name):
            raise GraftError("graft-broken", f"{name} is missing from the graft", where=folder)
    try:
        tokenizer = open_tokenizer(folder / card.tokenizer)
    except (FileError, TokenizerError) as error:
        if not error.code.startswith("json-") and error.code not in ("tokenizer-broken", "text-not-utf8"):
            raise
        raise GraftError("graft-broken", f"{card.tokenizer}: {error.finding.found}", where=folder) from None
    try:
        rows = read_rows_file(folder / ROWS_NAME)
    except CheckpointError as error:
        raise GraftError("graft-broken", f"{ROWS_NAME}: {error.finding.found}", where=folder) from None
    if tokenizer.size != card.base_pieces + card.num_rows:
        found = (
            f"{card.tokenizer} has {tokenizer.size:,} tokens, but {GRAFT_CARD_NAME} adds {card.num_rows:,} rows "
            f"to {card.base_pieces:,}"
        )
        raise _mismatch(folder, found, f"{card.base_pieces + card.num_rows:,}")
    expected = {point.tensor for point in get_family(card.family).graft_points}
    if set(rows) != expected:
        found = f"{ROWS_NAME} contains {', '.join(sorted(rows)) or 'nothing'}"
        raise _mismatch(folder, found, ", ".join(sorted(expected)))
    for name, values in rows.items():
        if values.shape[0] != card.num_rows:
            found = f"{name} in {ROWS_NAME} has {values.shape[0]:,} rows"
            raise _mismatch(folder, found, f"{card.num_rows:,}")
    expected_hashes = {card.tokenizer: card.tokenizer_sha256, ROWS_NAME: card.rows_sha256}
    expected_hashes |= {f"{ADAPTER_NAME}/{name}": digest for name, digest in (card.adapter or {}).items()}
    for name, digest in expected_hashes.items():
        actual = compute_sha256(folder / name) if is_file(folder / name) else "nothing"
        if actual != digest:
            found = f"{name} has sha256 {actual[:12]}, {GRAFT_CARD_NAME} states {digest[:12]}"
            raise _mismatch(folder, found)
    return Graft(folder, card, tokenizer, rows)


def hash_adapter_files(folder: Path) -> dict[str, str] | None:
    """What a card says of the adapter in a graft folder."""
    adapter_folder = folder / ADAPTER_NAME
    return (
        {path.name: compute_sha256(path) for path in sorted(adapter_folder.iterdir())}
        if is_folder(adapter_folder)
        else None
    )


def format_graft_readme(card: GraftCard, language_name: str, samples: list[str]) -> str:
    """The card for people who are handed the folder."""
    proof, trained = card.proof, card.method.get("trained")
    state = "not trained yet"
    if isinstance(trained, dict):
        state = f"trained, step {trained['step']:,}, mode {trained['mode']}"
    lines = [
        f"# {language_name} for {card.family}",
        "",
        f"A voxgraft graft: {card.num_rows:,} new text rows for {language_name} (`{card.language}`).",
        "It contains nothing of the base itself. It belongs to this base:",
        "",
        "| file | sha256 |",
        "| --- | --- |",
        f"| {card.base['checkpoint']} | {card.base['checkpoint_sha256']} |",
        f"| {card.base['tokenizer']} | {card.base['tokenizer_sha256']} |",
        "",
        f"- Old text keeps its ids: of {proof['total']:,} sentences, {proof['same']:,} are encoded as before; "
        f"{proof['base_unknown']:,} have characters that the base cannot encode, {proof['changed']:,} changed.",
        f"- Text is normalized by the rules `{card.rules.identity}`, in training and in synthesis.",
        *_format_respelled_words(card.rules),
        f"- New rows, {state}: init {card.method['init']}, noise {card.method['noise']}, seed {card.method['seed']}.",
        *(f"- {sample}" for sample in samples),
        "",
        "| file | contents |",
        "| --- | --- |",
        f"| {card.tokenizer} | the base's tokenizer with the new tokens appended |",
        f"| {ROWS_NAME} | the new rows of each text table, float32 |",
        *(["| adapter/ | adapter weights for this language only, in PEFT's format |"] if card.adapter else []),
        f"| {GRAFT_CARD_NAME} | card of the graft, for programs |",
        "",
        "## Licence of the base",
        "",
        card.licence,
        "",
    ]
    return "\n".join(lines)


def _format_respelled_words(rules: TextRules) -> list[str]:
    words = sorted(rules.pronunciations.items())
    if not words:
        return []
    shown = ", ".join(f"`{word}` as `{said}`" for word, said in words[:MAX_README_WORDS])
    more = f", and {len(words) - MAX_README_WORDS:,} more" if len(words) > MAX_README_WORDS else ""
    return [f"- {pluralize(len(words), 'word')} respelled as in `{PRONUNCIATIONS_NAME}`: {shown}{more}."]


def collect_graft_settings(settings: RunSettings) -> dict[str, Any]:
    """The settings that a graft depends on, beside the files whose hashes are kept."""
    values: dict[str, Any] = settings.model_dump(
        mode="json", include={"language": True, "tokenizer": set(VocabularySettings.model_fields), "rows": True}
    )
    for name, usual in (("normalise", True), ("fold_homophones", False)):
        # Cards from before do not have these keys.
        if values["tokenizer"][name] == usual:
            del values["tokenizer"][name]
    return values


def format_graft_card(card: GraftCard) -> str:
    """graft.json's text."""
    stated = card.text and {key: part for key, part in card.text.items() if key != "pronunciations"}
    value = json.loads(json.dumps({**card.to_json(), "text": stated}))  # as it is read back
    return json.dumps({**value, SUM_KEY: _sum_of(value)}, ensure_ascii=False, indent=2) + "\n"


def _sum_of(value: dict[str, Any]) -> str:
    """SHA-256 of a card's values. Order and spaces do not count."""
    own = {name: held for name, held in value.items() if name != SUM_KEY}
    return hashlib.sha256(json.dumps(own, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def load_base_tokenizer(path: Path, name: str | None) -> tuple[Family, Tokenizer]:
    """Family and tokenizer of a base folder (the built-in one by its name), or of a tokenizer file on its own."""
    path = resolve_base_folder(path)
    if not is_folder(path):
        tokenizer = open_tokenizer(path)
        return (get_family(name) if name else _detect_tokenizer_family(tokenizer)), tokenizer
    try:
        family = resolve_base_family(path, name)
        return family, open_tokenizer(family.files(path).tokenizer)
    except FileError:
        # Not a complete base; a tokenizer may lie in the folder on its own, without its gigabytes.
        families = [get_family(name)] if name else list(map(get_family, family_names()))
        alone = [(one, path / file) for one in families for file in one.tokenizer_names if path_exists(path / file)]
        if len({file for _, file in alone}) != 1:
            raise
        tokenizer = open_tokenizer(alone[0][1])
        # Families may call their tokenizers alike; the content of the file tells them apart.
        return (alone[0][0] if len(alone) == 1 else _detect_tokenizer_family(tokenizer)), tokenizer


def load_text_encoder(path: Path, name: str | None, grown: Path | None, language: str | None) -> TextEncoder:
    """The spelling of a base (folder or tokenizer file) with an optional extended tokenizer."""
    found, base = load_base_tokenizer(path, name)
    rules = find_text_rules(grown) if grown else None
    return TextEncoder.of(found, base, open_tokenizer(grown) if grown else None, language, rules)


def _detect_tokenizer_family(tokenizer: Tokenizer) -> Family:
    """The one family whose special pieces have their ids here; an error if that is none or several."""
    fitting = [
        candidate
        for candidate in map(get_family, family_names())
        if all(tokenizer.ids.get(piece) == at for piece, at in candidate.special_ids.items())
    ]
    if len(fitting) != 1:
        found = f"{tokenizer.path.name} ({tokenizer.kind}) has the special tokens of {len(fitting)} families"
        raise TokenizerError("tokenizer-family", found, expected="exactly one family", where=tokenizer.path)
    return fitting[0]


# Folders in the run.
MERGED_FOLDER_NAME, BASELINE_FOLDER_NAME = "merged", "masked-finetune"
MERGED_FORMAT = "voxgraft-merged-1"
# Shown wherever a model of the masked-finetune baseline is shown.
MASKED_BASELINE_LABEL = "as the masked-finetune baseline, for comparison; this loses the old languages"
# Of a held-out speech loss; the default bound of merged training.
MAX_LOSS_RISE = 0.05


def read_merged_card(folder: Path) -> dict[str, Any]:
    """The card of a merged folder, whose files exist and are the ones that were written."""
    if not path_exists(folder) and is_file(folder.parent / RUN_FILE):
        mode = "--baseline" if folder.name == BASELINE_FOLDER_NAME else "--train.mode"
        found = f"{folder.parent} has no {folder.name} checkpoint"
        cure = f"train the run with {mode} {folder.name}, or use --variant graft."
        raise GraftError("merged-missing", found, where=folder.parent, cure=cure)
    path = require_folder(folder) / MERGED_CARD_NAME
    card = read_json(require_file(path))
    if not isinstance(card, dict) or card.get("format") != MERGED_FORMAT:
        raise GraftError("merged-broken", f"{MERGED_CARD_NAME} is not in the format {MERGED_FORMAT!r}", where=path)
    for name in ("checkpoint", "tokenizer"):
        file, expected_hash = str(card.get(name)), card.get(f"{name}_sha256")
        if "/" in file or compute_sha256(folder / file) != expected_hash:
            raise GraftError(
                "merged-broken", f"{file} does not have the {name} that {MERGED_CARD_NAME} lists", where=folder
            )
    return card


def find_merged_card(checkpoint: Path) -> dict[str, Any] | None:
    """The card in the folder of a checkpoint, if it names one that exists."""
    path = checkpoint.parent / MERGED_CARD_NAME
    if not is_file(path):
        return None
    try:
        card = read_json(path)
    except VoxgraftError:
        return None  # `read_merged_card`, which reads the whole folder, reports a broken card
    file = card.get("checkpoint") if isinstance(card, dict) else None
    named = isinstance(file, str) and "/" not in file and is_file(path.parent / file)
    return card if named else None


def is_of_last_training(card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the point that a card reports is the one that the journal says was written.

    A training that was begun again and has not come to its end leaves the folder of the one before where it is.
    """
    chosen = next((line for line in reversed(journal) if line["kind"] == "interpolation" and line.get("chosen")), None)
    own = _find_written_point(card)
    if chosen is None or own is None:
        return False
    return all(own.get(name) == chosen.get(name) for name in ("share", "speech_losses"))


def _find_written_point(card: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of the points between base and trained that a card lists, the one whose checkpoint was written."""
    points = card.get("points")
    listed = [one for one in points if isinstance(one, dict)] if isinstance(points, list) else []
    return next((one for one in listed if one.get("share") == card.get("share")), None)


def keeps_old_languages(checkpoint: Path) -> bool | None:
    """What held-out losses say of old languages in this checkpoint; None where there are none.

    Judged by the losses themselves: the bound of a run is its user's, and may be as loose as they like.
    """
    card = find_merged_card(checkpoint)
    if card is None or card["checkpoint"] != checkpoint.name or card.get("label"):
        return None
    if card.get("format") != MERGED_FORMAT or compute_sha256(checkpoint) != card.get("checkpoint_sha256"):
        return None  # what was measured is another file
    before, now = card.get("speech_losses_before"), (_find_written_point(card) or {}).get("speech_losses")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return None
    old = {name: (before[name], loss) for name, loss in now.items() if name in before and name != card.get("language")}
    if not old or not all(isinstance(loss, int | float) for pair in old.values() for loss in pair):
        return None
    return all(loss <= first * (1 + MAX_LOSS_RISE) for first, loss in old.values())
