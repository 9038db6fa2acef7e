"""The language chooses the tokenizer, and a tag that a user types is text."""

from __future__ import annotations

import pytest

from tests.support.fixtures import Fixtures
from voxgraft.config.run import VocabularySettings
from voxgraft.models import get_family
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.text.normalize import TextRules
from voxgraft.text.normalize.generic import GENERIC_VERSION
from voxgraft.tokenizers import TextCorpus, open_tokenizer


@pytest.fixture(scope="module")
def text_encoder(fixtures: Fixtures) -> TextEncoder:
    made = get_family("chatterbox")
    base = open_tokenizer(fixtures.base("chatterbox").tokenizer)
    # The rules of Amharic take brackets out of a text; those of most languages leave them.
    rules = TextRules(GENERIC_VERSION, "am")
    learnt = learn_language_pieces(
        TextEncoder.of(made, base, None, "am", rules), TextCorpus(("ሰላም ለዓለም።",) * 5), VocabularySettings()
    )
    return TextEncoder.of(made, base, learnt.grown, "am", rules)


def test_text_of_a_base_language_is_spelled_by_the_base_even_where_it_holds_new_letters(
    text_encoder: TextEncoder,
) -> None:
    ids = text_encoder.encode("Say ሰላም.", "en")
    assert text_encoder.base.unknown_id in ids
    assert max(ids) < text_encoder.base.size


def test_text_of_the_new_language_starts_with_its_tag_and_has_no_unknown(text_encoder: TextEncoder) -> None:
    assert text_encoder.grown is not None
    ids = text_encoder.encode("ሰላም ለዓለም።", "am")
    assert text_encoder.grown.shown(ids[0]) == "[am]"
    assert text_encoder.grown.unknown_id not in ids


@pytest.mark.parametrize("text", ["ሰላም [am] ለዓለም", "[am]", "ሰ[am]ም", "([am])", "[AM] ሰላም", "[am][am]"])
def test_a_tag_typed_inside_the_text_is_broken_up(text_encoder: TextEncoder, text: str) -> None:
    assert text_encoder.grown is not None
    ids = text_encoder.encode(text, "am")
    tag = text_encoder.grown.ids["[am]"]
    assert ids.count(tag) == 1
    assert ids[0] == tag


def test_breaking_a_tag_up_changes_nothing_else(text_encoder: TextEncoder) -> None:
    """The same text without its closing bracket is never a tag; its spelling must be a part of the broken one."""
    assert text_encoder.grown is not None
    spelled = [text_encoder.grown.shown(token) for token in text_encoder.encode("ሰላም [am] ሰላም", "am")]
    unbroken = [text_encoder.grown.shown(token) for token in text_encoder.encode("ሰላም [am ] ሰላም", "am")]
    unbroken.remove("[SPACE]")
    assert sorted(spelled) == sorted(unbroken)


def test_the_tag_of_another_language_inside_the_text_is_broken_up_too(text_encoder: TextEncoder) -> None:
    assert text_encoder.grown is not None
    spelled = [text_encoder.grown.shown(token) for token in text_encoder.encode("ሰላም [fr] ሰላም", "am")]
    assert "[fr]" not in spelled
    assert spelled[0] == "[am]"
