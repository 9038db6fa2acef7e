"""The interface of every family's model: load it from a base's files and save it, pack batches, compute losses.

A model turns ids into vectors and vectors into logits; its body is a stack of blocks that knows only an attention
context. Knows no family, optimizer or run. A loaded model has the tensors of its file, name by name and bit by bit.

Shapes: B sequences, T positions of the pack, W width, C conditioning slots, N positions of one part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.checkpoints.base import ByteSink
from voxgraft.checkpoints.load import iter_tensors
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, ConfigError, FileError, GraftError
from voxgraft.core.files import atomic_write, is_file, is_folder, require_file
from voxgraft.models.base import BaseFiles, Family, SequencePart, SequenceSpec, TokenSequence, build_sequence
from voxgraft.nn import IGNORE_INDEX
from voxgraft.nn.attention import AttentionBackend, AttentionContext, Packing, choose_attention_backend
from voxgraft.nn.backbones import Backbone
from voxgraft.nn.layers import cross_entropy_sum, init_empty_weights, map_tensors
from voxgraft.nn.rows import GrownEmbedding, GrownLayer, grow_layers, padded_linear


class ConditionBatch(Protocol):
    """Voice and style of B utterances: a dataclass of the family's own tensors, one entry per utterance."""

    def __len__(self) -> int: ...


