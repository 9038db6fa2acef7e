"""IndexTTS-2's s2mel: the original's arrays stage by stage, clips that do not change in a batch, strict files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support import s2mel as golden
from tests.support.checkpoint_files import saved
from tests.support.shared import difference, golden_state
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError
from voxgraft.models.indextts2.dit import DiTSize
from voxgraft.models.indextts2.encoder import SemanticCodec, SemanticCodecSize
from voxgraft.models.indextts2.s2mel import (
    FlowPrompt,
    LengthRegulator,
    S2Mel,
    S2MelSize,
    count_target_frames,
    is_optional_tensor,
    s2mel_shapes,
    stretch_index,
)

# The golden README recommends 5e-5, 2e-4 and 1e-4; rounding alone is below half of each.
CONTENT_LIMIT, ESTIMATOR_LIMIT, MEL_LIMIT = 2e-5, 1e-4, 5e-5
SMALL = S2MelSize(DiTSize(width=32, heads=2, layers=3, mlp=48, content=16, style=12, wavenet_layers=2), (24, 16, 8, 20))


def random_model(seed: int = 0) -> S2Mel:
    torch.manual_seed(seed)
    model = S2Mel(SMALL)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    for name, parameter in model.named_parameters():
        if name.endswith("project_layer.bias"):
            parameter[: len(parameter) // 2] += 1
    return model


def random_prompt(frames: int, seed: int) -> FlowPrompt:
    draw = torch.Generator().manual_seed(seed)
    return FlowPrompt(
        torch.randn(80, frames, generator=draw) * 2 - 5,
        torch.randn(frames, SMALL.dit.content, generator=draw),
        torch.randn(SMALL.dit.style, generator=draw),
    )


@pytest.mark.parametrize("kind", ["small", "full"])
def test_every_published_name_is_read_or_known_to_be_unread(kind: str) -> None:
    published, size = golden.shapes(f"s2mel_{kind}"), golden.size(kind)
    unread = {name for name in published if is_optional_tensor(name, size)}
    assert {name: shape for name, shape in published.items() if name not in unread} == s2mel_shapes(size)
    assert size == S2MelSize() if kind == "full" else size.dit.heads == 4
    if kind == "full":
        computed = {name for name in golden.names()["computed_not_formula"] if name.startswith("cfm.")}
        assert unread == set(golden.names()["never_read"]) | computed


@pytest.mark.parametrize(("kind", "utterance"), golden.CASES)
def test_content_and_regulator_are_the_originals(kind: str, utterance: str) -> None:
    arrays, model = golden.arrays(), golden.model(kind)
    latents = golden.latents(utterance)
    assert torch.equal(latents[:4, :4], torch.from_numpy(arrays[f"latents_{utterance}_first4x4"]))
    codec = SemanticCodec(SemanticCodecSize(width=8, mlp=8, layers=1))
    codec.load_state_dict(golden_state(golden.shapes("codec_quantizer")), strict=False)
    codes = torch.from_numpy(arrays[f"codes_{utterance}"])
    embedded, projected = codec.vq2emb(codes), model.gpt_layer(latents)
    content = model.embed_content(embedded, latents)
    reference = codec.vq2emb(torch.from_numpy(arrays[f"ref_codes_{utterance}"]))
    if kind == "small":
        assert difference(embedded[:, :32], arrays[f"small_vq2emb_{utterance}"]) < CONTENT_LIMIT
        assert difference(reference[:, :32], arrays[f"small_s_ref_{utterance}"]) < CONTENT_LIMIT
    assert difference(projected[:, :32], arrays[f"{kind}_gpt_layer_{utterance}"]) < CONTENT_LIMIT
    assert difference(content[:, :32], arrays[f"{kind}_s_infer_{utterance}"]) < CONTENT_LIMIT
    frames = count_target_frames(len(codes))
    assert frames == arrays[f"{kind}_target_length_{utterance}"].item()
    prompt_frames = len(arrays[f"{kind}_prompt_cond_{utterance}"])
    # Together in one batch, and yet each as the original gives it alone.
    own, prompt = model.length_regulator([content, reference], [frames, prompt_frames])
    assert difference(own, arrays[f"{kind}_cond_{utterance}"]) < CONTENT_LIMIT
    assert difference(prompt, arrays[f"{kind}_prompt_cond_{utterance}"]) < CONTENT_LIMIT


def test_the_frame_of_a_code_is_torchs_nearest_neighbour_for_every_count() -> None:
    for num_codes in range(1, 400):
        frames = count_target_frames(num_codes)
        assert frames == num_codes * 43 // 25
        places = torch.arange(num_codes, dtype=torch.float32)[None, None]
        wanted = nn.functional.interpolate(places, size=frames, mode="nearest")[0, 0].long()
        assert torch.equal(torch.from_numpy(stretch_index(num_codes, frames)), wanted)
    whole = np.arange(44) * 26 // 44
    assert not np.array_equal(stretch_index(26, 44), whole)


@pytest.mark.parametrize(("kind", "utterance"), golden.CASES)
def test_the_estimator_is_the_originals_inside_and_outside(kind: str, utterance: str) -> None:
    arrays, estimator = golden.arrays(), golden.model(kind).estimator
    prompt, content = golden.prompt(kind, utterance), golden.content(kind, utterance)
    num_prompt, num_frames = prompt.mel.shape[1], prompt.mel.shape[1] + len(content)
    x = golden.floats(f"x.{utterance}", (80, num_frames), float(np.sqrt(3)))
    assert torch.equal(x[:4, :4], torch.from_numpy(arrays[f"x_{utterance}_first4x4"]))
    x[:, :num_prompt] = 0
    mel = nn.functional.pad(prompt.mel.T, (0, 0, 0, len(content)))[None]
    whole = torch.cat([prompt.condition, content])[None]
    moment = torch.tensor([golden.TIMES[utterance]])
    norms, wavenet, final = (table[0] for table in estimator.times(moment))
    tables, rotary = (norms, wavenet, final), estimator.rotary(num_frames)
    seen: dict[str, Tensor] = {}

    def keep(name: str, *, transposed: bool = False) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_module: nn.Module, _given: object, found: Tensor) -> None:
            seen[name] = found[0].T if transposed else found[0]

        return hook

    layers = estimator.transformer.layers
    middle = len(layers) // 2
    places = {"layer_first": 0, "layer_middle": middle, "layer_first_skip": middle + 1, "layer_last": -1}
    hooks = [layers[place].register_forward_hook(keep(name)) for name, place in places.items()]
    hooks += [
        estimator.transformer.register_forward_hook(keep("transformer")),
        estimator.wavenet.register_forward_hook(keep("wavenet", transposed=True)),
        estimator.final_layer.register_forward_hook(keep("final_layer")),
        estimator.transformer.register_forward_pre_hook(lambda _module, given: seen.update(merged=given[0][0])),
        estimator.conv1.register_forward_pre_hook(lambda _module, given: seen.update(long_skip=given[0][0])),
    ]
    try:
        condition = estimator.condition(mel, whole, prompt.style[None])
        found = estimator(x.T[None], condition, tables, rotary)[0]
    finally:
        for hook in hooks:
            hook.remove()
    assert difference(found.T, arrays[f"{kind}_dit_cond_{utterance}"]) < ESTIMATOR_LIMIT
    rows = torch.from_numpy(arrays[f"{kind}_dit_rows_{utterance}"]).long()
    assert len(seen) == 9
    for name, states in seen.items():
        assert difference(states[rows, :16], arrays[f"{kind}_dit_{name}_{utterance}"]) < ESTIMATOR_LIMIT
    for name, embedder in (("t_embed", estimator.t_embedder), ("t_embed2", estimator.t_embedder2)):
        assert difference(embedder(moment)[0], arrays[f"{kind}_dit_{name}_{utterance}"]) < ESTIMATOR_LIMIT
    nothing = estimator.condition(torch.zeros_like(mel), torch.zeros_like(whole), torch.zeros(1, 192))
    free = estimator(x.T[None], nothing, tables, rotary)[0]
    assert difference(free.T, arrays[f"{kind}_dit_uncond_{utterance}"]) < ESTIMATOR_LIMIT


STEPS = [("small", "a", 25), ("small", "a", 4), ("small", "a", 1), ("small", "b", 25), ("small", "b", 4)]


@pytest.mark.long(fast="small-*")
@pytest.mark.parametrize(
    ("kind", "utterance", "steps"),
    [*STEPS, ("full", "a", 4), ("full", "a", 25)],
)
def test_the_solvers_mel_is_the_originals(kind: str, utterance: str, steps: int) -> None:
    prompt, content = golden.prompt(kind, utterance), golden.content(kind, utterance)
    (mel,) = golden.model(kind).solve([prompt], [content], [golden.noise(utterance)], steps)
    assert difference(mel, golden.arrays()[f"{kind}_mel_{steps}_{utterance}"]) < MEL_LIMIT


@pytest.mark.parametrize(("kind", "utterance"), golden.CASES)
def test_without_guidance_there_is_one_row(kind: str, utterance: str) -> None:
    prompt, content = golden.prompt(kind, utterance), golden.content(kind, utterance)
    (mel,) = golden.model(kind).solve([prompt], [content], [golden.noise(utterance)], 1, guidance=0.0)
    assert difference(mel, golden.arrays()[f"{kind}_mel_1_nocfg_{utterance}"]) < MEL_LIMIT


def test_a_clip_in_a_padded_batch_is_the_clip_alone_unlike_the_originals() -> None:
    """The original's padded batch moves the shorter clip by 0.77 in one call; ours gives both as if alone."""
    model, utterances = golden.model("small"), golden.UTTERANCES
    prompts = [golden.prompt("small", one) for one in utterances]
    contents = [golden.content("small", one) for one in utterances]
    mels = model.solve(prompts, contents, [golden.noise(one) for one in utterances], 4)
    for utterance, mel in zip(utterances, mels, strict=True):
        assert difference(mel, golden.arrays()[f"small_mel_4_{utterance}"]) < MEL_LIMIT


