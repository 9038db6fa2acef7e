"""How a text of one language becomes ids: the family's front, and the tokenizer that the language chooses.

Text of a base language is always spelled by the base's own tokenizer; the grown one is for the new language alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voxgraft.errors import TextError, TokenizerError
from voxgraft.families.base import Family, Front
from voxgraft.run_settings import LearnSettings
from voxgraft.text.characters import exemplar
from voxgraft.text.suits import suit_findings
from voxgraft.text.texts import Texts, proof_corpus, user_corpus
from voxgraft.tokenizers.base import Additions, Tokenizer
from voxgraft.tokenizers.prove import NewText, Proof, prove
from voxgraft.tokenizers.train import Learnt, learn

_LANGUAGE_TAG = re.compile(r"(?<=\[)(?=[a-z]{2,3}(?:-[a-z0-9]+)*\])")
"""The place behind the bracket of something that looks like a tag."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """One base, and the new language with its grown tokenizer if there is one."""

    family: Family
    front: Front
    base: Tokenizer
    grown: Tokenizer | None = None
    language: str | None = None

    @classmethod
    def of(cls, family: Family, base: Tokenizer, grown: Tokenizer | None, language: str | None) -> Spelling:
        """The front is that of the base's tokenizer file."""
        return cls(family, family.front(base.path), base, grown, language)

    @property
    def tag(self) -> str | None:
        """The new language's tag, where the family has tags."""
        return self.family.tag(self.language) if self.language else None

    def prepare(self, text: str) -> str:
        """Text of the new language as the tokenizer reads it, without the tag. In NFC, as the texts that are learnt."""
        text = unicodedata.normalize("NFC", text)
        # A text of one letter is left in its own case by some stock programs; with a full stop it is ordinary text.
        single = len(text.strip()) == 1 and text.strip().isalpha()
        return self.front.prepare(self.front.clean(f"{text.strip()}." if single else text), None)

    def prepare_base(self, text: str, language: str | None) -> str:
        """Text of a base language, with its tag where the base has one."""
        tag = self.family.tag(language) if language else None
        known = tag is not None and self.base.has_whole(tag)
        return self.front.prepare(self.front.clean(text), language if known else None)

    def encode(self, text: str, language: str | None) -> list[int]:
        """Ids of a text. Language tags that a user typed inside text of the new language are broken up."""
        if language is None or language != self.language or self.grown is None:
            return self.base.encode(self.prepare_base(text, language))
        tag = self.tag
        prepared = self.prepare(text)
        if tag is None:
            return self.grown.encode(prepared)
        ids = [self.grown.ids[tag]] if self.grown.has_whole(tag) else self.grown.encode(tag)
        # Cut behind the bracket: letters and brackets never share a piece, so the spelling is as without the tag.
        for part in _LANGUAGE_TAG.split(prepared):
            ids += self.grown.encode(part)
        return ids

    def new_text(self, sentences: tuple[str, ...]) -> NewText:
        """The new language's sentences in the form that `prove` takes."""
        entry = exemplar(self.language) if self.language else None
        return NewText(sentences, self.prepare, self.tag, entry.letters if entry else "")


def learn_language(spelling: Spelling, texts: Texts, settings: LearnSettings) -> Learnt:
    """What a language adds to the base of a spelling."""
    base, language = spelling.base, spelling.language
    assert language is not None
    for item in suit_findings(language, texts.sentences):
        if item.level == "error":
            raise TextError.of(item)
    if spelling.tag in base.ids and not base.has_whole(spelling.tag):
        raise TokenizerError("tag-taken", f"the base has {spelling.tag} as an ordinary piece", where=base.path)
    tag = spelling.tag if spelling.tag and not base.has_whole(spelling.tag) else None
    header = Additions(spelling.family.name, language, base.kind, base.sha256, tag, ())
    return learn(base, spelling.prepare, texts.sentences, header, settings)


def prove_spelling(spelling: Spelling, texts: Texts, proof_texts: tuple[Path, ...]) -> Proof:
    """The proof for one base and one grown tokenizer over the built-in corpus and the user's own."""
    assert spelling.grown is not None

    def corpus() -> Iterator[tuple[str | None, str]]:
        yield from proof_corpus()
        yield from user_corpus(proof_texts, frozenset(spelling.family.languages))

    new = spelling.new_text(texts.sentences)
    return prove(spelling.base, spelling.grown, corpus(), spelling.prepare_base, new)
