"""The checkpoints of an export: the base with more rows, and the one that has the new language in its body.

Each is written atomically, read again, and compared with the base: names, shapes and bits.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxgraft.checkpoints import Checkpoint, TensorInfo, open_checkpoint
from voxgraft.checkpoints.base import ByteSink, from_float32
from voxgraft.checkpoints.write import (
    GrowthPlan,
    TableGrowth,
    TensorBytes,
    grow_checkpoint,
    write_safetensors,
    write_torch,
)
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, GraftError
from voxgraft.core.files import CHUNK_BYTES, atomic_write, compute_sha256
from voxgraft.core.languages import find_exemplar, find_language_scripts, is_letter, script_of
from voxgraft.export.sources import ExportSource
from voxgraft.graft.folder import TEXT_FOLDER, TEXT_RULES_NAME
from voxgraft.models.load import grow_model, load_model, save_model
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.adapter import load_peft_adapter, merge_adapter, read_peft_folder
from voxgraft.nn.rows import load_new_rows
from voxgraft.text import TextFrontend
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import TextRules
from voxgraft.tokenizers import parse_tokenizer
from voxgraft.tokenizers.base import Tokenizer, read_texts
from voxgraft.tokenizers.formats import BpeJsonTokenizer

BASE_DTYPE = "base"
ROUNDED_DTYPE = "BF16"


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
    """Tensors that are the base's, bit for bit; rounded where that was asked for."""
    changed: int
    """Tensors of the body that the new language has changed."""
    base_rows: int
    """Rows of the base in each text table, all of them the same bits."""
    new_rows: int
    dtype: str
    exact: bool
    """Whether the values are in the base's own number format."""

    @property
    def precision(self) -> str:
        """Exact is said only of what is the base's own, bit for bit, wherever it is the base at all."""
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
        # A grown file keeps the format of the base, and its name is the stock program's choice.
        if (path.suffix == ".safetensors") != (base.format == "safetensors"):
            found = f"{base.path.name} is a {base.format} file, and the stock program wants {path.name}"
            raise CheckpointError("output-suffix", found, where=base.path)
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
    """The merged one in the base's own size: `places` says at which old id each new one stands."""
    model = _load_merged_model(source)
    state = model.state_dict()
    base_pieces = source.graft.card.base_pieces
    new, old = torch.tensor(list(places.keys())), torch.tensor(list(places.values()))
    for point in source.family.graft_points:
        table = state[point.tensor]
        kept = torch.cat([table[:base_pieces], table[source.graft.tokenizer.size :]])
        kept[old] = table[new]
        state[point.tensor] = kept
    tensors = {name: _to_tensor_bytes(tensor) for name, tensor in state.items()}
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
    load_new_rows(model, {name: torch.from_numpy(values) for name, values in source.graft.rows.items()})
    if source.adapter is not None:
        load_peft_adapter(model, read_peft_folder(source.adapter))
        merge_adapter(model)
    return model


def _to_tensor_bytes(tensor: Tensor) -> TensorBytes:
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
        return TensorBytes("BF16", tuple(tensor.shape), lambda: [bits.tobytes()])
    return TensorBytes.of(tensor.contiguous().numpy())


def _round_checkpoint(path: Path, dtype: str) -> None:
    """Write a file again with its float32 numbers in half the room."""
    if dtype == BASE_DTYPE:
        return
    with open_checkpoint(path) as checkpoint:
        tensors = {name: _round_tensor(checkpoint, info) for name, info in checkpoint.tensors.items()}
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


def _round_tensor(checkpoint: Checkpoint, info: TensorInfo) -> TensorBytes:
    if info.dtype != "F32":
        return TensorBytes(info.dtype, info.shape, lambda: checkpoint.iter_bytes(info))

    def chunks() -> Iterable[bytes]:
        yield from_float32(np.asarray(checkpoint.read(info.name), dtype=np.float32), ROUNDED_DTYPE).tobytes()

    return TensorBytes(ROUNDED_DTYPE, info.shape, chunks)


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
            wanted = was.dtype if dtype == BASE_DTYPE or was.dtype != "F32" else ROUNDED_DTYPE
            if (now.shape, now.dtype) != (shape, wanted):
                found = f"{name} is {now.dtype} {list(now.shape)}"
                raise _export_mismatch_error(path, found, f"{wanted} {list(shape)}")
            before, after = (_tensor_bits(one, name, now.dtype) for one in (base, written))
            if name in tables:
                # Base rows, and the spare ones behind them, are the base's; those of reused ids the new language's.
                kept_rows = np.ones(pieces, dtype=bool)
                kept_rows[list(reused or ())] = False
                old_spare = was.shape[0] - pieces
                tail = not old_spare or np.array_equal(before[pieces:], after[after.shape[0] - old_spare :])
                if not np.array_equal(before[:pieces][kept_rows], after[:pieces][kept_rows]) or not tail:
                    raise _export_mismatch_error(path, f"a base row of {name} is not the base's")
            elif np.array_equal(before, after):
                same += 1
            elif body_may_change:
                if not np.isfinite(np.asarray(written.read(name), dtype=np.float32)).all():
                    raise _export_mismatch_error(path, f"{name} holds values that are not finite")
                changed += 1
            else:
                raise _export_mismatch_error(path, f"{name} is not the base's")
            advance(1)
        exact = all(written.tensors[name].dtype == base.tensors[name].dtype for name in names)
        kinds = sorted({written.tensors[name].dtype for name in names})
    new_rows = len(reused) if reused is not None else source.graft.card.num_rows
    kept = pieces - len(reused or ())
    size_bytes = path.stat().st_size
    return ExportedCheckpoint(
        path.name,
        compute_sha256(path),
        size_bytes,
        len(names),
        len(expected),
        same,
        changed,
        kept,
        new_rows,
        ", ".join(kinds),
        exact,
    )