@pytest.mark.parametrize("lengths", [[(5, 9), (30, 2)], [(2, 1), (20, 40), (3, 50)], [(7, 7), (7, 7)]])
def test_batches_of_any_lengths_change_nothing(lengths: list[tuple[int, int]]) -> None:
    model = random_model()
    prompts = [random_prompt(frames, seed) for seed, (frames, _) in enumerate(lengths)]
    draw = torch.Generator().manual_seed(9)
    contents = [torch.randn(frames, SMALL.dit.content, generator=draw) for _, frames in lengths]
    noises = [torch.randn(80, sum(pair), generator=draw) for pair in lengths]
    together = model.solve(prompts, contents, noises, 3)
    for place, mel in enumerate(together):
        (alone,) = model.solve([prompts[place]], [contents[place]], [noises[place]], 3)
        assert mel.shape == (80, lengths[place][1])
        assert (mel - alone).abs().max() < 2e-5


def test_a_regulator_batch_of_any_lengths_changes_nothing() -> None:
    torch.manual_seed(1)
    regulator = LengthRegulator(20, 16)
    contents = [torch.randn(count, 20) for count in (1, 7, 31, 12)]
    frames = [count_target_frames(len(content)) for content in contents]
    for own, content, count in zip(regulator(contents, frames), contents, frames, strict=True):
        (alone,) = regulator([content], [count])
        assert (own - alone).abs().max() < 1e-5


