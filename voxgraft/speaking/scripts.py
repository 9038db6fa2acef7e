"""Whether a text is written as its language is: a warning where most letters are of another script. No torch here."""

from __future__ import annotations

from collections import Counter

from voxgraft.errors import Finding, finding
from voxgraft.speaking.texts import UtteranceRequest
from voxgraft.text.characters import count_letters_by_script, count_scripts, find_exemplar

__all__ = ["check_text_script"]

MIN_OWN_SCRIPT_SHARE = 0.3
"""Words in another script inside a text are fine; with a smaller share of its own, the text is of another language."""


def check_text_script(one: UtteranceRequest, language: str) -> list[Finding]:
    """Nothing is said of languages whose letters are not known."""
    entry = find_exemplar(language)
    own = count_scripts(entry.letters) if entry else {}
    letters = count_letters_by_script(Counter(one.text))
    if entry is None or not own or not letters:
        return []
    if sum(letters[script] for script in own) >= MIN_OWN_SCRIPT_SHARE * letters.total():
        return []
    found = f"the text is mostly {letters.most_common(1)[0][0]}: {one.text!r:.60}"
    expected = f"{' or '.join(own)}, in which {entry.name} ({language}) is written"
    return [finding("speak-other-script", found, expected=expected, where=f"utterance {one.name}")]
