"""What is exported, and its checkpoints, drop-in tokenizer and text package.

Nothing is exported that does not pass `check`, and nothing that was made on another base. Each checkpoint is written
atomically, read again, and compared with the base: names, shapes and bits.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxgraft.checkpoints import Checkpoint, open_checkpoint
from voxgraft.checkpoints.base import ByteSink, from_float32
from voxgraft.checkpoints.write import (
    GrowthPlan,
    TableGrowth,
    TensorBytes,
    grow_checkpoint,
    write_safetensors,
    write_torch,
)
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import CheckSettings, ExportSettings
from voxgraft.config.run import RunSettings
from voxgraft.core import progress
from voxgraft.core.errors import (
    CheckpointError,
    ConfigError,
    GraftError,
    raise_first_error,
)
from voxgraft.core.files import (
    CHUNK_BYTES,
    atomic_write,
    compute_sha256,
    is_file,
    is_folder,
    require_folder,
)
from voxgraft.core.languages import find_exemplar, find_language_scripts, is_letter, script_of
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.data.manifest import resolve_text_files
from voxgraft.graft.folder import (
    ADAPTER_NAME,
    GRAFT_CARD_NAME,
    MERGED_FOLDER_NAME,
    TEXT_FOLDER,
    TEXT_RULES_NAME,
    Graft,
    load_graft,
    read_merged_card,
)
from voxgraft.inspect.check import run_checks
from voxgraft.inspect.subject import open_check_subject
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, ExportInfo, Family
from voxgraft.models.speech_model import SpeechModel, grow_model, load_model, save_model
from voxgraft.nn.adapter import load_peft_adapter, merge_adapter, read_peft_folder
from voxgraft.nn.rows import load_new_rows
from voxgraft.synthesis.engine import detect_trained_output
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import TextRules
from voxgraft.tokenizers import Tokenizer, open_tokenizer, parse_tokenizer, read_texts
from voxgraft.tokenizers.formats import BpeJsonTokenizer

BASE_DTYPE = "base"
ROUNDED_DTYPE = "BF16"


@dataclass(frozen=True)
class ExportSource:
    """One graft, its base, and the run that it comes from if there is one."""

    family: Family
    files: BaseFiles
    base_tokenizer: Tokenizer
    graft: Graft
    run: RunFolder | None = None
    texts: tuple[Path, ...] = ()
    """Texts of the new language that the run names."""
    merged: dict[str, Any] | None = None
    """The card of what merged training has left, if that was the last one."""

    @property
    def language(self) -> str:
        return self.graft.card.language

    @property
    def language_name(self) -> str:
        entry = find_exemplar(self.language)
        return entry.name if entry else self.language

    @property
    def adapter(self) -> Path | None:
        folder = self.graft.folder / ADAPTER_NAME
        return folder if is_folder(folder) else None

    @property
    def merged_checkpoint(self) -> Path | None:
        if self.merged is None or self.run is None:
            return None
        return self.run.path / MERGED_FOLDER_NAME / str(self.merged["checkpoint"])

    @property
    def facts(self) -> ExportInfo:
        card = self.graft.card
        return ExportInfo(self.language, self.language_name, card.tag, self.graft.tokenizer.size, card.base_pieces)

    @property
    def trained_step(self) -> int | None:
        """None where nothing was trained yet."""
        if self.merged is not None:
            return int(self.merged["step"])
        trained = self.graft.card.method.get("trained")
        return int(trained["step"]) if isinstance(trained, dict) else None


def open_export_source(settings: ExportSettings) -> ExportSource:
    """What the path names, checked; an error that says what could stand there for anything else."""
    path = require_folder(settings.model)
    run = RunFolder(path)
    if is_file(run.settings):
        values = read_settings_values(RunSettings, run.settings)
        if settings.base is not None:
            values["base"] = resolve_base_folder(settings.base)
        own = parse_settings(RunSettings, values, run.settings)
        _require_passing_check(parse_settings(CheckSettings, {**values, "run": run.path}, run.settings))
        which = detect_trained_output(run, RunJournal(run.journal).read())
        if which == "masked-finetune":
            found = "the last training was the masked-finetune baseline, which changed the base's rows and backbone"
            raise GraftError("export-seeds", found, where=run.path)
        merged = read_merged_card(run.path / MERGED_FOLDER_NAME) if which == "merged" else None
        source = _build_source(own.base, settings.family or own.family, run.graft)
        return replace(source, run=run, texts=resolve_text_files(own, run.path), merged=merged)
    if is_file(path / GRAFT_CARD_NAME):
        graft = load_graft(path)
        source = _build_source(settings.base or Path(graft.card.family), settings.family or graft.card.family, path)
        given = {"base": source.files.folder, "tokenizer": {"file": graft.tokenizer.path}}
        given |= {"family": source.family.name, "language": graft.card.language}
        _require_passing_check(parse_settings(CheckSettings, given, path))
        return source
    found = f"{path.name} has neither run.yaml nor {GRAFT_CARD_NAME}"
    raise GraftError("export-subject", found, expected="the folder of a run or of a graft", where=path)


def _build_source(base: Path | None, name: str | None, place: Path) -> ExportSource:
    """The graft in a folder with the base that it was made on; an error for any other base."""
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", expected="--base FOLDER", where=place)
    folder = resolve_base_folder(base)
    if not is_folder(folder):
        cure = "give the base that the graft was created on: --base FOLDER."
        raise ConfigError("config-missing", f"the base {folder} does not exist", where=place, cure=cure)
    family = resolve_base_family(folder, name)
    files = family.files(folder)
    graft = load_graft(place)
    card = graft.card
    if card.family != family.name:
        raise GraftError("base-other", f"the base is of the family {family.name}", expected=card.family, where=folder)
    for part, path in (("checkpoint", files.checkpoint), ("tokenizer", files.tokenizer)):
        actual, expected_hash = compute_sha256(path), str(card.base.get(f"{part}_sha256"))
        # Rows and adapter only mean something on the weights that they were trained on.
        if actual != expected_hash:
            expected = f"{expected_hash[:12]}, as in the base of the graft"
            raise GraftError("base-other", f"{path.name} has sha256 {actual[:12]}", expected=expected, where=path)
    return ExportSource(family, files, open_tokenizer(files.tokenizer), graft)


def _require_passing_check(settings: CheckSettings) -> None:
    """Refuse what `check` rejects. Training data and recognizers are no part of an export."""
    with open_check_subject(settings) as subject:
        raise_first_error(run_checks(subject, with_data=False, skip_topics=("evaluation",)).findings)


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """One checkpoint as it was read again."""

    file: str
    sha256: str
    num_bytes: int
    names: int
    """Names with the right shapes in the file."""
    expected: int
    """Names that the family's model has."""
    same: int
    """Tensors that are the base's, bit for bit; rounded where that was requested."""
    changed: int
    """Tensors of the backbone that the new language has changed."""
    base_rows: int
    """Rows of the base in each text table, all of them the same bits."""
    new_rows: int
    dtype: str
    exact: bool
    """Whether the values are in the base's own number format."""

    @property
    def precision(self) -> str:
        """ "Exact" is used only for values that equal the base's, bit for bit."""
        if not self.exact:
            return "rounded from the base"
        return "in the base's own format" if self.changed else "exact"

    @property
    def kept(self) -> str:
        """What is the base's, and whether to the bit."""
        how = "bit for bit" if self.exact else "rounded"
        return f"{self.same} tensors and {self.base_rows:,} rows of each text table, {how}"

    @property
    def kept_and_changed(self) -> str:
        return f"{self.kept}; {self.changed} tensors changed" if self.changed else self.kept

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "precision": self.precision, "kept": self.kept}


