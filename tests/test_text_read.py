"""Reading texts: one normal form, each sentence once, and refusals that name the line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from voxgraft.core.errors import FileError, TextError
from voxgraft.core.languages import count_scripts
from voxgraft.tokenizers import compute_texts_sha256, load_proof_corpus, read_texts, read_user_corpus


def written(folder: Path, data: bytes, name: str = "am.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_sentences_come_once_in_order_without_blank_lines_and_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffሰላም\r\n\n  ለዓለም  \nሰላም\n".encode())
    texts = read_texts([path])
    assert texts.sentences == ("ሰላም", "ለዓለም")
    assert texts.repeated == 1


def test_decomposed_text_is_composed_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "Vie\u0323\u0302t\nVie\u0302\u0323t\nViệt\n".encode())
    texts = read_texts([path])
    assert texts.sentences == ("Việt",)
    assert (texts.repeated, texts.renormalized) == (2, 2)


def test_several_files_are_one_text(tmp_path: Path) -> None:
    first, second = written(tmp_path, "ሀ\nለ".encode(), "a.txt"), written(tmp_path, "ለ\nሐ".encode(), "b.txt")
    assert read_texts([first, second]).sentences == ("ሀ", "ለ", "ሐ")


@pytest.mark.parametrize("data", [b"1 2 3\n", b"& . !\n", b"\n \n\t\n"])
def test_a_text_without_a_letter_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TextError) as refused:
        read_texts([written(tmp_path, data)])
    assert refused.value.code == "text-empty"


def test_a_wrong_byte_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(TextError) as refused:
        read_texts([written(tmp_path, b"good\nb\xe9d\n")])
    assert refused.value.code == "text-not-utf8"
    assert "line 2" in refused.value.finding.found


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError) as refused:
        read_texts([written(tmp_path, b"")])
    assert refused.value.code == "file-empty"


CLIPS: tuple[dict[str, Any], ...] = (
    {"text": "ሀ", "split": "train"},
    {"text": "  ለ ", "split": None},
    {"text": "ሐ"},
    {"text": "held out", "split": "validation"},
    {"text": "rejected", "rejected": ["noise"]},
    {"text": "መ", "rejected": ["noise"], "taken_back": True},
    {"text": " ", "split": "train"},
)


def manifest(folder: Path, *clips: Any, name: str = "manifest.jsonl") -> Path:
    lines = [{"voxgraft_manifest": 1}, *clips]
    return written(folder, "".join(json.dumps(line) + "\n" for line in lines).encode(), name)


def test_of_a_manifest_the_texts_are_read_that_are_learned_from(tmp_path: Path) -> None:
    assert read_texts([manifest(tmp_path, *CLIPS)]).sentences == ("ሀ", "ለ", "ሐ", "መ")
    assert len(read_texts([manifest(tmp_path, *CLIPS, name="manifest.txt")]).sentences) == 1 + len(CLIPS)
    for wrong in ({"seconds": 1.0}, {"text": 3}, ["text"]):
        with pytest.raises(TextError) as refused:
            read_texts([manifest(tmp_path, CLIPS[0], wrong)])
        assert (refused.value.code, "line 3" in refused.value.finding.found) == ("text-manifest", True)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('{"a":\n', "line 1 is not valid JSON: column 6: Expecting value"),
        ('{"x": 1}\n', "line 1 is not the header of a dataset manifest"),
        ('{"voxgraft_manifest": 1}\n{"text": "a"}\n{"text": \n', "line 3 is not valid JSON: column 9: Expecting value"),
    ],
)
def test_a_jsonl_that_is_no_manifest_is_refused_with_its_line(tmp_path: Path, lines: str, found: str) -> None:
    path = written(tmp_path, lines.encode(), "texts.jsonl")
    with pytest.raises(TextError) as refused:
        read_texts([path])
    item = refused.value.finding
    assert (item.code, item.found, item.where) == ("text-manifest", found, str(path))


def test_the_hash_of_a_manifest_is_one_of_the_texts_and_that_of_another_file_one_of_its_bytes(tmp_path: Path) -> None:
    path = manifest(tmp_path, *CLIPS)
    expected = hashlib.sha256("ሀ\nለ\nሐ\nመ\n".encode()).hexdigest()
    assert compute_texts_sha256(path) == expected
    manifest(tmp_path, *CLIPS[:4], {"text": "rejected too", "rejected": ["noise"]}, *CLIPS[5:], {"text": ""})
    assert compute_texts_sha256(path) == expected
    manifest(tmp_path, CLIPS[1], CLIPS[0])
    assert compute_texts_sha256(path) == hashlib.sha256("ለ\nሀ\n".encode()).hexdigest()
    for other in (manifest(tmp_path, *CLIPS, name="texts.txt"), written(tmp_path, b'{"x": 1}\n', "other.jsonl")):
        assert compute_texts_sha256(other) == hashlib.sha256(other.read_bytes()).hexdigest()


def test_a_letter_under_more_marks_than_any_language_has_is_refused_in_a_long_line_only(tmp_path: Path) -> None:
    heap = "a" + "\u0301" * 64
    assert len(read_texts([written(tmp_path, heap.encode())]).sentences) == 1
    for length in (1000, 1001):
        path = written(tmp_path, ("b" * (length - len(heap)) + heap).encode())
        if length <= 1000:
            assert read_texts([path]).sentences
            continue
        with pytest.raises(TextError) as refused:
            read_texts([path])
        assert refused.value.code == "text-marks"
        assert (
            f"line 1 has over 64 marks on one letter, from character {length - 63:,} on" == refused.value.finding.found
        )
    assert read_texts([written(tmp_path, ("b" * 2000 + heap[:-1]).encode())]).sentences


def test_a_users_proof_text_is_of_the_language_that_its_file_is_named_after(tmp_path: Path) -> None:
    french, mine = written(tmp_path, b"Bonjour.", "fr.txt"), written(tmp_path, b"Hello.", "mine.txt")
    assert list(read_user_corpus([french, mine], frozenset({"fr", "en"}))) == [("fr", "Bonjour."), (None, "Hello.")]


def test_the_built_in_corpus_has_5000_sentences_in_twelve_languages_and_six_scripts() -> None:
    languages = Counter(code for code, _ in load_proof_corpus())
    scripts = count_scripts("".join(text for _, text in load_proof_corpus()))
    assert languages.total() >= 5000
    assert len(languages) >= 12
    assert sum(count > 1000 for count in scripts.values()) >= 6
    assert all(text == text.strip() != "" for _, text in load_proof_corpus())


def test_a_manifest_is_recognised_by_its_header_however_it_is_spaced(tmp_path: Path) -> None:
    path = written(tmp_path, '{ "voxgraft_manifest" : 1 }\n{"text": "ሰላም"}\n'.encode(), "texts.jsonl")
    assert read_texts([path]).sentences == ("ሰላም",)
    assert compute_texts_sha256(path) == hashlib.sha256("ሰላም\n".encode()).hexdigest()
