"""Promise 1 in figures: new languages on several base tokenizers, ours and the community's merge, over one corpus.

    python -m benchmarks.prove_languages FOLDER --base chatterbox=FILE --base indextts2=FILE ... [--out FOLDER]

FOLDER holds base.jsonl ({"language", "text"} per line) and new/CODE.txt. Nine tenths of a new text are learnt from, the
rest is held out. Without FOLDER the texts that come with the package are used. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tests.support.tokenizers import community_merge
from voxgraft.config.run import VocabularySettings
from voxgraft.core.languages import is_letter
from voxgraft.core.results import Table
from voxgraft.graft.folder import load_base_tokenizer
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.tokenizers import TextCorpus, Tokenizer, load_proof_corpus, parse_tokenizer, prove, read_texts

LANGUAGES = ("am", "ti", "km", "vi", "yo", "sw")
HELD_OUT = 10
"""Every tenth sentence is not learnt from."""
COMMUNITY_PIECES = 6000
"""What the community merge adds, where the text is enough for it."""
Corpus = Sequence[tuple[str | None, str]]
Prepare = Callable[[str, str | None], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One language on one tokenizer, merged one way."""

    language: str
    tokenizer: str
    way: str
    sentences: int
    same: int
    base_unknown: int
    holds_tag: int
    changed: int
    new_rows: int
    unreachable: int
    unknown_letters: int
    """Occurrences of the language's own letters that became unknown, in the text that was learnt from."""
    unknown_symbols: int
    unknown_tokens: float
    """Share of unknown among all tokens of that text."""
    held_out_letters: int
    held_out_symbols: int
    any_letters: int
    """Unknown letters and marks of any script, strays included, in both texts: hangs on no idea of what is own."""
    held_out_unknown_tokens: float
    tokens_per_character_before: float
    tokens_per_character_after: float
    train_seconds: float
    prove_seconds: float
    findings: tuple[str, ...]


def main() -> None:
    """Measure, print the tables, and write table.md and table.json."""
    options = _options()
    corpus = _corpus(options.folder)
    bases = [_base(given) for given in options.base]
    rows: list[Row] = []
    for name, text_encoder in bases:
        prepare = cache(text_encoder.prepare_base)  # the same for every new language, and slow for Japanese
        for language in options.languages:
            texts = _texts(options.folder, language)
            for row in _measure(name, text_encoder, language, texts, (corpus, prepare)):
                print(_line(row), file=sys.stderr, flush=True)
                rows.append(row)
    page = _page(rows, len(corpus), bases)
    print(page)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(page, encoding="utf-8")
        (options.out / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="base.jsonl and new/CODE.txt; empty: the package's own")
    parser.add_argument("--base", action="append", required=True, metavar="FAMILY=FILE", help="a base tokenizer")
    parser.add_argument("--languages", nargs="+", default=LANGUAGES, metavar="CODE")
    parser.add_argument("--out", type=Path, help="folder for table.md and table.json")
    return parser.parse_args()


def _base(given: str) -> tuple[str, TextEncoder]:
    name, _, path = given.partition("=")
    family, tokenizer = load_base_tokenizer(Path(path), name)
    return f"{Path(path).name} ({tokenizer.kind})", TextEncoder.of(family, tokenizer, None, None)


def _corpus(folder: Path | None) -> Corpus:
    """The built-in corpus, and the folder's own."""
    found: list[tuple[str | None, str]] = list(load_proof_corpus())
    if folder is not None:
        with (folder / "base.jsonl").open(encoding="utf-8") as stream:
            found += [(entry["language"], entry["text"]) for entry in map(json.loads, stream)]
    return found


def _texts(folder: Path | None, language: str) -> TextCorpus:
    if folder is not None:
        return read_texts([folder / "new" / f"{language}.txt"])
    with resources.as_file(resources.files("voxgraft").joinpath(f"assets/demo/{language}.txt")) as path:
        return read_texts([path])


def _measure(
    name: str, base: TextEncoder, language: str, texts: TextCorpus, old: tuple[Corpus, Prepare]
) -> Iterator[Row]:
    """Our merge, and the community's in four ways where the base is a SentencePiece model."""
    learnt_from = tuple(text for at, text in enumerate(texts.sentences) if at % HELD_OUT)
    held_out = tuple(text for at, text in enumerate(texts.sentences) if at % HELD_OUT == 0)
    before = TextEncoder.of(base.family, base.base, None, language)
    start = time.process_time()
    ours = learn_language_pieces(before, TextCorpus(learnt_from), VocabularySettings()).grown
    seconds = time.process_time() - start
    yield _judged((name, "voxgraft", seconds), before, ours, (learnt_from, held_out), old)
    if base.base.kind == "bpe-json":
        return
    prepared = tuple(map(before.prepare, learnt_from))
    for way, candidate, given in (
        ("community, BPE on raw text", "bpe", learnt_from),
        ("community, BPE on prepared text", "bpe", prepared),
        ("community, unigram on raw text", "unigram", learnt_from),
        ("community, unigram on prepared text", "unigram", prepared),
    ):
        start = time.process_time()
        data = community_merge(base.base, given, base.base.size + COMMUNITY_PIECES, candidate)  # type: ignore[arg-type]
        theirs = parse_tokenizer(data, Path(f"{way}.model"))
        seconds = time.process_time() - start
        yield _judged((name, way, seconds), before, theirs, (learnt_from, held_out), old)