def write_grown_checkpoint(source: ExportSource, path: Path, *, dtype: str) -> ExportedCheckpoint:
    """The base with the graft's rows behind its own, and nothing else changed."""
    card = source.graft.card
    spare = source.family.spare_rows
    plan = GrowthPlan({name: TableGrowth(card.base_pieces, spare, rows) for name, rows in source.graft.rows.items()})
    with open_checkpoint(source.files.checkpoint) as base:
        # An extended file keeps the format of the base, and its name is the original program's choice.
        if (path.suffix == ".safetensors") != (base.format == "safetensors"):
            found = f"{base.path.name} is a {base.format} file, but the original program needs {path.name}"
            cure = f"use the base's published checkpoint, which has the format of {path.name}."
            raise CheckpointError("output-suffix", found, where=base.path, cure=cure)
        # Copied tensor by tensor from the file: no model is built, so nothing can be lost or converted.
        grow_checkpoint(base, plan, path)
        _round_checkpoint(path, dtype)
        return _verify_written_checkpoint(base, path, source, dtype, body_may_change=False)


def write_merged_checkpoint(source: ExportSource, path: Path, *, dtype: str) -> ExportedCheckpoint:
    """What merged training has left, or the base with the adapter in its weights for good."""
    if source.merged_checkpoint is not None:
        with source.merged_checkpoint.open("rb") as stream, atomic_write(path) as new:
            shutil.copyfileobj(stream, new, CHUNK_BYTES)
    else:
        save_model(_load_merged_model(source), path)
    _round_checkpoint(path, dtype)
    with open_checkpoint(source.files.checkpoint) as base:
        return _verify_written_checkpoint(base, path, source, dtype, body_may_change=True)


