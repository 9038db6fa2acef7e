"""What `show` tells of one base: for people on one screen, and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import Finding
from voxgraft.families.description import ModelSize
from voxgraft.results import Line, Table, style_line
from voxgraft.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class BasePartSize:
    """One part of the model, and how large it is."""

    part: str
    tensors: int
    values: int


@dataclass(frozen=True, slots=True)
class BaseFileStatus:
    """A file of the base, what it is needed for (nothing: optional), and whether it is there."""

    name: str
    what: str
    needed_for: tuple[str, ...]
    there: bool


@dataclass(frozen=True, slots=True)
class BaseReport:
    """Everything that looking at a base gives; exit 1 if something is wrong with it."""

    family: str
    place: Path
    release: str
    languages: tuple[str, ...]
    others: tuple[str, ...]
    """Checkpoints of other releases in the same folder."""
    checkpoint: str
    format: str
    parts: tuple[BasePartSize, ...]
    dtypes: dict[str, int]
    """Tensors by number format."""
    num_bytes: int
    num_aliases: int
    """Second names of tensors, which are passed over."""
    size: ModelSize | None
    """None where the tensors make no whole model; the findings say why."""
    text_rows: dict[str, int]
    spare_rows: int
    tokenizer: Tokenizer | None
    files: tuple[BaseFileStatus, ...]
    fingerprint: str | None
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        return 1 if any(item.level == "error" for item in self.findings) else 0

    @property
    def total_size(self) -> BasePartSize:
        tensors, values = (sum(getattr(part, name) for part in self.parts) for name in ("tensors", "values"))
        return BasePartSize("all", tensors, values)

    def to_json(self) -> dict[str, Any]:
        size, tokenizer = self.size, self.tokenizer
        return {
            "family": self.family,
            "release": self.release,
            "place": str(self.place),
            "checkpoint": {
                "file": self.checkpoint,
                "format": self.format,
                "tensors": self.total_size.tensors,
                "values": self.total_size.values,
                "bytes": self.num_bytes,
                "dtypes": self.dtypes,
                "aliases": self.num_aliases,
            },
            "size": {"width": size.width, "layers": size.layers, "heads": size.heads} if size else None,
            "parts": [asdict(part) for part in self.parts],
            "text_rows": self.text_rows,
            "spare_rows": self.spare_rows,
            "tokenizer": _tokenizer_to_json(tokenizer) if tokenizer else None,
            "languages": list(self.languages),
            "others": list(self.others),
            "files": [asdict(file) for file in self.files],
            "fingerprint": self.fingerprint,
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [style_line((f"{self.family}, {self.release}", "bold"), f": {self.place}")]
        lines += [self._parts_table(), self._size_line(), self._rows_line()]
        if self.tokenizer is not None:
            kind, pieces = self.tokenizer.kind, f"{self.tokenizer.size:,} pieces"
            lines.append(f"tokenizer: {kind}, {pieces}, sha256 {self.tokenizer.sha256}")
        lines.append(f"languages ({len(self.languages)}): {' '.join(self.languages)}")
        if self.others:
            lines.append(f"also in this folder: {', '.join(self.others)} (shown when the file itself is named)")
        if self.fingerprint is not None:
            lines.append(f"fingerprint: {self.fingerprint}")
        lines.append(self._files_table())
        for item in self.findings:
            first, *rest = item.lines()
            lines += [style_line((first, "bold red" if item.level == "error" else "yellow")), *rest]
        return [*lines, self._verdict()]

    def _parts_table(self) -> Table:
        whole = max(self.total_size.values, 1)
        rows = (
            (part.part, f"{part.tensors:,}", f"{part.values:,}", f"{100 * part.values / whole:.1f} %")
            for part in (*self.parts, self.total_size)
        )
        return Table(("part", "tensors", "values", "share"), tuple(rows))

    def _size_line(self) -> str:
        size = self.size
        line = f"size: width {size.width:,}, layers {size.layers}, heads {size.heads}; " if size else ""
        dtypes = ", ".join(f"{dtype} ({count:,} tensors)" for dtype, count in self.dtypes.items())
        aliases = f"; {self.num_aliases:,} second names are passed over" if self.num_aliases else ""
        return f"{line}{dtypes}, {self.num_bytes:,} bytes, {self.format}{aliases}"

    def _rows_line(self) -> str:
        counts = sorted(set(self.text_rows.values()))
        rows = " or ".join(f"{count:,}" for count in counts) or "none"
        spare = f", of which {self.spare_rows} is a spare that no text indexes" if self.spare_rows else ""
        return f"text rows: {rows}{spare}"

    def _files_table(self) -> Table:
        rows = []
        for file in self.files:
            style = "green" if file.there else "yellow" if file.needed_for else ""
            state = style_line(("there" if file.there else "missing", style))
            rows.append((file.name, state, ", ".join(file.needed_for) or "optional", file.what))
        return Table(("file", "", "needed for", "what it is"), tuple(rows))

    def _verdict(self) -> Line:
        if self.findings:
            number = len(self.findings)
            return style_line((f"{number} finding{'s' * (number != 1)}", "bold red" if self.exit_code else "yellow"))
        lacking = {
            purpose: [file.name for file in self.files if purpose in file.needed_for and not file.there]
            for purpose in ("grafting", "preparing", "speaking")
        }
        whole = [purpose for purpose, names in lacking.items() if not names]
        missing = [f"{len(names)} missing for {purpose}" for purpose, names in lacking.items() if names]
        found = [f"all files for {', '.join(whole)} are there"] if whole else []
        return style_line(("; ".join([*found, *missing]), "yellow" if missing else "bold green"))


def _tokenizer_to_json(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "file": tokenizer.path.name,
        "kind": tokenizer.kind,
        "pieces": tokenizer.size,
        "sha256": tokenizer.sha256,
    }
