"""The lines that training opens with: what is trained, on what, from where, and what stays as it is."""

from __future__ import annotations

from voxgraft.course import Course
from voxgraft.nn.frozen import trainable_report
from voxgraft.training.loop import Loop

__all__ = ["opening_lines"]


def opening_lines(course: Course, loop: Loop, start: int) -> list[str]:
    """A dozen lines, from the parts themselves."""
    card, options = course.graft.card, course.options
    model = loop.stepper.trained.model
    report = trainable_report(model)
    clips = sum(len(clips) for clips in course.train)
    per_step = max(1, len(course.stream.step(start + 1)))
    hours = sum(info.seconds for clips in course.train for info in clips.infos[: len(clips)]) / 3600
    return [
        f"run: {course.run.path}, mode {options.mode}{' (full body)' if options.full_body else ''}",
        f"base: {card.base['checkpoint']}, sha256 {card.base['checkpoint_sha256'][:12]}, {course.family.name}",
        f"tokenizer: {card.tokenizer}, sha256 {card.tokenizer_sha256[:12]}, language {card.language}",
        *report.lines(),
        f"device: {course.device}, {options.precision}, {loop.stepper.group.world_size} process(es)",
        f"data: {clips:,} clips, {hours:.1f} h; held out: "
        + ", ".join(f"{len(v.items):,} clips of {name}" for name, v in loop.validations.items()),
        f"step: {options.tokens_per_step:,} positions, about {per_step:,} clips, packs of {options.pack_tokens:,}; "
        f"{course.stream.steps_per_epoch:,.1f} steps a pass",
        f"steps: {start:,} done, {options.steps:,} in all ({course.stream.epoch_of(options.steps):.1f} passes)",
    ]
