"""The one text front end: text rules of the language, the family's own front, the tokenizer that the language chooses.

Learning pieces, preparing data, training, samples, synthesis, evaluation, exports and the proof all come here. Text of
a base language is always encoded by the base's own tokenizer and never normalized; rules and the extended tokenizer are
for the new language alone. A text may have spans in other languages (`[en]Hello[/en]`), each encoded by its language.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from voxgraft.config.run import VocabularySettings
from voxgraft.core import progress
from voxgraft.core.errors import Finding, TextError, TokenizerError, finding
from voxgraft.core.files import parse_json, text_lines
from voxgraft.core.languages import count_scripts, find_exemplar
from voxgraft.text import TextFamily, TextFrontend
from voxgraft.text.spans import SpanError, find_spans, join_spans, rewrite_parts, split_seams, split_spans
from voxgraft.tokenizers import TextCorpus, Tokenizer, TokenizerAdditions, load_proof_corpus, read_user_corpus

if TYPE_CHECKING:
    from voxgraft.text.normalize import TextRules
    from voxgraft.tokenizers.prove import NewLanguageText, TokenizerProof
    from voxgraft.tokenizers.train import LearnedAdditions

# Normalizers, and what learns and proves tokenizers, are imported on use: a base that only speaks needs none of them.

# With a smaller share of letters in the language's own script, the texts are of another language.
_MIN_OWN_SCRIPT_SHARE = 0.3
_MIN_SENTENCES = 100
# Single sentences in another script are names and quotations; from this share on they are another language.
_MAX_OTHER_SCRIPT_SHARE = 0.05
_MIN_OTHER_SCRIPT_SENTENCES = 2
# Of a sentence with fewer letters (an abbreviation, a unit) the script says nothing.
_MIN_SCRIPT_LETTERS = 5
# The place behind the bracket of something that looks like a tag.
_LANGUAGE_TAG_START = re.compile(r"(?<=\[)(?=[a-z]{2,3}(?:-[a-z0-9]+)*\])")

# Between and around spans: what makes no sentence of another language. Marks of other scripts need its text rules.
_NO_WORDS = re.compile(r"[\s.,!?;:…'\"-]*")


class EncodedText(NamedTuple):
    """The ids of a text, and what they mean for the gate of an adapter."""

    ids: list[int]
    language: str | None
    """Selects the gate: the new language if any part of the text is in it, else that of the sentence."""
    closed: list[bool] | None = None
    """By id: whether the gate is closed there, because the id is of a base language; None if it is everywhere alike."""


def check_text_language(language: str, sentences: Sequence[str]) -> list[Finding]:
    """An error for texts in another script than the language has, a warning for some in it or for very few texts."""
    findings = check_text_script(language, sentences)
    if len(sentences) < _MIN_SENTENCES:
        count = f"{len(sentences):,} sentence{'s' if len(sentences) != 1 else ''}"
        findings.append(finding("text-few", f"the texts contain {count}", expected=f"{_MIN_SENTENCES} or more"))
    return findings


def check_text_script(language: str, sentences: Sequence[str]) -> list[Finding]:
    """An error if hardly any letter is in a script of the language, a warning if that holds for some sentences.

    Nothing for a language whose script is not known, and nothing between languages of one script.
    """
    entry = find_exemplar(language)
    own = count_scripts(entry.letters) if entry else {}
    if entry is None or not own:
        return []
    letters: Counter[str] = Counter()
    others: list[str] = []
    for sentence in sentences:
        # Words in spans are of another language, and say so.
        text = "".join(part for code, part in find_spans(sentence) or [(None, sentence)] if code is None)
        counts = Counter(map(_script_of_letter, text))
        del counts[""]
        letters.update(counts)
        num_own = sum(counts[script] for script in own)
        if counts.total() >= _MIN_SCRIPT_LETTERS and num_own < _MIN_OWN_SCRIPT_SHARE * counts.total():
            others.append(sentence)
    expected = f"mostly {' and '.join(own)}, the script of {entry.name}"
    share = sum(letters[script] for script in own) / max(1, letters.total())
    if letters and share < _MIN_OWN_SCRIPT_SHARE:
        seen = ", ".join(f"{count / letters.total():.0%} {script}" for script, count in letters.most_common(3))
        return [finding("text-other-script", f"the letters of the texts are {seen}", expected=expected)]
    if len(others) >= max(_MIN_OTHER_SCRIPT_SENTENCES, _MAX_OTHER_SCRIPT_SHARE * len(sentences)):
        found = f"{len(others):,} of {len(sentences):,} texts are in another script, the first {others[0]!r:.60}"
        return [finding("text-mixed-scripts", found, expected=expected)]
    return []


@cache
def _script_of_letter(character: str) -> str:
    """The script of a letter; empty for signs, digits and what all scripts share."""
    return next(iter(count_scripts(character)), "")


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """One base, and the new language with its extended tokenizer if there is one."""

    family: TextFamily
    front: TextFrontend
    base: Tokenizer
    grown: Tokenizer | None = None
    language: str | None = None
    stated_rules: TextRules | None = None
    """How text of the new language is normalized before the front sees it; None: not at all."""

    @classmethod
    def of(
        cls,
        family: TextFamily,
        base: Tokenizer,
        grown: Tokenizer | None,
        language: str | None,
        rules: TextRules | None = None,
    ) -> TextEncoder:
        """The front is that of the base's tokenizer file. `rules` are those of a graft; without them, the language's
        own of this voxgraft."""
        if rules is None and language:
            from voxgraft.text.normalize import build_text_rules

            rules = build_text_rules(language)
        return cls(family, family.front(base.path), base, grown, language, rules)

    @property
    def rules(self) -> TextRules:
        """The text rules; those of a base alone change nothing."""
        from voxgraft.text.normalize import NO_RULES, TextRules

        return self.stated_rules or TextRules(NO_RULES)

    def is_new_language(self, language: str | None) -> bool:
        """Whether a code, in any case, is that of the new language."""
        return language is not None and self.language is not None and language.lower() == self.language.lower()

    @property
    def tag(self) -> str | None:
        """The new language's tag, where the family has tags."""
        return self.family.tag(self.language) if self.language else None

    @property
    def base_languages(self) -> tuple[str, ...]:
        """Languages that a span may have beside the new one."""
        return self.front.languages or self.family.languages

    def is_span_language(self, code: str) -> bool:
        """Whether a span may be in this language; any case."""
        return self.is_new_language(code) or code.lower() in map(str.lower, self.base_languages)

    def require_spans(self, text: str, where: str | Path = "") -> None:
        """Raise if a text has markers of spans that cannot be read; `encode` would read them letter by letter."""
        try:
            split_spans(text, self.is_span_language)
        except SpanError as error:
            codes = ", ".join(dict.fromkeys([*([self.language] if self.language else []), *self.base_languages]))
            expected = f"{error.expected}; languages: {codes}"
            found = f"{text!r:.80}, character {error.position}: {error.found}"
            raise TextError("text-span", found, expected=expected, where=where) from None

    def split(self, text: str, language: str | None) -> tuple[str | None, list[tuple[str | None, str]]]:
        """The language of a sentence, and its parts, each with its language; neighbours differ.

        A sentence whose words are all in spans has the language of the first span.
        """
        found = find_spans(text, self.is_span_language)
        if found is None:
            return language, [(language, text)]
        codes = {code.lower(): code for code in (*self.base_languages, self.language, language) if code}
        main = language
        if all(_NO_WORDS.fullmatch(part) for code, part in found if code is None):
            main = codes[next(code for code, _ in found if code is not None)]
        parts: list[tuple[str | None, str]] = []
        for code, part in found:
            own = main if code is None else codes[code]
            if parts and parts[-1][0] == own:
                parts[-1] = (own, parts[-1][1] + part)
            else:
                parts.append((own, part))
        return main, parts

    def own_text(self, text: str) -> str:
        """What a sentence says in the new language: all of it, unless it has spans of other languages."""
        _, parts = self.split(text, self.language)
        return text if len(parts) == 1 else " ".join(part for code, part in parts if self.is_new_language(code))

    def prepare(self, text: str) -> str:
        """Text of the new language as the tokenizer reads it, without the tag and without spans of other languages."""
        return self.front.prepare(self.front.clean(self.rules.apply(self.own_text(text))), None)

    def normalize_lines(self, text: str, language: str | None) -> str:
        """Text of the new language by its rules, line by line, so that long text can be split before it is spelled."""

        def normalize(code: str | None, part: str) -> str:
            if self.grown is None or not self.is_new_language(code or language):
                return part
            return "\n".join(self.rules.normalizer.normalise(line).text for line in text_lines(part))

        return rewrite_parts(text, self.is_span_language, normalize)

    def map_chunks(
        self, text: str, language: str | None, split: Callable[[str], list[tuple[str, float]]]
    ) -> list[tuple[str, float]]:
        """Chunks that `split` makes of the words of a text, with the markers of the spans that each is in.

        `split` may lose spaces and nothing else.
        """
        _, parts = self.split(text, language)
        words = "".join(part for _, part in parts)
        codes = [code for code, part in parts for _ in part]
        chunks, end = [], 0
        for chunk, pause in split(words):
            begin = words.index(chunk, end)
            end = begin + len(chunk)
            groups = groupby(zip(codes[begin:end], chunk, strict=True), key=lambda pair: pair[0])
            own = [(code, "".join(letter for _, letter in letters)) for code, letters in groups]
            # A space at the end of a span stays in it: it is of no language. Nor are marks, and a span needs words.
            speaking = [code for code, part in own if any(map(str.isalnum, part))] or [language]
            joined: list[tuple[str | None, str]] = []
            for code, part in own:
                if not any(map(str.isalnum, part)):
                    code = joined[-1][0] if joined else speaking[0]
                if joined and joined[-1][0] == code:
                    joined[-1] = (code, joined[-1][1] + part)
                else:
                    joined.append((code, part))
            chunks.append((join_spans(joined, language), pause))
        return chunks

    def prepare_base(self, text: str, language: str | None) -> str:
        """Text of a base language, with its tag where the base has one."""
        tag = self.family.tag(language) if language else None
        known = tag is not None and self.base.has_control_token(tag)
        return self.front.prepare(self.front.clean(text), language if known else None)

    def encode(self, text: str, language: str | None) -> list[int]:
        """Ids of a text. Language tags that a user typed inside text of the new language are broken up."""
        return self.encode_text(text, language).ids

    def encode_text(self, text: str, language: str | None) -> EncodedText:
        """Ids of a text whose spans are encoded as their languages are, one after another.

        Only the sentence has a tag: no base has ever seen a second one in the middle of a text.
        """
        main, parts = self.split(text, language)
        has_new = self.grown is not None and any(self.is_new_language(code) for code, _ in parts)
        if len(parts) == 1:
            [(_, text)] = parts
            if self.grown is None or not has_new:
                return EncodedText(self.base.encode(self.prepare_base(text, main)), main)
            return EncodedText(self._tag_ids(main) + self._encode_new(self.prepare(text)), main)
        ids = self._tag_ids(main)
        of_base = has_new and not self.is_new_language(main)
        closed = [of_base] * len(ids)
        space, spaced = self.base.encode(self.front.prepare(" ", None)), False
        spoken: list[tuple[str | None, bool, str]] = []  # language, whether a space is before it, words
        for code, part in parts:
            before, words, after = split_seams(part)
            if self.grown is not None and self.is_new_language(code):
                words = self.rules.normalizer.normalise(words).text
            spaced = spaced or bool(before)
            if words.strip():
                spoken.append((code, spaced and bool(spoken), words))
                spaced = False
            spaced = spaced or bool(after)
        for number, (code, spaced, words) in enumerate(spoken):
            is_new, is_last = self.grown is not None and self.is_new_language(code), number + 1 == len(spoken)
            prepared = self.front.prepare_part(words, code, is_first=not number, is_last=is_last)
            if spaced and not words.startswith(self.front.closed_up):
                ids += space
                closed += [of_base] * len(space)
            tokenizer = self.grown if is_new and self.grown is not None else self.base
            # Glued to the part before it, a word does not begin here (`[en]computer[/en]ዎች`).
            encode = tokenizer.encode if spaced or not number else tokenizer.encode_exact
            own = self._encode_new(prepared, encode) if is_new else encode(prepared)
            ids += own
            closed += [has_new and not is_new] * len(own)
        return EncodedText(ids, self.language if has_new else main, closed if any(closed) else None)

    def _tag_ids(self, language: str | None) -> list[int]:
        """The tag in front of a sentence of this language, where the family has tags and the base knows this one."""
        is_new = self.grown is not None and self.is_new_language(language)
        tag = self.family.tag(language) if language else None
        tokenizer = self.grown if is_new and self.grown is not None else self.base
        if tag is None or not (is_new or tokenizer.has_control_token(tag)):
            return []
        return [tokenizer.ids[tag]] if tokenizer.has_control_token(tag) else tokenizer.encode(tag)

    def _encode_new(self, prepared: str, encode: Callable[[str], list[int]] | None = None) -> list[int]:
        """Prepared text of the new language, with tags that a user typed broken up."""
        assert self.grown is not None
        encode = encode or self.grown.encode
        if self.tag is None:
            return encode(prepared)
        # Cut behind the bracket: letters and brackets never share a piece, so the spelling is as without the tag.
        return [token for part in _LANGUAGE_TAG_START.split(prepared) for token in encode(part)]

    def new_text(self, sentences: tuple[str, ...]) -> NewLanguageText:
        """The new language's sentences in the form that `prove` takes."""
        from voxgraft.text.normalize import NO_RULES, TextRules
        from voxgraft.tokenizers.prove import NewLanguageText

        entry = find_exemplar(self.language) if self.language else None
        letters = entry.letters if entry else ""
        without_rules = replace(self, stated_rules=TextRules(NO_RULES))
        return NewLanguageText(sentences, self.prepare, self.tag, letters, without_rules.prepare)


