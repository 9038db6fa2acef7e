"""What programs on top of transformers do, as peers to measure against: the public trainers, and a loop that speaks.

Treated kindly. The trainer (`Peer`) has padded rows, full logits and foreach AdamW; rows are padded at the end only, so
that no attention mask is needed, and batches lie ready on the device. The loop (`TransformersLoop`) is as fast as such a
loop gets: one forward pass of `LlamaModel` or `GPT2Model` per code, a cache that grows, our own sampling functions, and
a look at whether everybody has stopped after every code.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.models.base import code_position
from voxgraft.models.chatterbox.model import T3
from voxgraft.models.speech_model import PackedBatch, PackedTokens, SpeechModel, compute_hidden_states
from voxgraft.nn import backbones
from voxgraft.nn.backbones import Backbone, Gpt2Backbone, LlamaBackbone
from voxgraft.nn.decode import SamplingParams, apply_guidance, apply_repetition_penalty, filter_logits


def stock_body(body: Backbone, attention: str = "sdpa") -> Any:
    """The same weights in transformers' own module."""
    import transformers

    if isinstance(body, LlamaBackbone):
        size = body.size
        rope = {
            "rope_type": "llama3",
            "rope_theta": size.theta,
            "factor": backbones.ROPE_FACTOR,
            "low_freq_factor": backbones.ROPE_LOW,
            "high_freq_factor": backbones.ROPE_HIGH,
            "original_max_position_embeddings": backbones.ROPE_TRAINED_POSITIONS,
        }
        config = transformers.LlamaConfig(
            vocab_size=size.unused_rows, hidden_size=size.width, num_hidden_layers=size.layers,
            num_attention_heads=size.heads, num_key_value_heads=size.heads, intermediate_size=size.mlp,
            rms_norm_eps=size.eps, max_position_embeddings=131_072, rope_parameters=rope,
            attn_implementation=attention,
        )  # fmt: skip
        stock: Any = transformers.LlamaModel(config)
        stock.load_state_dict(body.state_dict(), strict=True)
        return stock
    assert isinstance(body, Gpt2Backbone)
    config = transformers.GPT2Config(
        vocab_size=1, n_positions=4096, n_embd=body.size.width, n_layer=body.size.layers, n_head=body.size.heads,
        layer_norm_epsilon=body.size.eps, activation_function="gelu_new", attn_implementation=attention,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    stock = transformers.GPT2Model(config)
    missing = stock.load_state_dict(body.state_dict(), strict=False)
    assert {name.split(".")[-1] for name in missing.missing_keys} <= {"weight", "bias", "masked_bias"}
    # Whoever makes the vectors adds positions: the module's own tables are neither used nor trained.
    for table in (stock.wpe, stock.wte):
        torch.nn.init.zeros_(table.weight)
        table.weight.requires_grad_(False)
    return stock


class Peer(nn.Module):
    """Our embeddings and heads around transformers' body, over padded rows."""

    def __init__(self, model: SpeechModel, attention: str) -> None:
        super().__init__()
        with torch.device(model.device):
            self.body = stock_body(model.body, attention).float().train()
        for name, child in list(model.body.named_children()):
            if child is model.body.blocks:  # theirs stands in for ours
                setattr(model.body, name, nn.ModuleList())
        self.model = model

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """The two mean losses. Vectors are made as in ours; the body sees rows padded to the longest."""
        model, offsets = self.model, batch.packing.offsets.long()
        vectors = torch.cat(
            [
                model.embed_conditions(batch.conditions).flatten(0, 1),
                model.embed_text(batch.text.ids, batch.text.positions, batch.silent),
                model.embed_speech(batch.speech.ids, batch.speech.positions),
            ]
        )[batch.order]
        rows = nn.utils.rnn.pad_sequence(list(torch.tensor_split(vectors, offsets[1:-1].cpu())), batch_first=True)
        hidden = self.body(inputs_embeds=rows, use_cache=False).last_hidden_state
        if not isinstance(model, T3):  # IndexTTS-2 has a norm of its own before its heads
            hidden = model.get_submodule("final_norm")(hidden)
        heads = (model.get_submodule(model.text_head_name), self._speech_head())
        text, speech = (
            self._loss(head, hidden, batch, part) for head, part in zip(heads, (batch.text, batch.speech), strict=True)
        )
        return text, speech

    def _speech_head(self) -> nn.Module:
        return self.model.get_submodule("speech_head" if isinstance(self.model, T3) else "mel_head")

    @staticmethod
    def _loss(head: nn.Module, hidden: Tensor, batch: PackedBatch, part: PackedTokens) -> Tensor:
        """All logits at once, padded like the rows, in float32."""
        rows, places = batch.packing.rows[part.scored], batch.packing.positions[part.scored]
        counts = torch.bincount(rows, minlength=len(hidden)).tolist()
        asked = nn.utils.rnn.pad_sequence(list(hidden[rows, places].split(counts)), batch_first=True)
        targets = nn.utils.rnn.pad_sequence(list(part.targets.split(counts)), batch_first=True, padding_value=-100)
        logits = head(asked).float()  # [B, longest, V]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def padded_batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Places of items, in the order in which they come, so many at a time."""
    return [list(range(at, min(at + size, len(lengths)))) for at in range(0, len(lengths), size)]


def prompt_vectors(model: SpeechModel, batch: PackedBatch) -> Tensor:
    """What the body is given for prompts of one length. [R, P, W]"""
    caught: list[Tensor] = []
    hook = model.body.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    with torch.no_grad():
        compute_hidden_states(model, batch)
    hook.remove()
    return caught[0].unflatten(0, (len(batch.packing.offsets) - 1, -1))


class TransformersLoop:
    """N utterances in the course of being spoken by transformers, for a model in the dtype of its weights."""

    def __init__(self, model: SpeechModel, stock: Any, vectors: Tensor, sampling: SamplingParams) -> None:
        from transformers import DynamicCache

        self.model, self.stock, self.sampling = model, stock, sampling
        self.cache = DynamicCache(config=stock.config)
        self.num_rows = len(vectors)
        self.num_streams = self.num_rows // (2 if sampling.guidance > 0 else 1)
        out = stock(inputs_embeds=vectors, past_key_values=self.cache, use_cache=True)
        self.logits = model.speech_logits(out.last_hidden_state[:, -1])  # [R, V]
        spec = model.spec
        self.heard = torch.zeros(self.num_streams, self.logits.shape[1], dtype=torch.bool, device=vectors.device)
        self.heard[:, list(spec.initial_penalized_codes)] = True
        ids = torch.arange(self.logits.shape[1], device=vectors.device)
        self.unreadable = (ids >= spec.num_codes) & (ids != spec.speech_stop)
        self.stopped = torch.zeros(self.num_streams, dtype=torch.bool, device=vectors.device)
        self.codes: list[Tensor] = []

    def run(self, num_codes: int, *, without_cudnn: bool = False) -> int:
        """Speak; the number of codes of each stream."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        with torch.no_grad(), sdpa_kernel(backends) if without_cudnn else nullcontext():
            for _ in range(num_codes):
                self.speak()
                if bool(self.stopped.all()):
                    break
                self.listen()
        return len(self.codes)

    def speak(self) -> None:
        """Draw the next codes."""
        logits = self.logits.float()
        if self.sampling.guidance > 0:
            logits = apply_guidance(logits, self.sampling.guidance)
        logits = apply_repetition_penalty(logits, self.heard, self.sampling.repetition_penalty)
        shares = filter_logits(logits.masked_fill(self.unreadable, -torch.inf), self.sampling).softmax(-1)
        code = torch.where(self.stopped, self.model.spec.speech_stop, torch.multinomial(shares, 1)[:, 0])
        self.heard.scatter_(1, code[:, None], True)
        self.stopped |= code == self.model.spec.speech_stop
        self.codes.append(code)

    def listen(self) -> None:
        """Feed them."""
        at = code_position(self.model.spec, len(self.codes) - 1, stock=self.sampling.stock)
        positions = torch.full_like(self.codes[-1], at)
        vectors = self.model.embed_speech(self.codes[-1], positions).repeat(self.num_rows // self.num_streams, 1)
        out = self.stock(inputs_embeds=vectors[:, None], past_key_values=self.cache, use_cache=True)
        self.logits = self.model.speech_logits(out.last_hidden_state[:, -1])