def _judged(
    head: tuple[str, str, float],
    before: TextEncoder,
    grown: Tokenizer,
    texts: tuple[tuple[str, ...], tuple[str, ...]],
    old: tuple[Corpus, Prepare],
) -> Row:
    name, way, train_seconds = head
    learnt_from, held_out = texts
    corpus, prepare = old
    text_encoder = TextEncoder.of(before.family, before.base, grown, before.language)
    start = time.process_time()
    proof = prove.prove_tokenizer(before.base, grown, corpus, prepare, text_encoder.new_text(learnt_from))
    seconds = time.process_time() - start
    rest = text_encoder.new_text(held_out)
    after, unknown = prove.measure_coverage(grown, rest)
    letters = prove.find_unknown_letters(grown, proof.unknown_characters, text_encoder.new_text(learnt_from))
    rest_letters = prove.find_unknown_letters(grown, unknown, rest)
    assert proof.before is not None
    assert proof.after is not None
    return Row(
        language=before.language or "",
        tokenizer=name,
        way=way,
        sentences=proof.counts.total,
        same=proof.counts.same,
        base_unknown=proof.counts.base_unknown,
        holds_tag=proof.counts.holds_tag,
        changed=proof.counts.changed,
        new_rows=grown.size - before.base.size,
        unreachable=len(proof.unreachable),
        unknown_letters=sum(proof.unknown_characters[sign] for sign in letters),
        unknown_symbols=sum(n for sign, n in proof.unknown_characters.items() if sign not in letters),
        unknown_tokens=proof.after.unknown_share,
        held_out_letters=sum(unknown[sign] for sign in rest_letters),
        held_out_symbols=sum(n for sign, n in unknown.items() if sign not in rest_letters),
        any_letters=sum(
            n for part in (proof.unknown_characters, unknown) for sign, n in part.items() if is_letter(sign)
        ),
        held_out_unknown_tokens=after.unknown_share,
        tokens_per_character_before=proof.before.tokens_per_character,
        tokens_per_character_after=proof.after.tokens_per_character,
        train_seconds=train_seconds,
        prove_seconds=seconds,
        findings=tuple(finding.code for finding in proof.findings),
    )


COLUMNS = (
    "language",
    "base sentences",
    "same",
    "base had unknowns",
    "changed",
    "new rows",
    "unreachable",
    "unknown letters",
    "unknown symbols",
    "held out: letters",
    "held out: symbols",
    "letters of any script, both texts",
    "tokens per character",
    "CPU seconds",
)


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (row.sentences, row.same, row.base_unknown, row.changed, row.new_rows, row.unreachable)
    unknown = (row.unknown_letters, row.unknown_symbols, row.held_out_letters, row.held_out_symbols, row.any_letters)
    length = f"{row.tokens_per_character_before:.3f} -> {row.tokens_per_character_after:.3f}"
    return (row.language, *(f"{n:,}" for n in (*numbers, *unknown)), length, f"{row.train_seconds:.1f}")


def _line(row: Row) -> str:
    return f"{row.tokenizer} {row.way}: {' '.join(_cells(row))} {' '.join(row.findings)}"


def _page(rows: Sequence[Row], num_sentences: int, bases: Sequence[tuple[str, TextEncoder]]) -> str:
    lines = [f"# Promise 1 over {num_sentences:,} sentences of base languages", ""]
    for name, _ in bases:
        for way in dict.fromkeys(row.way for row in rows if row.tokenizer == name):
            chosen = [row for row in rows if (row.tokenizer, row.way) == (name, way)]
            table = Table(COLUMNS, tuple(map(_cells, chosen)))
            lines += [f"## {name}, {way}", "", *_markdown(table), ""]
            changed = ", ".join(f"{row.language} {_share(row)}" for row in chosen)
            unknown = ", ".join(f"{row.language} {row.held_out_unknown_tokens:.2%}" for row in chosen)
            lines += [f"Changed among sentences that the base spells in full: {changed}.  "]
            lines += [f"Unknown among tokens of held-out text: {unknown}.", ""]
    return "\n".join(lines)


def _share(row: Row) -> str:
    clean = row.same + row.changed
    return f"{row.changed / clean:.2%}" if clean else "none"


def _markdown(table: Table) -> list[str]:
    rule = [("---:" if table.numeric(at) else "---") for at in range(len(table.columns))]
    return [f"| {' | '.join(map(str, cells))} |" for cells in (table.columns, rule, *table.rows)]


if __name__ == "__main__":
    main()