def write_drop_in_checkpoint(
    source: ExportSource, path: Path, places: Mapping[int, int], *, dtype: str
) -> ExportedCheckpoint:
    """The merged one in the base's own size: `places` says at which old id each new one is."""
    model = _load_merged_model(source)
    state = model.state_dict()
    base_pieces = source.graft.card.base_pieces
    new_ids, old_ids = torch.tensor(list(places.keys())), torch.tensor(list(places.values()))
    for point in source.family.graft_points:
        table = state[point.tensor]
        # Base pieces and spare rows; the new rows then overwrite those of reused ids.
        drop_in_table = torch.cat([table[:base_pieces], table[source.graft.tokenizer.size :]])
        drop_in_table[old_ids] = table[new_ids]
        state[point.tensor] = drop_in_table
    tensors = {}
    for name, tensor in state.items():
        if tensor.dtype == torch.bfloat16:  # which NumPy does not have
            data = tensor.contiguous().view(torch.int16).numpy().tobytes()
            tensors[name] = TensorBytes("BF16", tuple(tensor.shape), partial(list, [data]))
        else:
            tensors[name] = TensorBytes.of(tensor.contiguous().numpy())
    with atomic_write(path) as stream:
        write_safetensors(stream, tensors, None) if path.suffix == ".safetensors" else write_torch(stream, tensors)
    _round_checkpoint(path, dtype)
    with open_checkpoint(source.files.checkpoint) as base:
        return _verify_written_checkpoint(
            base, path, source, dtype, body_may_change=True, reused=frozenset(places.values())
        )


@torch.no_grad()
def _load_merged_model(source: ExportSource) -> SpeechModel:
    files = source.files
    if source.merged_checkpoint is not None:
        return load_model(source.family, replace(files, checkpoint=source.merged_checkpoint), dtype=None)
    model = load_model(source.family, files, dtype=None)
    grow_model(model, source.graft.card.num_rows)
    # The same order as in training: rows first, then the adapter on top of the grown model.
    load_new_rows(model, {name: torch.from_numpy(values) for name, values in source.graft.rows.items()})
    if source.adapter is not None:
        load_peft_adapter(model, read_peft_folder(source.adapter))
        merge_adapter(model)
    return model


def _round_checkpoint(path: Path, dtype: str) -> None:
    """Write a file again with its float32 tensors as bfloat16, unless the base's own format is wanted."""
    if dtype == BASE_DTYPE:
        return

    def rounded(name: str) -> Iterator[bytes]:
        # Read when it is written: the whole file need not fit into memory.
        yield from_float32(np.asarray(checkpoint.read(name), dtype=np.float32), ROUNDED_DTYPE).tobytes()

    with open_checkpoint(path) as checkpoint:
        tensors = {
            name: TensorBytes(ROUNDED_DTYPE, info.shape, partial(rounded, name))
            if info.dtype == "F32"
            else TensorBytes(info.dtype, info.shape, partial(checkpoint.iter_bytes, info))
            for name, info in checkpoint.tensors.items()
        }
        total = sum(tensor.num_bytes for tensor in tensors.values())
        with (
            atomic_write(path, overwrite=True) as stream,
            progress.progress_task(f"rounding {path.name}", total) as advance,
        ):
            sink = ByteSink(stream, advance=advance)
            if checkpoint.format == "safetensors":
                write_safetensors(sink, tensors, checkpoint.metadata)
            else:
                write_torch(sink, tensors, wrapper=checkpoint.wrapper)