def require_tensor_names(written: Checkpoint, source: ExportSource) -> frozenset[str]:
    """All names that the family's model has at the base's size; an error unless the file has exactly these."""
    with torch.device("meta"):
        names = frozenset(source.family.build_empty_model(source.files).state_dict())
    there = {name for name in written.tensors if source.family.get_part_name(name) is not None}
    if there != names:
        lacking, more = sorted(names - there), sorted(there - names)
        found = f"{len(lacking)} names are missing ({', '.join(lacking[:3])}), "
        found += f"{len(more)} too many ({', '.join(more[:3])})"
        raise _export_mismatch_error(written.path, found, f"the {len(names)} names of {source.family.name}")
    return names


def _tensor_bits(checkpoint: Checkpoint, name: str, dtype: str) -> np.ndarray[Any, Any]:
    """A tensor's bits, after rounding where the other file is rounded. Signs of zero count."""
    raw = checkpoint.read(name, raw=True)
    if checkpoint.tensors[name].dtype != dtype:
        raw = from_float32(np.asarray(checkpoint.read(name), dtype=np.float32), dtype)
    return raw.view(np.dtype(f"u{raw.dtype.itemsize}")) if raw.dtype.kind == "f" else raw


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
# Latin words stand in every language's texts.
KEPT_SCRIPTS = ("Latin", "Common", "Inherited")
# A script with this share of a language's letters is one of its own.
OWN_SCRIPT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class DropInTokenizer:
    """The tokenizer file, and at which old id each new one stands."""

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
        raise GraftError("drop-in-family", f"a tokenizer of the kind {base.kind}", expected="one of Chatterbox's")
    spelling = TextEncoder.of(source.family, base, grown, source.language, source.graft.card.rules)
    sentences = _collect_sentences(source)
    used = _find_used_ids(spelling, sentences)
    free = [one for one in _find_reusable_ids(base, source, sentences) if one not in used]
    new = range(base.size, grown.size)
    if len(free) < len(new):
        found = f"{len(new):,} new pieces, and the base has {len(free):,} ids that the language does not use"
        raise GraftError("drop-in-no-room", found, where=source.graft.folder)
    places = dict(zip(new, free, strict=False))
    data = _build_tokenizer_json(base, grown, places)
    tokenizer = parse_tokenizer(data, Path(base.path.name))
    if tokenizer.size != base.size:
        raise GraftError("drop-in-moved", f"{tokenizer.size:,} ids", expected=f"{base.size:,}")
    proven = _prove_encoding(spelling, tokenizer, places, sentences)
    return DropInTokenizer(data, places, tuple(base.shown(one) for one in places.values()), len(free), proven)


def _collect_sentences(source: ExportSource) -> list[str]:
    """The run's own texts; without a run, every piece and letter by itself."""
    entry = find_exemplar(source.language)
    letters = list(entry.letters) if entry else []
    if source.texts:
        return [*letters, *read_texts(source.texts).sentences]
    tokenizer = source.graft.tokenizer
    whole = tokenizer.control_ids
    pieces = [tokenizer.pieces[one] for one in range(source.graft.card.base_pieces, tokenizer.size) if one not in whole]
    return [*letters, *(piece for piece in pieces if piece)]


def _find_used_ids(spelling: TextEncoder, sentences: Sequence[str]) -> set[int]:
    """Ids in any text of the run: one that is taken although a single sentence needs it would be lost."""
    used: set[int] = set()
    with progress.progress_task("ids that the language uses", len(sentences)) as advance:
        for text in sentences:
            used.update(spelling.encode(text, spelling.language))
            advance(1)
    return used


def _find_reusable_ids(base: BpeJsonTokenizer, source: ExportSource, sentences: Iterable[str]) -> Iterator[int]:
    """Ids that carry nothing the language needs, those first that nobody misses."""
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
            kind = _piece_rank(piece, own, front)
        if kind is not None:
            by_kind.setdefault(kind, []).append(at)
    for kind in sorted(by_kind):
        yield from by_kind[kind]


