"""From samples of the data order to packed microbatches: text and codes of one clip, the voice of another.

The sampler has decided everything random; nothing is drawn here. On a GPU the next step's microbatches are built in the
background. Also the KL term that keeps replay samples near the base, since it is packed along with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voxgraft.core.errors import VoxgraftError
from voxgraft.dataset.sampler import Sample, assign_to_ranks, pack_microbatches
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models.base import EmotionSource, Family, TokenSequence, build_sequence
from voxgraft.models.speech_model import PackedBatch, SpeechModel, compute_hidden_states, pack_batch
from voxgraft.nn import IGNORE_INDEX
from voxgraft.nn.adapter import Gate
from voxgraft.nn.layers import map_tensors, sum_in_chunks
from voxgraft.training.cuda_graphs import BatchBucketSet, pad_to_bucket
from voxgraft.training.distributed import DistributedContext

LogitHead = Callable[[Tensor], Tensor]
# The samples of a microbatch that are kept near the base, packed on their own; and where their speech is: positions in
# the whole microbatch, in the order of `batch.speech.scored`. [M]
KLBatch = tuple[PackedBatch, Tensor]


@dataclass(frozen=True, slots=True)
class RankBatches:
    """One process's part of a step: microbatches, each with its KL part and whether it counts.

    A microbatch that does not count only keeps this process in step with the others.
    """

    batches: tuple[tuple[PackedBatch, KLBatch | None, bool], ...]
    counts: tuple[int, int, int]
    """Positions of the whole step that each loss is averaged over; 1 where there are none."""
    num_positions: int
    """Positions of the whole step."""


class BatchPrefetcher:
    """Builds the next step's microbatches in a background thread while the GPU runs the current step.

    The sampler is a pure function of the step number, so prefetching never changes what is trained on.
    On a CPU there is nothing to overlap with: microbatches are built when they are requested.
    """

    def __init__(
        self, builder: BatchBuilder, microbatch_tokens: int, group: DistributedContext, *, cuda_graphs: bool = False
    ) -> None:
        self.builder, self.microbatch_tokens, self.group = builder, microbatch_tokens, group
        # CUDA graphs replay fixed shapes: microbatches are padded to a bucket and kept in pinned memory for the copy.
        self._buckets = builder.cuda_graph_buckets(microbatch_tokens) if cuda_graphs else None
        self._thread = ThreadPoolExecutor(1, "prefetch") if builder.model.device.type == "cuda" else None
        self._next: Callable[[], Sequence[Sample]] | None = None
        self._pending: Future[tuple[Sequence[Sample], RankBatches]] | None = None

    def set_next_items(self, items: Callable[[], Sequence[Sample]]) -> None:
        """Say how the next step's samples are found; the background thread calls it."""
        self._next = items

    def prefetch(self) -> None:
        """Start building the next step. Call it right after the current step was launched."""
        chosen, self._next = self._next, None
        if self._thread is not None and chosen is not None:
            self._pending = self._thread.submit(lambda: (items := chosen(), self._build(items)))

    def batches(self, items: Sequence[Sample]) -> RankBatches:
        """This process's microbatches of a step: the prefetched ones if they match, else built now.

        They do not match after a resume.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            expected, batches = pending.result()
            if tuple(expected) == tuple(items):
                return batches
        return self._build(items)

    def pack(self, items: Sequence[Sample], at_least: int = 0) -> PackedBatch:
        """One microbatch, padded to the smallest bucket that holds it and `at_least` positions."""
        if self._buckets is None:
            return self.builder.batch(items)
        batch = self.builder.batch(items, device="cpu")
        # A graph has no mask for the gate: the few microbatches with two languages in a sentence run without one.
        bucket = self._buckets.bucket_for(batch, at_least) if batch.packing.closed is None else None
        if bucket is None:
            return batch.to(self.builder.model.device)
        return map_tensors(pad_to_bucket(batch, bucket), lambda tensor: tensor.pin_memory())

    def _build(self, items: Sequence[Sample]) -> RankBatches:
        builder = self.builder
        lengths = [builder.num_positions(item) for item in items]
        microbatches = pack_microbatches(lengths, self.microbatch_tokens)
        mine = assign_to_ranks(microbatches, self.group.world_size)[self.group.rank]
        batches = []
        for indices in mine:
            # The all-reduce needs the same number of backward passes on every process. One with fewer microbatches
            # repeats the step's first one with weight 0.
            chosen = [items[index] for index in indices or microbatches[0]]
            batches.append((self.pack(chosen), builder.kl_batch(chosen), indices is not None))
        counts = [max(1, count) for count in builder.count_loss_positions(items)]
        return RankBatches(tuple(batches), (counts[0], counts[1], counts[2]), sum(lengths))


@dataclass(frozen=True)
class BatchBuilder:
    """The datasets of a run as what a model learns from."""

    family: Family
    model: SpeechModel
    sets: Sequence[ClipDataset]
    emotion_from: EmotionSource = "target"
    kl_sets: frozenset[int] = frozenset()
    """Datasets (replay) on whose samples the model is kept near the base by the KL term."""
    unscored: frozenset[int] = frozenset()
    """Those of them without cross-entropy: what the base generated itself teaches it nothing but its habits."""
    gated: bool = False
    """Whether the adapter's gate is closed at words of base languages; not if the adapter is to be folded in."""

    def batch(
        self,
        items: Sequence[Sample],
        texts: Sequence[Sample] = (),
        voices: Sequence[Sample] = (),
        device: str | None = None,
    ) -> PackedBatch:
        """A microbatch, on the model's device unless another is named.

        `texts` and `voices` may name other samples whose text, or whose prompt, is used instead.
        """
        sequences = []
        for item, text in zip(items, texts or items, strict=True):
            sequence = self._sequence(item, text)
            if item.set in self.unscored:
                text_part, speech_part = (
                    replace(part, targets=np.full_like(part.targets, IGNORE_INDEX))
                    for part in (sequence.text, sequence.speech)
                )
                sequence = replace(sequence, text=text_part, speech=speech_part)
            sequences.append(sequence)
        return self._pack_items(items, sequences, voices or items, device)

    def kl_batch(self, items: Sequence[Sample]) -> KLBatch | None:
        """The samples of a microbatch that are kept near the base; None where there are none."""
        chosen = [item for item in items if item.set in self.kl_sets]
        if not chosen:
            return None
        batch = self._pack_items(chosen, [self._sequence(item, item) for item in chosen], chosen)
        ends = np.cumsum([self.num_positions(item) for item in items])
        # A sample ends with its speech: start, codes, stops. Codes and stops are predicted, from the start on.
        spec, positions = self.model.spec, []
        for item, end in zip(items, ends, strict=True):
            if item.set in self.kl_sets:
                num_codes = int(self.sets[item.set].num_codes[item.clip])
                start = end - num_codes - spec.speech_framing
                positions.append(np.arange(start, start + num_codes + spec.num_speech_stops))
        return batch, torch.from_numpy(np.concatenate(positions)).to(self.model.device)

    def count_loss_positions(self, items: Sequence[Sample]) -> tuple[int, int, int]:
        """Text and speech positions with a target, and speech positions of the KL term."""
        text = speech = kl = 0
        for item in items:
            clips = self.sets[item.set]
            # More than ids or codes: stops are predicted too.
            num_speech = int(clips.num_codes[item.clip]) + self.model.spec.num_speech_stops
            if item.set not in self.unscored:
                text += 0 if item.silent else int(clips.num_text[item.clip]) + 1
                speech += num_speech
            if item.set in self.kl_sets:
                kl += num_speech
        return text, speech, kl

    def num_positions(self, item: Sample) -> int:
        """Positions that a sample takes in a microbatch: conditioning, text and speech, each with start and stop."""
        clips = self.sets[item.set]
        spec = self.model.spec
        num_framing = spec.text_framing + spec.speech_framing
        return spec.num_conditioning + int(clips.num_text[item.clip]) + int(clips.num_codes[item.clip]) + num_framing

    def cuda_graph_buckets(self, microbatch_tokens: int) -> BatchBucketSet:
        """The sizes that microbatches of these datasets are padded to."""
        spec = self.model.spec
        text = [np.asarray(clips.num_text) + spec.text_framing for clips in self.sets]
        speech = [np.asarray(clips.num_codes) + spec.speech_framing for clips in self.sets]
        return BatchBucketSet(text, speech, spec.num_conditioning, microbatch_tokens)

    def name(self, item: Sample) -> str:
        """The clip's id, as the user knows it."""
        return self.sets[item.set].infos[item.clip].id

    def describe_item(self, item: Sample) -> str:
        """The clip's id and, since that may be what is wrong, the id of the one that lends its voice."""
        where, clip = item.prompt
        return f"{self.name(item)} with the voice of {self.sets[where].infos[clip].id}"

    def _pack_items(
        self,
        items: Sequence[Sample],
        sequences: Sequence[TokenSequence],
        voices: Sequence[Sample],
        device: str | None = None,
    ) -> PackedBatch:
        conditions = []
        for item, voice in zip(items, voices, strict=True):
            prompt, target = (
                self.sets[where].voice_clip(clip) for where, clip in (voice.prompt, (item.set, item.clip))
            )
            conditions.append(self.family.condition(prompt, target, emotion_from=self.emotion_from))
        silent = [item.silent for item in items]
        try:
            return pack_batch(self.model, sequences, conditions, silent=silent if any(silent) else (), device=device)
        except VoxgraftError:
            # Find the sample that cannot be packed, so that the error names it.
            for voice, sequence, condition in zip(voices, sequences, conditions, strict=True):
                try:
                    pack_batch(self.model, [sequence], [condition])
                except VoxgraftError as error:
                    where = f"{self.sets[voice.set].name}, {self.describe_item(voice)}"
                    raise type(error).of(replace(error.finding, where=where)) from None
            raise

    def _sequence(self, item: Sample, text: Sample) -> TokenSequence:
        text_ids, codes = self.sets[text.set].text_ids(text.clip), self.sets[item.set].codes(item.clip)
        closed = self.sets[text.set].closed(text.clip) if self.gated else None
        return build_sequence(self.model.spec, text_ids, codes, closed=closed)