def test_the_same_noise_gives_the_same_mel_and_other_noise_another() -> None:
    model, prompt = random_model(), random_prompt(6, 0)
    content = torch.randn(8, SMALL.dit.content)
    noises = [torch.randn(80, 14, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    first, again, other = (model.solve([prompt], [content], [noise], 2)[0] for noise in noises)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    changed = noises[0].clone()
    changed[:, :6] = 7.0  # the noise of the prompt part is thrown away
    assert torch.equal(model.solve([prompt], [content], [changed], 2)[0], first)


@pytest.mark.parametrize("utterance", golden.UTTERANCES)
def test_half_precision_is_near(utterance: str) -> None:
    """No golden array covers it: the mel may be a tenth of a neper off, and not all of it is."""
    prompt, content = golden.prompt("small", utterance), golden.content("small", utterance)
    model, noise = golden.model("small"), golden.noise(utterance)
    (exact,) = model.solve([prompt], [content], [noise], 4)
    (near,) = model.solve([prompt], [content], [noise], 4, dtype=torch.bfloat16)
    assert near.dtype == torch.float32
    assert 0 < float((near - exact).abs().mean()) < 0.02
    assert float((near - exact).abs().max()) < 0.2


def test_a_clip_beyond_the_positions_is_refused() -> None:
    model, prompt = random_model(), random_prompt(2, 0)
    with pytest.raises(AudioError) as caught:
        model.solve([prompt], [torch.zeros(16_383, SMALL.dit.content)], [torch.zeros(80, 16_385)])
    assert caught.value.code == "audio-too-long"


# ---- files ---------------------------------------------------------------------------------------------------------

SKIP = "cfm.estimator.transformer.layers"
CONFIG = {"s2mel": {"DiT": {"num_heads": 2}}}


def random_file() -> dict[str, Tensor]:
    """A small model as it is published: every name, weight norm and all."""
    draw = torch.Generator().manual_seed(3)
    tensors = {}
    for name, shape in s2mel_shapes(SMALL).items():
        fan = int(np.prod(shape[1:])) or 1
        tensors[name] = torch.randn(shape, generator=draw) * fan**-0.5
    for name in ("length_regulator.mask_token", "cfm.estimator.input_pos", "cfm.estimator.x_embedder.bias"):
        tensors[name] = torch.zeros(3)
    tensors["cfm.estimator.transformer.layers.0.skip_in_linear.bias"] = torch.zeros(SMALL.dit.width)
    return tensors


def nested(tensors: dict[str, Tensor], wrapper: str = "") -> dict[str, object]:
    net: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        table, _, rest = name.partition(".")
        net.setdefault(table, {})[wrapper + rest] = tensor
    return {"net": net, "optimizer": {"state": {0: {"exp_avg": torch.zeros(4)}}}, "iters": 7}


def spoken(model: S2Mel) -> Tensor:
    prompt = random_prompt(4, 1)
    return model.solve([prompt], [torch.ones(6, SMALL.dit.content)], [torch.ones(80, 10)], 2)[0]


def test_published_wrapped_and_flat_files_give_the_same_model(tmp_path: Path) -> None:
    tensors = random_file()
    saved(nested(tensors), tmp_path / "s2mel.pth")
    saved(nested(tensors, "module."), tmp_path / "parallel.pth")
    save_file(tensors, tmp_path / "s2mel.safetensors")
    wanted = spoken(S2Mel.from_tensors(SMALL, {name: tensors[name] for name in s2mel_shapes(SMALL)}))
    for name in ("s2mel.pth", "parallel.pth", "s2mel.safetensors"):
        model = S2Mel.load(tmp_path / name, CONFIG)
        assert model.size == SMALL
        assert torch.equal(spoken(model), wanted)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop("gpt_layer.1.bias"), "gpt_layer.1.bias"),
        (lambda tensors: tensors.update({"cfm.estimator.extra.weight": torch.zeros(2)}), "cfm.estimator.extra.weight"),
        (lambda tensors: tensors.update({"style_encoder.weight": torch.zeros(2)}), "style_encoder.weight"),
        (lambda tensors: tensors.pop(f"{SKIP}.2.skip_in_linear.bias"), f"{SKIP}.2.skip_in_linear.bias"),
        (lambda tensors: tensors.update({f"{SKIP}.1.skip_in_linear.x": torch.zeros(2)}), f"{SKIP}.1.skip_in_linear.x"),
        (
            lambda tensors: tensors.update({"cfm.estimator.conv2.weight": torch.zeros(81, 32, 1)}),
            "cfm.estimator.conv2.weight",
        ),
        (
            lambda tensors: tensors.update({"length_regulator.model.0.bias": torch.zeros(16, dtype=torch.int64)}),
            "length_regulator.model.0.bias",
        ),
    ],
    ids=[
        "missing",
        "unknown",
        "unknown table",
        "a skip that is read",
        "a skip that is none",
        "another shape",
        "whole numbers",
    ],
)
def test_a_file_that_is_no_whole_s2mel_is_refused_by_name(
    change: Callable[[dict[str, Tensor]], object], named: str, tmp_path: Path
) -> None:
    tensors = random_file()
    change(tensors)
    saved(nested(tensors), tmp_path / "s2mel.pth")
    with pytest.raises(CheckpointError) as caught:
        S2Mel.load(tmp_path / "s2mel.pth", CONFIG)
    assert caught.value.code == "tensors-mismatch"
    assert named in caught.value.finding.found


def test_heads_that_cannot_be_are_refused(tmp_path: Path) -> None:
    saved(nested(random_file()), tmp_path / "s2mel.pth")
    for heads in (3, 0, "8", 32):
        with pytest.raises(ConfigError) as caught:
            S2Mel.load(tmp_path / "s2mel.pth", {"s2mel": {"DiT": {"num_heads": heads}}})
        assert caught.value.code == "base-config"