def _piece_rank(piece: str, own: set[str], front: TextFrontend) -> int | None:
    """Pieces that no text can become, since the front writes them otherwise; then letters of other scripts."""
    if front.prepare(piece, None) != piece:
        return 1
    letters = [character for character in piece if is_letter(character)]
    foreign = bool(letters) and all(script_of(character) not in own for character in letters)
    return 3 if foreign and len(letters) == len(piece) else None


def _build_tokenizer_json(base: BpeJsonTokenizer, grown: Tokenizer, places: dict[int, int]) -> bytes:
    """The grown file with its new pieces at reused ids, and without the pieces that stood there."""
    document = json.loads(grown.data)
    gone = {base.pieces[one] for one in places.values()}
    model = document["model"]
    # No merge of a piece that is gone could ever act in a text of the language.
    pairs = [(merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    model["merges"] = [merge for merge, (left, right) in pairs if gone.isdisjoint((left, right, left + right))]
    vocab = {piece: places.get(at, at) for piece, at in model["vocab"].items() if piece not in gone}
    model["vocab"] = dict(sorted(vocab.items(), key=lambda item: item[1]))
    added = [
        {**token, "id": places.get(token["id"], token["id"])}
        for token in document["added_tokens"]
        if token["content"] not in gone
    ]
    document["added_tokens"] = sorted(added, key=lambda token: int(token["id"]))
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def _prove_encoding(
    spelling: TextEncoder, tokenizer: Tokenizer, places: dict[int, int], sentences: Sequence[str]
) -> int:
    """Every sentence as the stock program is given it, with the tag typed in front, against voxgraft's own spelling."""
    language, tag = spelling.language, spelling.tag or ""
    proven = 0
    for text in sentences:
        if _TYPED_TAG.search(text.lower()):
            continue  # voxgraft breaks up a tag that stands inside a text; the stock program does not
        expected = [places.get(one, one) for one in spelling.encode(text, language)]
        text = spelling.rules.apply(text)
        text = text[0].upper() + text[1:] if text[:1].islower() else text  # as `prepared` of the export does
        text = text.strip()
        found = tokenizer.encode(spelling.front.prepare(spelling.front.clean(tag + text), None))
        if found != expected:
            told = f"{text[:60]!r} is spelled {found[:12]}"
            raise GraftError("drop-in-moved", told, expected=f"{expected[:12]}")
        proven += 1
    return proven


TEXT_PACKAGE = "voxgraft.text.normalize"
# What `rules` needs, and it itself.
TEXT_PACKAGE_MODULES = ("amharic", "base", "ethiopic", "generic", "reader", "rules", "tigrinya")
_INIT_TEMPLATE = '''"""How text was normalised in training, for use without voxgraft. Part of voxgraft, Apache-2.0.

    from voxgraft_text import prepared
    prepared("...")  # text of the new language, as the original program has to be given it

Needs `regex`{needs}.
"""

import json
from pathlib import Path

{imports}

RULES = TextRules.from_json(json.loads((Path(__file__).parent / "{rules_name}").read_text(encoding="utf-8")))
RULES.require_edition()


def prepared(text):
    """Text of the new language as the original program has to be given it. Preparing it twice changes nothing."""
{body}
'''


def build_text_package(rules: TextRules, body: str, modules: Mapping[str, str]) -> dict[str, str]:
    """The files of the package, by their place in the export.

    `body` is what `prepared` does, by the family; `modules` are sources of the family's own that it imports.
    """
    imports = [f"from .{name} import *" for name in modules] + ["from .rules import TextRules"]
    needs = " and `num2words`" if rules.numbers else ""
    folder = resources.files(TEXT_PACKAGE)
    files: dict[str, str] = {}
    for name in TEXT_PACKAGE_MODULES:  # the export must not need voxgraft: all imports become relative
        source = folder.joinpath(f"{name}.py").read_text(encoding="utf-8")
        source = source.replace(f"from {TEXT_PACKAGE}.", "from .").replace(
            f"from {TEXT_PACKAGE} import", "from . import"
        )
        assert f"import {TEXT_PACKAGE}" not in source
        assert "from voxgraft" not in source
        files[f"{name}.py"] = source
    files |= {f"{name}.py": source for name, source in modules.items()}
    start = _INIT_TEMPLATE.format(
        imports="\n".join(sorted(imports)), rules_name=TEXT_RULES_NAME, body=body, needs=needs
    )
    files["__init__.py"] = start
    files[TEXT_RULES_NAME] = json.dumps(rules.to_json(), ensure_ascii=False, indent=2) + "\n"
    return {f"{TEXT_FOLDER}/{name}": text for name, text in files.items()}