class FrozenBase:
    """The base as it was before training: what it would predict at each position."""

    def __init__(self, model: SpeechModel, gate: Gate | None = None) -> None:
        """`model` with its gate closed is the base; without a gate it is a copy that is not trained."""
        self.model, self.gate = model, gate

    @torch.no_grad()
    def hidden(self, batch: PackedBatch) -> Tensor:
        """The input of the base's speech head at the positions that count. [M, W]"""
        with self.gate.closed() if self.gate else nullcontext():
            return compute_hidden_states(self.model, batch)[batch.speech.scored]

    def head(self, hidden: Tensor) -> Tensor:
        """[M, W] -> [M, V]"""
        return self.model.speech_logits(hidden)


def kl_sum(head: LogitHead, hidden: Tensor, base_head: LogitHead, base_hidden: Tensor, *, chunk: int | None) -> Tensor:
    """Summed KL(base || tuned) in nats, a float32 number; gradients reach `head` and `hidden` alone. [M, W] twice -> []

    In this direction a speech code that the base would predict and the tuned model would not costs the most. With a
    `chunk` the logits of at most that many positions exist at once, as in the cross-entropy.
    """

    def chunk_sum(hidden: Tensor, base_hidden: Tensor) -> Tensor:
        with torch.no_grad():
            base = base_head(base_hidden).float().log_softmax(-1)  # [M, V]
        tuned = head(hidden).float().log_softmax(-1)  # [M, V]
        return F.kl_div(tuned, base, reduction="sum", log_target=True)

    return sum_in_chunks(chunk_sum, (hidden, base_hidden), chunk)
