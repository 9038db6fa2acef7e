"""The families that tests run over, from the registry: a new family is tested by what the others are tested by."""

from __future__ import annotations

from voxgraft.models import family_names, get_family

ALL = tuple(family_names())
PUBLISHED = tuple(name for name in ALL if get_family(name).shipped_folder() is None)
"""Those with an original program and weights of their own; the others come with the package."""
