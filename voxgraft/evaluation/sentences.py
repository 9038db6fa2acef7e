"""Sentences to evaluate with: built-in sets, files of a user, held-out texts of a run. Must not import torch.

A set is held out: training never saw its sentences, nor the words in its column `rare`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from voxgraft.config.run import LANGUAGE_PATTERN, RunSettings
from voxgraft.core.errors import TextError, VoxgraftError
from voxgraft.core.files import is_file, is_folder, read_lines, read_text, text_lines
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import read_manifest
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.text.spans import remove_markers

SENTENCES_FOLDER = "assets/sentences"
SENTENCES_SUFFIX = ".tsv"
SENTENCE_COLUMNS = ("text", "rare", "phones")
BUILT_IN_SOURCE = "built-in"
TEST_TEXTS_SOURCE = "test texts of the dataset"
VALIDATION_TEXTS_SOURCE = "validation texts of the dataset, which has no test split; they also chose the best step"
BOTH_TEXTS_SOURCE = "validation and test texts of the dataset, which has a single test text"
# Test texts: with fewer, no sentence can be compared with another one, and validation texts are taken as well.
MIN_TEST_SENTENCES = 2


@dataclass(frozen=True, slots=True)
class EvalSentence:
    """One sentence, what it sounds like where that is known, and the words in it that no training has heard."""

    language: str
    text: str
    rare: tuple[str, ...] = ()
    phones: tuple[str, ...] | None = None
    recording: Path | None = None
    """A person's recording of the same sentence."""