def text_rules_identity(rules: TextRules) -> str:
    """Text rules as a set states them; empty for texts that were read as they are, as in sets from before."""
    return "" if rules.is_raw else rules.identity


def learn_language_pieces(
    text_encoder: TextEncoder, texts: TextCorpus, settings: VocabularySettings
) -> LearnedAdditions:
    """What a language adds to the base of a spelling."""
    from voxgraft.tokenizers.train import learn_additions

    base, language = text_encoder.base, text_encoder.language
    assert language is not None
    sentences = tuple(text_encoder.own_text(sentence) for sentence in texts.sentences)
    for item in check_text_language(language, sentences):
        if item.level == "error":
            raise TextError.of(item)
    if text_encoder.tag in base.ids and not base.has_control_token(text_encoder.tag):
        raise TokenizerError("tag-taken", f"the base has {text_encoder.tag} as an ordinary token", where=base.path)
    tag = text_encoder.tag if text_encoder.tag and not base.has_control_token(text_encoder.tag) else None
    header = TokenizerAdditions(text_encoder.family.name, language, base.kind, base.sha256, tag, ())
    return learn_additions(base, text_encoder.prepare, sentences, header, settings)


def prove_text_encoder(text_encoder: TextEncoder, texts: TextCorpus, proof_texts: tuple[Path, ...]) -> TokenizerProof:
    """The proof for one base and one extended tokenizer over the built-in corpus and the user's own."""
    from voxgraft.tokenizers.prove import prove_tokenizer

    assert text_encoder.grown is not None

    def corpus() -> Iterator[tuple[str | None, str]]:
        yield from load_proof_corpus()
        yield from read_user_corpus(proof_texts, frozenset(text_encoder.family.languages))

    new = text_encoder.new_text(tuple(map(text_encoder.own_text, texts.sentences)))
    return prove_tokenizer(text_encoder.base, text_encoder.grown, corpus(), text_encoder.prepare_base, new)


# Scripts that uroman reads character by character, so that a table of characters is enough.
TABLE_SCRIPTS = ("Ethiopic", "Latin")


def romanize(text: str) -> str:
    """`ሰ` becomes `sa`. What uroman does not know comes back as it is."""
    table = _load_romanization_table()
    if all(character in table for character in text):
        return "".join(table[character] for character in text).strip()
    return str(_load_uroman().romanize_string(text)).strip()


@cache
def _load_romanization_table() -> dict[str, str]:
    text = resources.files("voxgraft").joinpath("assets/romanised.json").read_text(encoding="utf-8")
    table = parse_json(text, "romanised.json")
    assert isinstance(table, dict)
    return table


@cache
def _load_uroman() -> Any:
    with progress.progress_task("loading the romanizer"):
        import uroman

        return uroman.Uroman()
