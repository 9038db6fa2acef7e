"""How far each layer of the body moved from the base, by its own length. Sums up what `findings.body` has measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxgraft.families.base import Family
from voxgraft.findings.body import BodyComparison, TensorChange, relative_distance

__all__ = ["LayerChange", "summarize_layers"]


@dataclass(frozen=True, slots=True)
class LayerChange:
    """The tensors of one part, or of one numbered layer of it, together."""

    part: str
    number: int | None
    tensors: int
    changed: int
    distance: float
    """Length of the change by length of the base's values; infinite where values are not finite."""

    @property
    def name(self) -> str:
        return self.part if self.number is None else f"{self.part} {self.number}"

    def to_json(self) -> dict[str, Any]:
        finite = self.distance if self.distance != float("inf") else None
        return {"layer": self.name, "tensors": self.tensors, "changed": self.changed, "distance": finite}


def summarize_layers(body: BodyComparison, family: Family) -> list[LayerChange]:
    """Parts in the order of the base's tensors, their layers by number."""
    groups: dict[tuple[str, int | None], list[TensorChange]] = {}
    for one in body.changes:
        part = family.get_part_name(one.name)
        if part is not None:
            groups.setdefault((part, _parse_layer_number(one.name)), []).append(one)
    order = {part: at for at, part in enumerate(dict.fromkeys(part for part, _ in groups))}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -1 if item[0][1] is None else item[0][1]))
    return [_summarize_layer(part, number, changes) for (part, number), changes in ordered]


def _summarize_layer(part: str, number: int | None, changes: list[TensorChange]) -> LayerChange:
    changed = sum(one.how in ("changed", "form") for one in changes)
    finite = all(one.is_finite for one in changes)
    return LayerChange(part, number, len(changes), changed, relative_distance(changes) if finite else float("inf"))


def _parse_layer_number(name: str) -> int | None:
    return next((int(word) for word in name.split(".") if word.isdecimal() and len(word) < 5), None)