@dataclass(frozen=True, slots=True)
class SentenceSet:
    """The sentences of one language, and where they come from."""

    language: str
    source: str
    sha256: str
    sentences: tuple[EvalSentence, ...]

    def spread(self, most: int) -> SentenceSet:
        """At most `most` sentences, spread evenly over the set, so that every kind keeps its share."""
        count = len(self.sentences)
        if count <= most:
            return self
        return replace(self, sentences=tuple(self.sentences[at * count // most] for at in range(most)))


def list_built_in_languages() -> list[str]:
    """Languages that have a set of voxgraft."""
    folder = resources.files("voxgraft").joinpath(SENTENCES_FOLDER)
    return sorted(
        entry.name.removesuffix(SENTENCES_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SENTENCES_SUFFIX)
    )


def load_built_in_sentences(language: str) -> SentenceSet | None:
    """Our own set of a language, if there is one."""
    if language not in list_built_in_languages():
        return None
    with resources.as_file(
        resources.files("voxgraft").joinpath(f"{SENTENCES_FOLDER}/{language}{SENTENCES_SUFFIX}")
    ) as path:
        return replace(read_sentence_file(path), source=BUILT_IN_SOURCE)


def read_sentence_file(path: Path) -> SentenceSet:
    """A set by file, named after its language: am.txt with a sentence on each line, or am.tsv with named columns."""
    language = path.stem
    if not re.fullmatch(LANGUAGE_PATTERN, language) or path.suffix not in (".txt", SENTENCES_SUFFIX):
        expected = f"a file that is named after its language: am.txt, or am{SENTENCES_SUFFIX}"
        raise TextError("sentences-name", f"{path.name} is not named after a language", expected=expected, where=path)
    if path.suffix == SENTENCES_SUFFIX:
        lines = [(number, line) for number, line in enumerate(text_lines(read_text(path)), 1) if line.strip()]
        header = lines[0][1].split("\t") if lines else []
        unknown = [name for name in header if name not in SENTENCE_COLUMNS]
        if "text" not in header or unknown or len(set(header)) != len(header):
            found = f"the first line is {' | '.join(header)!r:.80}"
            expected = "column names separated by tabs: text, and optionally rare and phones"
            raise TextError("sentences-columns", found, expected=expected, where=path)
        sentences = []
        for number, line in lines[1:]:
            cells = line.split("\t")
            if len(cells) > len(header):
                found = f"line {number} has {len(cells)} columns"
                raise TextError("sentences-columns", found, expected=f"{len(header)}", where=path)
            # Editors drop trailing tabs, so a short line has empty cells at its end.
            values = dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=True))
            rare, phones = (tuple(values.get(column, "").split()) for column in ("rare", "phones"))
            sentences.append(EvalSentence(language, values["text"].strip(), rare, phones or None))
    else:
        lines = list(read_lines(path))
        sentences = [EvalSentence(language, text) for _, text in lines]
    sentences = [replace(one, text=unicodedata.normalize("NFC", one.text)) for one in sentences]
    unique = {one.text: one for one in sentences if any(character.isalpha() for character in one.text)}
    if not unique:
        raise TextError("text-empty", f"none of {len(lines)} lines contains a letter", where=path)
    return _build_sentence_set(language, path.name, unique.values())


def load_manifest_sentences(manifest: Path, language: str) -> SentenceSet | None:
    """Texts of the clips that nothing was trained on, each with its recording: test clips, else validation clips."""
    sides: dict[str, dict[str, EvalSentence]] = {"test": {}, "validation": {}}
    for clip in read_manifest(manifest):
        if clip.language == language and clip.is_used and clip.split in sides:
            text, audio = unicodedata.normalize("NFC", clip.text.strip()), clip.resolve_audio(manifest.parent)
            if any(character.isalpha() for character in text):
                recording = audio if is_file(audio) else None
                sides[clip.split].setdefault(text, EvalSentence(language, text, recording=recording))
    test, validation = sides["test"], sides["validation"]
    if len(test) >= MIN_TEST_SENTENCES:
        return _build_sentence_set(language, TEST_TEXTS_SOURCE, test.values())
    source, both = BOTH_TEXTS_SOURCE if test else VALIDATION_TEXTS_SOURCE, {**validation, **test}
    return _build_sentence_set(language, source, both.values()) if both else None


def _build_sentence_set(language: str, source: str, sentences: Iterable[EvalSentence]) -> SentenceSet:
    found = tuple(sentences)
    # The layout of these lines is part of scores.json: reports of two runs are compared by this hash.
    lines = (f"{one.text}\t{' '.join(one.rare)}\t{' '.join(one.phones or ())}\n" for one in found)
    return SentenceSet(language, source, hashlib.sha256("".join(lines).encode()).hexdigest(), found)


def build_text_sentences(texts: Iterable[str], language: str) -> SentenceSet | None:
    """The same from texts alone: those of a prepared validation set whose manifest was not found."""
    composed = dict.fromkeys(unicodedata.normalize("NFC", text.strip()) for text in texts)
    found = [EvalSentence(language, text) for text in composed if any(sign.isalpha() for sign in text)]
    return _build_sentence_set(language, VALIDATION_TEXTS_SOURCE, found) if found else None


def require_sentences(manifest: Path, valid_sets: Sequence[Path], language: str, files: Sequence[Path]) -> None:
    """Raise if `evaluate` will have no sentence of a language: no file, no built-in set and no held-out text.

    Data that is still to be imported, split or prepared is taken to bring some.
    """
    if language in {path.stem for path in files} or language in list_built_in_languages():
        return
    if is_file(manifest):
        own = [clip for clip in read_manifest(manifest) if clip.language == language and clip.is_used]
        if any(clip.split is None for clip in own) or load_manifest_sentences(manifest, language) is not None:
            return
        found = f"no test or validation text of the dataset in {language} has a letter"
    else:
        sets = [path for path in valid_sets if is_folder(path)]
        texts = [info.text for path in sets for info in open_clip_dataset(path).infos]
        if len(sets) < len(valid_sets) or build_text_sentences(texts, language) is not None:
            return
        found = f"the validation sets have no text in {language}"
    expected = f"held-out texts, or --sentences {language}.txt"
    raise TextError("sentences-missing", f"{found}, and there are no built-in sentences", expected=expected)


def load_sentence_sets(languages: Sequence[str], files: Sequence[Path], most: int) -> dict[str, SentenceSet]:
    """The sets of these languages: a user's own before ours; a language that has neither is left out."""
    own: dict[str, SentenceSet] = {}
    for path in files:
        found = read_sentence_file(path)
        if found.language in own:
            raise TextError(
                "sentences-name",
                f"two sentence files are for {found.language}",
                expected="one per language",
                where=path,
            )
        if found.language not in languages:
            expected = f"one of {', '.join(languages)}"
            raise TextError("sentences-language", f"sentences in {found.language}", expected=expected, where=path)
        own[found.language] = found
    chosen = {language: own.get(language) or load_built_in_sentences(language) for language in languages}
    return {language: found.spread(most) for language, found in chosen.items() if found is not None}


# Languages that are written without spaces between words.
LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "yue"})
# Stress, length, syllables and ties: how a phone is spoken or written, not which one it is.
IGNORED_PHONE_MARKS = str.maketrans("", "", "ˈˌːˑ.‿͡")
# Rows of seven Ethiopic letters (one per vowel) that are one sound in Amharic today, each with what replaces it.
# Tigrinya still distinguishes them. Of the rows of ሀ and አ the first and the fourth letter also sound alike.
_AMHARIC_ROWS = {"ሐ": "ሀ", "ኀ": "ሀ", "ኸ": "ሀ", "ሠ": "ሰ", "ዐ": "አ", "ፀ": "ጸ"}
_AMHARIC_FOURTH = {"ሃ": "ሀ", "ኣ": "አ"}
# By language: letters that no recognizer can tell from others, as a table for `str.translate`.
_HOMOPHONES: dict[str, dict[int, str]] = {
    "am": {
        ord(row) + at: _AMHARIC_FOURTH.get(chr(ord(same) + at), chr(ord(same) + at))
        for row, same in _AMHARIC_ROWS.items()
        for at in range(7)
    }
    | {ord(letter): same for letter, same in _AMHARIC_FOURTH.items()}
}


