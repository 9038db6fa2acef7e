"""Whether texts suit the language that they are said to be in: the script, and how much there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from voxgraft.errors import Finding, finding
from voxgraft.text.characters import count_letters_by_script, count_scripts, find_exemplar

_MIN_OWN_SCRIPT_SHARE = 0.3
"""With a smaller share of letters in the language's own script, the texts are of another language."""
_MIN_SENTENCES = 100


def check_text_language(language: str, sentences: Sequence[str]) -> list[Finding]:
    """An error for texts in another script than the language has, a warning for texts that are very few."""
    findings: list[Finding] = []
    entry = find_exemplar(language)
    letters = count_letters_by_script(Counter(character for sentence in sentences for character in sentence))
    own = count_scripts(entry.letters) if entry else {}
    share = sum(letters[script] for script in own) / max(1, letters.total())
    if entry is not None and own and letters and share < _MIN_OWN_SCRIPT_SHARE:
        seen = ", ".join(f"{count / letters.total():.0%} {script}" for script, count in letters.most_common(3))
        expected = f"mostly {' and '.join(own)}, in which {entry.name} is written"
        findings.append(finding("text-other-script", f"the letters of the texts are {seen}", expected=expected))
    if len(sentences) < _MIN_SENTENCES:
        count = f"{len(sentences):,} sentence{'s' if len(sentences) != 1 else ''}"
        findings.append(finding("text-few", f"the texts hold {count}", expected=f"{_MIN_SENTENCES} or more"))
    return findings
