"""The one text front end: text rules of the language, the family's own front, the tokenizer that the language chooses.

Learning pieces, preparing data, training, samples, synthesis, evaluation, exports and the proof all come here. Text of
a base language is always encoded by the base's own tokenizer and never normalised; rules and the extended tokenizer are
for the new language alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxgraft.config.run import VocabularySettings
from voxgraft.core import progress
from voxgraft.core.errors import Finding, TextError, TokenizerError, finding
from voxgraft.core.files import parse_json, text_lines
from voxgraft.core.languages import count_letters_by_script, count_scripts, find_exemplar
from voxgraft.text import TextFamily, TextFrontend
from voxgraft.tokenizers import TextCorpus, Tokenizer, TokenizerAdditions, load_proof_corpus, read_user_corpus

if TYPE_CHECKING:
    from voxgraft.text.normalize import TextRules
    from voxgraft.tokenizers.prove import NewLanguageText, TokenizerProof
    from voxgraft.tokenizers.train import LearnedAdditions

# Normalisers, and what learns and proves tokenizers, are imported on use: a base that only speaks needs none of them.

# With a smaller share of letters in the language's own script, the texts are of another language.
_MIN_OWN_SCRIPT_SHARE = 0.3
_MIN_SENTENCES = 100
# The place behind the bracket of something that looks like a tag.
_LANGUAGE_TAG_START = re.compile(r"(?<=\[)(?=[a-z]{2,3}(?:-[a-z0-9]+)*\])")


def check_text_language(language: str, sentences: Sequence[str]) -> list[Finding]:
    """An error for texts in another script than the language has, a warning for texts that are very few."""
    findings: list[Finding] = []
    entry = find_exemplar(language)
    letters = count_letters_by_script(Counter(character for sentence in sentences for character in sentence))
    own = count_scripts(entry.letters) if entry else {}
    share = sum(letters[script] for script in own) / max(1, letters.total())
    if entry is not None and own and letters and share < _MIN_OWN_SCRIPT_SHARE:
        seen = ", ".join(f"{count / letters.total():.0%} {script}" for script, count in letters.most_common(3))
        expected = f"mostly {' and '.join(own)}, the script of {entry.name}"
        findings.append(finding("text-other-script", f"the letters of the texts are {seen}", expected=expected))
    if len(sentences) < _MIN_SENTENCES:
        count = f"{len(sentences):,} sentence{'s' if len(sentences) != 1 else ''}"
        findings.append(finding("text-few", f"the texts contain {count}", expected=f"{_MIN_SENTENCES} or more"))
    return findings


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """One base, and the new language with its extended tokenizer if there is one."""

    family: TextFamily
    front: TextFrontend
    base: Tokenizer
    grown: Tokenizer | None = None
    language: str | None = None
    stated_rules: TextRules | None = None
    """How text of the new language is normalised before the front sees it; None: not at all."""

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

    def prepare(self, text: str) -> str:
        """Text of the new language as the tokenizer reads it, without the tag."""
        return self.front.prepare(self.front.clean(self.rules.apply(text)), None)

    def normalize_lines(self, text: str, language: str | None) -> str:
        """Text of the new language by its rules, line by line, so that long text can be split before it is spelled."""
        if self.grown is None or not self.is_new_language(language):
            return text
        return "\n".join(self.rules.normalizer.normalise(line).text for line in text_lines(text))

    def prepare_base(self, text: str, language: str | None) -> str:
        """Text of a base language, with its tag where the base has one."""
        tag = self.family.tag(language) if language else None
        known = tag is not None and self.base.has_control_token(tag)
        return self.front.prepare(self.front.clean(text), language if known else None)

    def encode(self, text: str, language: str | None) -> list[int]:
        """Ids of a text. Language tags that a user typed inside text of the new language are broken up."""
        if self.grown is None or not self.is_new_language(language):
            return self.base.encode(self.prepare_base(text, language))
        tag = self.tag
        prepared = self.prepare(text)
        if tag is None:
            return self.grown.encode(prepared)
        ids = [self.grown.ids[tag]] if self.grown.has_control_token(tag) else self.grown.encode(tag)
        # Cut behind the bracket: letters and brackets never share a piece, so the spelling is as without the tag.
        for part in _LANGUAGE_TAG_START.split(prepared):
            ids += self.grown.encode(part)
        return ids

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
    for item in check_text_language(language, texts.sentences):
        if item.level == "error":
            raise TextError.of(item)
    if text_encoder.tag in base.ids and not base.has_control_token(text_encoder.tag):
        raise TokenizerError("tag-taken", f"the base has {text_encoder.tag} as an ordinary piece", where=base.path)
    tag = text_encoder.tag if text_encoder.tag and not base.has_control_token(text_encoder.tag) else None
    header = TokenizerAdditions(text_encoder.family.name, language, base.kind, base.sha256, tag, ())
    return learn_additions(base, text_encoder.prepare, texts.sentences, header, settings)


def prove_text_encoder(text_encoder: TextEncoder, texts: TextCorpus, proof_texts: tuple[Path, ...]) -> TokenizerProof:
    """The proof for one base and one extended tokenizer over the built-in corpus and the user's own."""
    from voxgraft.tokenizers.prove import prove_tokenizer

    assert text_encoder.grown is not None

    def corpus() -> Iterator[tuple[str | None, str]]:
        yield from load_proof_corpus()
        yield from read_user_corpus(proof_texts, frozenset(text_encoder.family.languages))

    new = text_encoder.new_text(texts.sentences)
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