def normalize_letters(text: str, language: str) -> str:
    """The text as it is compared: composed, lower case, letters, marks and digits with single spaces between words.

    Letters that are one sound in the language are one letter here, since their sound does not show which was meant.
    """
    lower = unicodedata.normalize("NFC", remove_markers(text).casefold())
    letters = "".join(character if unicodedata.category(character)[0] in "LMN" else " " for character in lower)
    return " ".join(letters.split()).translate(_HOMOPHONES.get(language, {}))


def normalize_phones(phones: Sequence[str]) -> list[str]:
    """Phones as they are compared: without marks that are not heard, and without those that were only marks."""
    bare = (unicodedata.normalize("NFD", phone).translate(IGNORED_PHONE_MARKS) for phone in phones)
    return [phone for phone in bare if phone.strip()]


def load_training_texts(run: RunFolder, settings: RunSettings) -> tuple[str, ...] | str:
    """Texts of the training sets of a run; a reason in words where they are not known."""
    texts: list[str] = []
    for path in settings.data.train or (run.data_set("train"),):
        if not is_folder(path):
            return f"{path.name} is not a set that voxgraft prepared"
        try:
            texts += [info.text for info in open_clip_dataset(path, verify="sizes").infos]
        except VoxgraftError as error:
            return f"the training set cannot be opened: {error.finding.found}"
    return tuple(texts)


def find_training_overlap(found: SentenceSet, texts: Iterable[str]) -> dict[str, list[str]]:
    """Sentences and rare words of a set that these texts contain, letters compared as scores compare them."""
    seen = {normalize_letters(text, found.language) for text in texts}
    training_words = {word for text in seen for word in text.split()}
    rare = dict.fromkeys(word for sentence in found.sentences for word in sentence.rare)
    return {
        "seen_in_training": [
            sentence.text for sentence in found.sentences if normalize_letters(sentence.text, found.language) in seen
        ],
        "rare_words_in_training": [word for word in rare if normalize_letters(word, found.language) in training_words],
    }