def _verify_written_checkpoint(
    base: Checkpoint,
    path: Path,
    source: ExportSource,
    dtype: str,
    *,
    body_may_change: bool,
    reused: frozenset[int] | None = None,
) -> ExportedCheckpoint:
    """Open what was written and compare it with the base; an error names the first thing that is not as it must be."""
    pieces, spare = source.graft.card.base_pieces, source.family.spare_rows
    size = pieces if reused is not None else source.graft.tokenizer.size
    tables = {point.tensor for point in source.family.graft_points}
    same = changed = 0
    with (
        open_checkpoint(path) as written,
        progress.progress_task(f"reading {path.name} again", len(written.tensors)) as advance,
    ):
        expected = require_tensor_names(written, source)
        names = [name for name in base.tensors if name in expected]
        for name in names:
            was, now = base.tensors[name], written.tensors[name]
            shape = (size + spare, *was.shape[1:]) if name in tables else was.shape
            expected_dtype = was.dtype if dtype == BASE_DTYPE or was.dtype != "F32" else ROUNDED_DTYPE
            if (now.shape, now.dtype) != (shape, expected_dtype):
                found = f"{name} is {now.dtype} {list(now.shape)}"
                raise _export_mismatch_error(path, found, f"{expected_dtype} {list(shape)}")
            # Bits, not values: signs of zero count. The base is rounded first where the export is.
            before, after = base.read(name, raw=True), written.read(name, raw=True)
            if was.dtype != now.dtype:
                before = from_float32(np.asarray(base.read(name), dtype=np.float32), now.dtype)
            before, after = (
                array.view(np.dtype(f"u{array.dtype.itemsize}")) if array.dtype.kind == "f" else array
                for array in (before, after)
            )
            if name in tables:
                # Base rows, and the spare ones after them, are the base's; rows of reused ids the new language's.
                kept_rows = np.ones(pieces, dtype=bool)
                kept_rows[list(reused or ())] = False
                old_spare = was.shape[0] - pieces
                tail = not old_spare or np.array_equal(before[pieces:], after[after.shape[0] - old_spare :])
                if not np.array_equal(before[:pieces][kept_rows], after[:pieces][kept_rows]) or not tail:
                    raise _export_mismatch_error(path, f"a base row of {name} differs from the base")
            elif np.array_equal(before, after):
                same += 1
            elif body_may_change:
                if not np.isfinite(np.asarray(written.read(name), dtype=np.float32)).all():
                    raise _export_mismatch_error(path, f"{name} contains values that are not finite")
                changed += 1
            else:
                raise _export_mismatch_error(path, f"{name} differs from the base")
            advance(1)
        exact = all(written.tensors[name].dtype == base.tensors[name].dtype for name in names)
        kinds = sorted({written.tensors[name].dtype for name in names})
    return ExportedCheckpoint(
        file=path.name,
        sha256=compute_sha256(path),
        num_bytes=path.stat().st_size,
        names=len(names),
        expected=len(expected),
        same=same,
        changed=changed,
        base_rows=pieces - len(reused or ()),
        new_rows=len(reused) if reused is not None else source.graft.card.num_rows,
        dtype=", ".join(kinds),
        exact=exact,
    )


def require_tensor_names(written: Checkpoint, source: ExportSource) -> frozenset[str]:
    """All names that the family's model has at the base's size; an error unless the file has exactly these."""
    with torch.device("meta"):
        names = frozenset(source.family.build_empty_model(source.files).state_dict())
    present = {name for name in written.tensors if source.family.get_part_name(name) is not None}
    if present != names:
        missing, extra = sorted(names - present), sorted(present - names)
        found = f"{len(missing)} names are missing ({', '.join(missing[:3])}), "
        found += f"{len(extra)} too many ({', '.join(extra[:3])})"
        raise _export_mismatch_error(written.path, found, f"the {len(names)} names of {source.family.name}")
    return names


def _export_mismatch_error(path: Path, found: str, expected: str = "") -> CheckpointError:
    return CheckpointError("export-differs", found, expected=expected, where=path)


