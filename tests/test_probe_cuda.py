"""Packs as large as a CUDA device has room for: found, trained with, and the same after a resume. Skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.support.families import PUBLISHED
from tests.support.trainers import Place
from tests.test_cuda_graphs import MODES, Made, on_device
from voxgraft.core.errors import ConfigError
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.models import get_family
from voxgraft.models.base import Clip
from voxgraft.models.generate import GenerationPrompt, SpeechGenerator
from voxgraft.training.step import fit_microbatch_tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def capped() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    return {name: Place.make(name, tmp_path_factory.mktemp(name)) for name in PUBLISHED}


def take_what_is_left() -> list[torch.Tensor]:
    """Forbid torch to ask the device for more, and fill what it has asked for already; held as long as the list is."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1])
    taken = []
    for size in (1 << power for power in range(24, 8, -1)):
        try:
            while True:
                taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            continue
    return taken


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_with_room_for_all_a_step_is_one_pack_and_trains(
    places: dict[str, Place], name: str, mode: str, compiled: bool
) -> None:
    made = Made(places[name], on_device(MODES[mode], compile=compiled))
    found = fit_microbatch_tokens(made.stepper, made.stream)
    assert found == made.stepper.options.batch_tokens + made.stream.longest[0]
    before = made.everything()
    assert all(value == value for value in made.steps(1, 3))
    assert any(not torch.equal(value, before[key]) for key, value in made.everything().items())


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_was_known_is_taken_and_gives_the_same_bits_again(places: dict[str, Place], name: str) -> None:
    options = on_device(MODES["gated"], compile=True, deterministic=True)
    try:
        first, second = Made(places[name], options), Made(places[name], options)
        found = fit_microbatch_tokens(first.stepper, first.stream)
        assert fit_microbatch_tokens(second.stepper, second.stream, known_tokens=found) == found
        assert first.steps(1, 4) == second.steps(1, 4)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_device_without_room_for_the_longest_clip_is_refused(places: dict[str, Place], capped: None) -> None:
    made = Made(places["chatterbox"], on_device(MODES["gated"], compile=True))
    taken = take_what_is_left()
    with pytest.raises(ConfigError, match="memory-too-small"):
        fit_microbatch_tokens(made.stepper, made.stream)
    assert taken, "nothing was left to take, so that the cap alone refused"


def test_a_kept_speaker_speaks_with_the_weights_of_the_last_step(places: dict[str, Place]) -> None:
    place, kind = places["chatterbox"], get_family("chatterbox")
    options = on_device(MODES["merged-full"], compile=True, lr_rows=0.05, lr_adapter=0.05, lr_backbone=0.05)
    made = Made(place, options)
    clips = open_clip_dataset(place.folder / "train")
    voice = kind.condition(Clip(clips.codes(0), clips.voice(0)))
    prompts = [GenerationPrompt((1, 2, 3, 4), voice, seed) for seed in range(4)]
    sampling = replace(kind.upstream_sampling(), max_codes=24)
    kept = SpeechGenerator(made.trained.model)
    first = kept.speak(prompts, sampling)
    made.steps(1, 3)
    assert kept.graphs, "no graph was kept, so that nothing is shown"
    assert kept.speak(prompts, sampling) == SpeechGenerator(made.trained.model).speak(prompts, sampling) != first
