"""What the public trainers do, as a peer to measure against: transformers' body, padded rows, full logits, foreach AdamW.

Treated kindly: rows are padded at the end only, so that no attention mask is needed, and batches lie ready on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.models.chatterbox.model import T3
from voxgraft.models.speech_model import PackedBatch, PackedTokens, SpeechModel

__all__ = ["Peer", "hugging_face_body"]


def hugging_face_body(model: SpeechModel, attention: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """transformers' own module with the weights of our body."""
    import transformers

    if isinstance(model, T3):
        size = model.size
        config: Any = transformers.LlamaConfig(
            vocab_size=8,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.heads,
            intermediate_size=size.mlp,
            rms_norm_eps=1e-5,
            max_position_embeddings=131072,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        )
        kind: Any = transformers.LlamaModel
    else:
        body = model.body
        config = transformers.GPT2Config(
            vocab_size=8,
            n_positions=4096,
            n_embd=body.num_heads * body.head_width,
            n_layer=body.num_layers,
            n_head=body.num_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        kind = transformers.GPT2Model
    config._attn_implementation = attention
    with torch.device(model.device):
        made: nn.Module = kind(config)
    wanted = {name: value.float() for name, value in model.body.state_dict().items()}
    found = made.load_state_dict(wanted, strict=False)
    assert not found.unexpected_keys, found
    for name in found.missing_keys:  # GPT-2's own positions and tokens, which the published model has not
        made.get_parameter(name).data.zero_()
        made.get_parameter(name).requires_grad_(False)
    return made.to(dtype).train()


class Peer(nn.Module):
    """Our embeddings and heads around transformers' body, over padded rows."""

    def __init__(self, model: SpeechModel, attention: str) -> None:
        super().__init__()
        self.body = hugging_face_body(model, attention)
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