# Added tokens by rank: placeholders first, then keys of Chinese characters, tags of other languages last. Tokens for
# sounds are kept.
_REUSABLE_TOKENS = {
    0: re.compile(r"\[PLACEHOLDER\d*\]"),
    2: re.compile(r"\[cj_.\]"),
    4: re.compile(r"\[[a-z]{2,3}\]"),
}
_TYPED_TAG = re.compile(r"\[[a-z]{2,3}(?:-[a-z0-9]+)*\]")
# Latin words are in every language's texts.
KEPT_SCRIPTS = ("Latin", "Common", "Inherited")
# A script with this share of a language's letters is one of its own.
OWN_SCRIPT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class DropInTokenizer:
    """The tokenizer file, and the reused old id of each new one."""

    data: bytes
    places: dict[int, int]
    replaced_pieces: tuple[str, ...]
    """Pieces of the base that are no more."""
    num_reusable_ids: int
    """Ids that the language does not use, taken or not."""
    num_proven_sentences: int
    """Sentences of the new language that are spelled alike, id for id."""


def build_drop_in_tokenizer(source: ExportSource) -> DropInTokenizer:
    """Reuse ids, and prove on the language's own texts that it reads as before."""
    base, grown = source.base_tokenizer, source.graft.tokenizer
    if not isinstance(base, BpeJsonTokenizer):
        expected_kind = "a BPE tokenizer in a tokenizers JSON file"
        raise GraftError("drop-in-family", f"the base has a tokenizer of type {base.kind}", expected=expected_kind)
    text_encoder = TextEncoder.of(source.family, base, grown, source.language, source.graft.card.rules)
    # The run's own texts; without a run, every new piece and every letter on its own.
    entry = find_exemplar(source.language)
    sentences = list(entry.letters) if entry else []
    if source.texts:
        sentences += read_texts(source.texts).sentences
    else:
        new_ids = range(source.graft.card.base_pieces, grown.size)
        sentences += [
            piece for token_id in new_ids if token_id not in grown.control_ids and (piece := grown.pieces[token_id])
        ]
    # All ids that any text uses: a single sentence that needs one would be lost.
    used: set[int] = set()
    with progress.progress_task("ids that the language uses", len(sentences)) as advance:
        for text in sentences:
            used.update(text_encoder.encode(text, text_encoder.language))
            advance(1)
    free_ids = [token_id for token_id in _find_reusable_ids(base, source, sentences) if token_id not in used]
    new = range(base.size, grown.size)
    if len(free_ids) < len(new):
        found = f"{len(new):,} new tokens, but the language leaves only {len(free_ids):,} ids of the base free"
        raise GraftError("drop-in-no-room", found, where=source.graft.folder)
    reused_ids = dict(zip(new, free_ids, strict=False))
    data = _build_tokenizer_json(base, grown, reused_ids)
    tokenizer = parse_tokenizer(data, Path(base.path.name))
    if tokenizer.size != base.size:
        raise GraftError("drop-in-moved", f"the new tokenizer has {tokenizer.size:,} ids", expected=f"{base.size:,}")
    # Every sentence as the original program is given it, with the tag typed in front, against voxgraft's own encoding.
    proven = 0
    for text in sentences:
        if _TYPED_TAG.search(text.lower()):
            continue  # voxgraft breaks up a tag inside a text; the original program does not
        expected = [reused_ids.get(token_id, token_id) for token_id in text_encoder.encode(text, text_encoder.language)]
        text = text_encoder.rules.apply(text)
        text = text[0].upper() + text[1:] if text[:1].islower() else text  # as `prepared` of the export does
        text = text.strip()
        found_ids = tokenizer.encode(
            text_encoder.front.prepare(text_encoder.front.clean((text_encoder.tag or "") + text), None)
        )
        if found_ids != expected:
            found = f"{text[:60]!r} is encoded as {found_ids[:12]}"
            raise GraftError("drop-in-moved", found, expected=f"{expected[:12]}")
        proven += 1
    return DropInTokenizer(
        data, reused_ids, tuple(base.shown(token_id) for token_id in reused_ids.values()), len(free_ids), proven
    )


def _find_reusable_ids(base: BpeJsonTokenizer, source: ExportSource, sentences: Iterable[str]) -> Iterator[int]:
    """Ids that carry nothing the language needs, the least missed first (by the ranks of `_REUSABLE_TOKENS`)."""
    seen = Counter(character for text in sentences for character in text)
    entry = find_exemplar(source.language)
    own = {*find_language_scripts(entry.letters if entry else "", seen, OWN_SCRIPT_SHARE), *KEPT_SCRIPTS}
    fixed = {*source.family.special_ids.values(), source.family.start_id, source.family.stop_id, base.unknown_id}
    front = source.family.front(base.path)
    by_kind: dict[int, list[int]] = {}
    for at, piece in enumerate(base.pieces):
        if piece is None or at in fixed:
            continue
        if at in base.control_ids:
            kind = next((rank for rank, pattern in _REUSABLE_TOKENS.items() if pattern.fullmatch(piece)), None)
        else:
            # Pieces that no text becomes, since the front end writes them otherwise; then letters of other scripts.
            foreign = all(is_letter(letter) and script_of(letter) not in own for letter in piece)
            kind = 1 if front.prepare(piece, None) != piece else 3 if piece and foreign else None
        if kind is not None:
            by_kind.setdefault(kind, []).append(at)
    for kind in sorted(by_kind):
        yield from by_kind[kind]