class SpeechModel(nn.Module, ABC):
    """Text rows and speech rows around a body. Names and shapes of its tensors are upstream's."""

    text_embedding_name: ClassVar[str]
    """Module names of the text embedding and the text head: the graft points."""
    text_head_name: ClassVar[str]
    text_positions_name: ClassVar[str]
    speech_embedding_name: ClassVar[str]
    speech_positions_name: ClassVar[str]
    speech_head_name: ClassVar[str]
    final_norm_name: ClassVar[str | None] = None
    """A norm in front of both heads; None where they read the backbone's output as it is."""
    spare_rows: ClassVar[int] = 0
    unused_param_prefixes: ClassVar[tuple[str, ...]] = ()
    """How the names of parameters begin that no loss reaches."""
    file_key: ClassVar[str | None] = None
    """In a published torch file, the key of the dictionary that holds the tensors; None where they are alone."""

    @property
    @abstractmethod
    def body(self) -> Backbone: ...

    @property
    @abstractmethod
    def spec(self) -> SequenceSpec:
        """What this model's sequences are made of, at its own sizes and with its own text rows."""

    @abstractmethod
    def adapter_layers(self) -> list[str]:
        """Module names of every linear layer of the backbone, for an adapter."""

    @abstractmethod
    def collate(self, conditions: Sequence[Any]) -> ConditionBatch:
        """Conditions of single utterances as one; an error unless each has the right shapes."""

    @abstractmethod
    def embed_conditions(self, conditions: Any) -> Tensor:
        """Conditions of B utterances -> [B, C, W]; computed again each time, nothing is kept."""

    # Modules are looked up at every call: growing replaces tables by others of the same name.

    def embed_text(self, ids: Tensor, positions: Tensor, silent: Tensor | None = None) -> Tensor:
        """[N], [N] -> [N, W]. Where `silent` holds, only the position speaks (guidance)."""
        vectors: Tensor = self.get_submodule(self.text_embedding_name)(ids)
        if silent is not None:
            vectors = vectors.masked_fill(silent[:, None], 0.0)
        out: Tensor = vectors + self.get_submodule(self.text_positions_name)(positions)
        return out

    def embed_speech(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[N], [N] -> [N, W]"""
        vectors: Tensor = self.get_submodule(self.speech_embedding_name)(ids)
        out: Tensor = vectors + self.get_submodule(self.speech_positions_name)(positions)
        return out

    def text_logits(self, hidden: Tensor) -> Tensor:
        """The backbone's output -> a score for every text row. [N, W] -> [N, rows]"""
        out: Tensor = self.get_submodule(self.text_head_name)(self.speech_latents(hidden))
        return out

    def speech_logits(self, hidden: Tensor) -> Tensor:
        """The backbone's output -> a score for every speech row. [N, W] -> [N, rows]"""
        head = self.get_submodule(self.speech_head_name)
        assert isinstance(head, nn.Linear)
        return padded_linear(self.speech_latents(hidden), head.weight, head.bias)

    def speech_latents(self, hidden: Tensor) -> Tensor:
        """The backbone's output as the heads read it, and a vocoder that wants more than codes. [N, W] -> [N, W]"""
        if self.final_norm_name is None:
            return hidden
        out: Tensor = self.get_submodule(self.final_norm_name)(hidden)
        return out

    @property
    def num_text_ids(self) -> int:
        """Ids that a text may hold, new ones included and spare rows not."""
        table = self.get_submodule(self.text_embedding_name)
        if isinstance(table, GrownEmbedding):
            return table.rows.num_ids
        assert isinstance(table, nn.Embedding)
        return table.num_embeddings - self.spare_rows

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


@dataclass(frozen=True)
class PackedTokens:
    """Text or speech of all sequences of a pack, one after another, and what is asked of it."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    scored: Tensor  # [M] places in the pack that have a target
    targets: Tensor  # [M]


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid one after another, with their conditions. Make one with `pack`."""

    packing: Packing
    order: Tensor  # [T] where each position's vector is in conditioning, then text, then speech
    conditions: Any
    text: PackedTokens
    speech: PackedTokens
    silent: Tensor | None = None  # [N of text] whose text embedding is zero; None where none is

    def to(self, device: torch.device | str) -> PackedBatch:
        # `Packing.to` may build an attention mask on the device; the other tensors are simply copied.
        moved = replace(self, packing=self.packing.to(device))
        return map_tensors(moved, lambda tensor: tensor.to(device))


@dataclass(frozen=True)
class LossSums:
    """Sums of cross-entropy and the number of positions they are over.

    Sums, not means: microbatches have different lengths, so whoever adds up several divides once, at the end.
    """

    text_sum: Tensor
    text_count: int
    speech_sum: Tensor
    speech_count: int

    @property
    def text(self) -> Tensor:
        """Mean over the scored text positions; 0 where there is none."""
        return self.text_sum / max(self.text_count, 1)

    @property
    def speech(self) -> Tensor:
        return self.speech_sum / max(self.speech_count, 1)


def pack_batch(
    model: SpeechModel,
    layouts: Sequence[TokenSequence],
    conditions: Sequence[Any],
    *,
    silent: Sequence[bool] = (),
    backend: AttentionBackend | None = None,
    device: torch.device | str | None = None,
) -> PackedBatch:
    """One batch of sequences, on the model's device unless another is named. Nothing out of range gets past here.

    `silent` marks utterances whose text embedding is zeroed, so that guidance keeps its meaning: their positions stay,
    their text is not scored.
    """
    if not layouts or len(conditions) != len(layouts) or len(silent) not in (0, len(layouts)):
        found = f"{len(layouts)} sequences, {len(conditions)} conditions and {len(silent)} marks"
        raise GraftError("packing", found, expected="the same number of each, and at least one")
    # what suits the model's device and dtype; under autocast the backbone computes in half precision
    if backend is None:
        kind = model.device.type
        autocast = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocast else next(model.parameters()).dtype
        head_width = model.body.head_width if torch.is_grad_enabled() else None
        backend = choose_attention_backend(model.device, dtype, head_width)
    mute = np.asarray(silent, dtype=bool) if len(silent) else np.zeros(len(layouts), dtype=bool)
    spec = model.spec
    starts = np.cumsum([0, *(layout.length for layout in layouts)])[:-1]
    after_conditioning = starts + spec.num_conditioning
    after_text = after_conditioning + [len(layout.text.ids) for layout in layouts]
    texts, speeches = [layout.text for layout in layouts], [layout.speech for layout in layouts]
    # A sequence may come from a file that was made with another graft. On a GPU a wrong id would end the process.
    last_code = max(spec.num_codes - 1, spec.speech_start, spec.speech_stop)
    for layout in layouts:
        _require_part("text id", layout.text, spec.num_text_ids - 1, spec.max_text + 2)
        _require_part("speech code", layout.speech, last_code, spec.max_codes + 1 + spec.num_speech_stops)
        if layout.num_conditioning != spec.num_conditioning:
            found = f"a layout with {layout.num_conditioning} conditioning slots"
            raise GraftError("packing", found, expected=f"{spec.num_conditioning}")
    conditioning_places = (starts[:, None] + np.arange(spec.num_conditioning)).reshape(-1)
    text_places, speech_places = (
        np.concatenate([start + np.arange(len(part.ids)) for part, start in zip(parts, begins, strict=True)])
        for parts, begins in ((texts, after_conditioning), (speeches, after_text))
    )
    # Vectors are computed by part; `order` brings them into the order of the sequences.
    # The inverse permutation: places are unique, so sorting them inverts the map.
    order = np.argsort(np.concatenate([conditioning_places, text_places, speech_places]))
    packing = Packing.of([layout.length for layout in layouts], "cpu", backend)
    if any(layout.closed is not None for layout in layouts):
        # Only text may be closed: conditioning and speech have the gate of the sentence.
        masks = [np.zeros(len(one.text.ids), dtype=bool) if one.closed is None else one.closed for one in layouts]
        closed = np.zeros(len(packing.positions), dtype=bool)
        closed[text_places] = np.concatenate(masks)
        packing = replace(packing, closed=torch.from_numpy(closed))
    return PackedBatch(
        packing=packing,
        order=torch.from_numpy(order),
        conditions=model.collate(conditions),
        text=_pack_part(texts, text_places, ~mute),
        speech=_pack_part(speeches, speech_places, np.ones_like(mute)),
        silent=torch.from_numpy(np.repeat(mute, [len(part.ids) for part in texts])) if mute.any() else None,
    ).to(device or model.device)


def compute_hidden_states(model: SpeechModel, batch: PackedBatch, context: AttentionContext | None = None) -> Tensor:
    """The backbone's output at every position of a batch. [T, W]"""
    vectors = torch.cat(
        [
            model.embed_conditions(batch.conditions).flatten(0, 1),
            model.embed_text(batch.text.ids, batch.text.positions, batch.silent),
            model.embed_speech(batch.speech.ids, batch.speech.positions),
        ]
    )
    out: Tensor = model.body(vectors[batch.order], context or batch.packing)
    return out


def compute_losses(model: SpeechModel, batch: PackedBatch, *, chunk: int | None = None) -> LossSums:
    """Next-token cross-entropy of text and of speech over the positions that have a target.

    `chunk` bounds how many positions' logits exist at once.
    """
    hidden = compute_hidden_states(model, batch)
    text, speech = batch.text, batch.speech
    return LossSums(
        cross_entropy_sum(model.text_logits, hidden[text.scored], text.targets, chunk=chunk),
        len(text.targets),
        cross_entropy_sum(model.speech_logits, hidden[speech.scored], speech.targets, chunk=chunk),
        len(speech.targets),
    )


@torch.no_grad()
def compute_speech_latents(
    model: SpeechModel,
    texts: Sequence[Sequence[int]],
    conditions: Sequence[Any],
    codes: Sequence[Sequence[int]],
    closed: Sequence[Sequence[bool] | None] | None = None,
    ended: Sequence[bool] | None = None,
) -> list[Tensor]:
    """The final states that predict each code, from a second pass over text and codes. -> [codes, W] a row

    States kept while decoding are not the same in IndexTTS-2, which decodes with a gap in the positions. The caller
    sets the adapter's gate as it was when the codes were drawn; `closed` says at which text ids it is closed, `ended`
    which utterances came to their end, for families whose vocoder also takes the state that predicted the stop.
    """
    nonempty = [index for index, own in enumerate(codes) if len(own)]
    width = model.body.num_heads * model.body.head_width
    latents = [torch.zeros(0, width, device=model.device)] * len(codes)
    if not nonempty:
        return latents
    masks = closed or [None] * len(codes)
    spec = model.spec
    layouts = [build_sequence(spec, texts[index], codes[index], closed=masks[index], spoken=True) for index in nonempty]
    batch = pack_batch(model, layouts, [conditions[index] for index in nonempty])
    hidden = compute_hidden_states(model, batch)  # [T, W]
    end = 0
    for index, layout in zip(nonempty, layouts, strict=True):
        end += layout.length
        # The speech inputs are start, codes, stop: the first as many as there are codes predict them.
        first = end - len(layout.speech.ids)
        has_stop = spec.voices_stop and ended is not None and ended[index]
        latents[index] = model.speech_latents(hidden[first : first + len(codes[index]) + has_stop])
    return latents


def _pack_part(parts: Sequence[SequencePart], places: NDArray[np.int64], is_scored: NDArray[np.bool_]) -> PackedTokens:
    targets = np.concatenate([part.targets for part in parts])
    scored = (targets != IGNORE_INDEX) & np.repeat(is_scored, [len(part.ids) for part in parts])
    return PackedTokens(
        ids=torch.from_numpy(np.concatenate([part.ids for part in parts])),
        positions=torch.from_numpy(np.concatenate([part.positions for part in parts])),
        scored=torch.from_numpy(places[scored]),
        targets=torch.from_numpy(targets[scored]),
    )


def _require_part(what: str, part: SequencePart, highest: int, longest: int) -> None:
    low, high = int(part.ids.min()), int(part.ids.max())
    if low < 0 or high > highest:
        raise GraftError("ids-outside", f"{what} {low if low < 0 else high}", expected=f"0 to {highest:,}")
    if int(part.positions.max()) >= longest:
        found = f"a {what} at position {int(part.positions.max()):,}"
        raise GraftError("ids-length", found, expected=f"positions up to {longest - 1:,}")


def find_part_file(path: Path, names: tuple[str, ...]) -> Path:
    """The file itself, or the first of `names` that is in a folder."""
    if not is_folder(path):
        return require_file(path)
    for name in names:
        if is_file(path / name):
            return path / name
    found = f"none of {', '.join(names)} is in the folder" if len(names) > 1 else f"{names[0]} is not in the folder"
    raise FileError("base-file-missing", found, where=path)


DTYPE_FORMATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
# Counters that some families' files hold.
INTEGER_FORMATS = {torch.int64: "I64"}


def load_model(
    family: Family,
    files: BaseFiles,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
) -> SpeechModel:
    """The base's model, frozen and silent of dropout. `dtype=None` keeps each tensor as it is stored.

    One tensor after the other goes to the device: in memory are the model and one tensor more.
    """
    with init_empty_weights():
        model = family.build_empty_model(files)
    expected, state = model.state_dict(), {}
    for name, tensor in iter_model_tensors(files.checkpoint, model, dtype):
        # With dtype=None a file may also hold integers, which no layer takes.
        if tensor.dtype not in DTYPE_FORMATS and expected[name].is_floating_point():
            found = f"{name} is {str(tensor.dtype).removeprefix('torch.')}"
            raise CheckpointError("tensors-mismatch", found, expected="floating-point numbers", where=files.checkpoint)
        state[name] = tensor.to(device)
    # assign: the tensors of the file become the parameters themselves, without a copy.
    model.load_state_dict(state, strict=True, assign=True)
    return model.to(device).requires_grad_(False).eval()


def iter_model_tensors(
    path: Path, model: SpeechModel, dtype: torch.dtype | None = torch.float32
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model from a checkpoint, in the order of the file; counters stay whole numbers."""
    state = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    counters = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    yield from iter_tensors(path, shapes, dtype=dtype, integers=frozenset(counters))


def grow_model(model: SpeechModel, num_new: int) -> dict[str, GrownLayer]:
    """Give the text embedding and the text head of an opened base that many new rows, as parameters of their own."""
    return grow_layers(model, (model.text_embedding_name, model.text_head_name), num_new, model.spare_rows)


def list_base_parameters(model: SpeechModel, grafted: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Every parameter of the base that a loss can reach."""
    own = {id(value) for value in grafted.values()}
    return {
        name: value
        for name, value in model.named_parameters()
        if id(value) not in own and value.numel() and not name.startswith(model.unused_param_prefixes)
    }


def require_same_backbone(saved: Mapping[str, Tensor], body: Mapping[str, Tensor]) -> None:
    """Raise unless a saved step's backbone has the tensors of a model's, by name and shape."""
    wrong = sorted(
        name
        for name in saved.keys() | body.keys()
        if name not in saved or name not in body or saved[name].shape != body[name].shape
    )
    if wrong:
        found = f"tensors of the backbone are missing or have other shapes: {', '.join(wrong[:5])}"
        raise CheckpointError("step-parts", found, expected="the tensors of the base")


def save_model(model: SpeechModel, path: Path) -> None:
    """Write the model as the original program reads it: upstream's names, whole or not at all.

    A name that ends in `.safetensors` gives that format, every other one a torch archive.
    """
    from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch

    state = model.state_dict()
    tensors = {}
    formats = DTYPE_FORMATS | INTEGER_FORMATS
    for name, tensor in state.items():
        if tensor.is_meta or tensor.dtype not in formats:
            found = f"{name} is {'not loaded' if tensor.is_meta else str(tensor.dtype)}"
            raise CheckpointError("base-not-loaded", found, expected="floating-point numbers", where=path)
        # NumPy has no bfloat16: bytes of any format are taken through a view of uint8. One tensor at a time is copied.
        tensors[name] = TensorBytes(formats[tensor.dtype], tuple(tensor.shape), partial(_tensor_bytes, tensor))
    total = sum(tensor.num_bytes for tensor in tensors.values())
    with atomic_write(path) as stream, progress.progress_task(f"writing {path.name}", total) as advance:
        sink = ByteSink(stream, advance=advance)
        if path.suffix == ".safetensors":
            write_safetensors(sink, tensors, None)
        else:
            write_torch(sink, tensors, wrapper=model.file_key)


def _tensor_bytes(tensor: Tensor) -> Iterator[memoryview]:
    yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


HALF_PRECISION_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(requested: str | None, name: str = "--device") -> str:
    """The device that was requested, if it exists; else CUDA where there is one. `name` is that of the setting."""
    if requested is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    expected = "cpu, cuda, cuda:N or mps"
    try:
        device = torch.device(requested)
    except RuntimeError:
        raise ConfigError("device", f"{requested!r} is not a device", expected=expected, where=name) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        reason = f"there {'is' if count == 1 else 'are'} only {count}" if count else "no CUDA GPU was found"
        raise ConfigError("device", f"device {requested!r} is not available: {reason}", where=name)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device", f"device {requested!r} is not available: no Apple GPU was found", where=name)
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError("device", f"{requested!r} is not supported", expected=expected, where=name)
    return requested


def choose_dtype(precision: str | None, device: str) -> torch.dtype:
    """The number format that a model computes in: the requested one, else what suits the device."""
    if device.startswith("mps") and HALF_PRECISION_DTYPES.get(precision or ""):
        cure = "leave out --precision: on mps the default is float32."
        found = f"{precision} was requested on mps"
        raise ConfigError("device", found, expected="float32", where="--precision", cure=cure)
    if precision is not None:
        return HALF_PRECISION_DTYPES.get(precision, torch.float32)
    if not device.startswith("cuda"):
        return torch.float32
    # Before Ampere (8.0) bfloat16 is emulated, and slow.
    return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
