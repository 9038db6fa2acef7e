"""Normalisers: from text as people write it to text as people say it, one for each language, and one for the rest."""

from __future__ import annotations

from voxgraft.normalising.base import Change, Normalised, Normaliser, Note, replay
from voxgraft.normalising.languages import amharic, tigrinya
from voxgraft.normalising.plain import GenericNormaliser

__all__ = ["OWN", "Change", "Normalised", "Normaliser", "Note", "normaliser_of", "replay"]

OWN = ("am", "ti")
"""Languages that have a normaliser of their own."""


def normaliser_of(language: str, *, fold_homophones: bool = False) -> Normaliser:
    """The normaliser of a language, `am-ET` like `am`. Homophones are folded in Amharic only: others have none."""
    own = language.lower().replace("_", "-").partition("-")[0]
    if own == "am":
        return amharic(fold_homophones)
    if own == "ti":
        return tigrinya()
    return GenericNormaliser(language)