def _build_tokenizer_json(base: BpeJsonTokenizer, grown: Tokenizer, places: dict[int, int]) -> bytes:
    """The extended file with its new pieces at reused ids, and without the pieces that existed."""
    # The base must load the file with its own number of ids, so ids are exchanged and none is appended.
    document = json.loads(grown.data)
    removed = {base.pieces[old_id] for old_id in places.values()}
    model = document["model"]
    # No merge of a piece that is gone could ever act in a text of the language.
    pairs = [(merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    model["merges"] = [merge for merge, (left, right) in pairs if removed.isdisjoint((left, right, left + right))]
    vocab = {
        piece: places.get(token_id, token_id) for piece, token_id in model["vocab"].items() if piece not in removed
    }
    model["vocab"] = dict(sorted(vocab.items(), key=lambda item: item[1]))
    added = [
        {**token, "id": places.get(token["id"], token["id"])}
        for token in document["added_tokens"]
        if token["content"] not in removed
    ]
    document["added_tokens"] = sorted(added, key=lambda token: int(token["id"]))
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


TEXT_PACKAGE = "voxgraft.text.normalize"
_INIT_TEMPLATE = '''"""How text was normalized in training, for use without voxgraft. Part of voxgraft, Apache-2.0.

    from voxgraft_text import prepared
    prepared("...")  # text of the new language, as the original program needs it

Words of a base language are marked: [en]words[/en].
Needs `regex`{needs}.
"""

import json
from pathlib import Path

{imports}

RULES = TextRules.from_json(json.loads((Path(__file__).parent / "{rules_name}").read_text(encoding="utf-8")))
RULES.require_edition()
LANGUAGES = {languages!r}


def prepared(text):
    """Text of the new language as the original program needs it. Without spans, preparing it twice changes nothing."""
{body}
'''


def build_text_package(
    rules: TextRules, languages: Sequence[str], body: str, modules: Mapping[str, str]
) -> dict[str, str]:
    """The files of the package, by their place in the export.

    `languages` are those of the base that a span may have. `body` is what `prepared` does, by the family; `modules`
    are sources of the family's own that it imports.
    """
    imports = [f"from .{name} import *" for name in modules] + [
        "from .rules import TextRules",
        "from .spans import read_spans",
    ]
    needs = " and `num2words`" if rules.numbers else ""
    folder = resources.files(TEXT_PACKAGE)
    files: dict[str, str] = {}
    # The export must not need voxgraft: all modules of the rules go with it, and their imports become relative.
    names = (path.name.removesuffix(".py") for path in folder.iterdir() if path.name.endswith(".py"))
    places = {f"{name}.py": folder.joinpath(f"{name}.py") for name in sorted(set(names) - {"__init__"})}
    places["spans.py"] = resources.files("voxgraft.text").joinpath("spans.py")
    for name, place in places.items():
        source = place.read_text(encoding="utf-8")
        source = source.replace(f"from {TEXT_PACKAGE}.", "from .").replace(
            f"from {TEXT_PACKAGE} import", "from . import"
        )
        assert f"import {TEXT_PACKAGE}" not in source
        assert "from voxgraft" not in source
        files[name] = source
    files |= {f"{name}.py": source for name, source in modules.items()}
    start = _INIT_TEMPLATE.format(
        imports="\n".join(sorted(imports)),
        rules_name=TEXT_RULES_NAME,
        body=body,
        needs=needs,
        languages=tuple(languages),
    )
    files["__init__.py"] = start
    files[TEXT_RULES_NAME] = json.dumps(rules.to_json(), ensure_ascii=False, indent=2) + "\n"
    return {f"{TEXT_FOLDER}/{name}": text for name, text in files.items()}
