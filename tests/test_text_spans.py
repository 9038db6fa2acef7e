"""Two languages in one sentence: what a span is, its ids, what is refused, and the way of a span through the commands."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import Preparing, preparing, voice_like
from tests.support.run_folders import error_of
from tests.support.synthesis import made_graft, settings_of, spoken
from tests.test_text_front_end import (
    KINDS,
    LANGUAGES,
    published,
    read_without_voxgraft,
    small,
    spelling_of,
    stock_ids,
    texts_of,
    write_package,
)
from voxgraft.cli import run_cli
from voxgraft.config.data import DataImportSettings
from voxgraft.core.errors import TextError
from voxgraft.data.import_command import data_import
from voxgraft.data.manifest import SourceProblem, read_manifest
from voxgraft.data.subtitles import clean_cues, parse_subtitles
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.graft.folder import load_base_tokenizer
from voxgraft.models import family_names, get_family
from voxgraft.synthesis.engine import open_synthesis_models
from voxgraft.synthesis.inputs import split_into_chunks
from voxgraft.text.encoder import EncodedText, TextEncoder
from voxgraft.text.normalize import (
    TextRules,
    build_normalizer,
    build_text_rules,
    normalize_marked_text,
    replay_changes,
)
from voxgraft.text.spans import SpanError, find_spans, read_spans, remove_markers, rewrite_parts, split_spans
from voxgraft.tokenizers import open_tokenizer


@cache
def encoder(name: str) -> TextEncoder:
    """A base of the family with a graft of Amharic."""
    if name in KINDS:
        return small(name, "am").text_encoder
    family = get_family(name)
    kind, tokenizer = load_base_tokenizer(family.shipped_folder() or Path(), name)
    return spelling_of(TextEncoder.of(kind, tokenizer, None, None), "am").text_encoder


@pytest.fixture(params=family_names())
def one(request: pytest.FixtureRequest) -> TextEncoder:
    return encoder(request.param)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ሰላም [en]my friend[/en]!", [(None, "ሰላም "), ("en", "my friend"), (None, "!")]),
        ("[en]a[/en][fr]b[/fr]", [("en", "a"), ("fr", "b")]),
        ("[EN]Hi [sad][/En]", [("en", "Hi [sad]")]),
        ("[fr-CA]oui[/fr-ca] x", [("fr-ca", "oui"), (None, " x")]),
        ("x [sad] [b]y[/b] [ en ]z[/ en ] [english]q[/english]", None),
        ("no [/url] here", None),
        ("he gave [en] away [fr].", None),
        ("", None),
    ],
)
def test_spans_are_found_and_other_brackets_are_text(text: str, parts: list[tuple[str | None, str]] | None) -> None:
    assert split_spans(text, {"en", "fr", "fr-ca"}.__contains__) == parts
    assert remove_markers(text) == (text if parts is None else "".join(part for _, part in parts))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("ab [en]cd", 4),
        ("ab cd[/en]", 6),
        ("[en]a [fr]b[/fr] c[/en]", 7),
        ("[en]a[/fr]", 6),
        ("a [en] . [/en]", 3),
        ("[xx]a[/xx]", 1),
        ("[en]a[/en] [fr]b", 12),
    ],
)
def test_a_span_that_cannot_be_read_is_refused_with_its_place_and_encoded_as_before(text: str, position: int) -> None:
    with pytest.raises(SpanError) as refused:
        split_spans(text, {"en", "fr"}.__contains__)
    assert refused.value.position == position
    assert find_spans(text, {"en", "fr"}.__contains__) is None
    tiny = encoder("tiny")
    with pytest.raises(TextError) as told:
        tiny.require_spans(text, "here")
    assert (told.value.code, told.value.finding.where) == ("text-span", "here")
    assert tiny.encode_text(text, "am") == EncodedText(ids_before_spans(tiny, text, "am"), "am")


def ids_before_spans(one: TextEncoder, text: str, language: str | None) -> list[int]:
    """The ids of a text by the tokenizers alone, as all texts had them before there were spans."""
    assert one.grown is not None
    if not one.is_new_language(language):
        return one.base.encode(one.prepare_base(text, language))
    prepared = one.front.prepare(one.front.clean(one.rules.apply(text)), None)
    if one.tag is None:
        return one.grown.encode(prepared)
    halves = prepared.replace("[en]", "[\0en]").replace("[fr]", "[\0fr]").replace("[xx]", "[\0xx]").split("\0")
    return [one.grown.ids[one.tag], *(token for half in halves for token in one.grown.encode(half))]


def test_ids_of_spans_are_those_of_the_parts_alone(one: TextEncoder) -> None:
    """A comma at the end of a part: some original programs write a full stop behind a sentence that has no mark."""
    space = one.base.encode(one.front.prepare(" ", None))
    alone = {
        text: one.encode(text, language) for text, language in (("ሰላም,", "am"), ("ለዓለም.", "am"), ("My friend,", "en"))
    }
    tags = {code: len(one._tag_ids(code)) for code in ("am", "en")}
    words = {
        "am1": alone["ሰላም,"][tags["am"] :],
        "am2": alone["ለዓለም."][tags["am"] :],
        "en": alone["My friend,"][tags["en"] :],
    }
    found = one.encode_text("ሰላም, [en]My friend,[/en] ለዓለም.", "am")
    assert found.ids == [*alone["ሰላም,"], *space, *words["en"], *space, *words["am2"]]
    before, inside = len(alone["ሰላም,"]) + len(space), len(words["en"])
    assert found.closed is not None
    assert np.flatnonzero(found.closed).tolist() == list(range(before, before + inside))
    assert found.language == "am"
    # The other way round: the sentence has the tag of English, and the gate acts at the Amharic words alone.
    turned = one.encode_text("My friend, [am]ሰላም,[/am] [en]my friend,[/en]", "en")
    assert turned.ids == [*alone["My friend,"], *space, *words["am1"], *space, *words["en"]]
    assert turned.language == "am"
    assert turned.closed is not None
    first = len(alone["My friend,"]) + len(space)
    assert np.flatnonzero(~np.array(turned.closed)).tolist() == list(range(first, first + len(words["am1"])))


def test_a_sentence_that_is_all_in_one_span_is_a_sentence_of_that_language(one: TextEncoder) -> None:
    plain = one.encode_text("Good morning, friend.", "en")
    assert plain.closed is None
    for text in (
        "[en]Good morning, friend.[/en]",
        "[en]Good morning, friend[/en].",
        " [en]Good morning, friend.[/en] ",
    ):
        assert one.encode_text(text, "am") == plain
    assert one.encode_text("[am]ሰላም[/am] ለዓለም", "am") == one.encode_text("ሰላም ለዓለም", "am")
    for other in one.base_languages[1:2]:  # a base that speaks one language has no sentence of two
        assert one.encode_text(f"[en]Hi,[/en] [{other}]toi.[/{other}]", "am").language == "en"


def test_rules_and_pronunciations_leave_spans_alone_and_letters_may_touch_them(one: TextEncoder) -> None:
    rules = TextRules.from_json({**one.rules.to_json(), "pronunciations": {"NASA": "ናሳ"}})
    one = replace(one, stated_rules=rules)
    assert one.normalize_lines("NASA 3 [en]NASA 3[/en] 3", "am") == "ናሳ ሶስት [en]NASA 3[/en] ሶስት"
    assert one.normalize_lines("3 [am]3[/am]", "en") == "3 [am]ሶስት[/am]"
    assert one.own_text("NASA [en]x y[/en] ሰ") == "NASA   ሰ"
    ids = one.encode("ሰ [en]NASA[/en] ሰ", "am")
    english = one.base.encode(one.front.prepare_part("NASA", "en", is_first=False, is_last=False))
    assert any(ids[at : at + len(english)] == english for at in range(len(ids)))
    glued, apart = one.encode("[en]computer[/en]ዎች", "am"), one.encode("[en]computer[/en] ዎች", "am")
    assert glued != apart
    assert one.encode("ሰ፡[en]computer[/en]", "am") == one.encode("ሰ [en]computer[/en]", "am")
    assert (
        one.encode("ሰ [en]computer[/en] , ሰ", "am") == one.encode("ሰ [en]computer[/en], ሰ", "am")
        or one.front.closed_up == ()
    )


BRACKETS = ("[laugh] ሰላም", "ሰላም [sad] [1] (x) [en] ለዓለም", "[am]ሰላም", "a [x] [/x] b", "[[en]]", "[/en", "en]x[/e n]")
PUBLISHED_DIGESTS = {
    "chatterbox": "7107d1d510708cd80e6d60faea602d6e539475a9ca1c07440330d0a4be644b28",
    "indextts2": "ffad94eabe037d553010ea3909691d0cbed5d79b3b31c680fc0fa55a0edaefd0",
}


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED_DIGESTS)
def test_text_without_spans_has_the_ids_that_it_had_before(name: str) -> None:
    """Hundreds of texts in forty languages with the published tokenizers; the digest is of the version before spans."""
    digest, count = hashlib.sha256(), 0
    for language in LANGUAGES:
        one = published(name, language).text_encoder
        for text in (*texts_of(language), *BRACKETS):
            for code in (language, "en", None):
                digest.update(json.dumps(one.encode(text, code)).encode())
                count += 1
    assert count > 1000
    assert digest.hexdigest() == PUBLISHED_DIGESTS[name]


def test_brackets_alone_change_no_id(one: TextEncoder) -> None:
    for text in (*texts_of("am"), *BRACKETS[:2]):
        for code in ("am", "en", None):
            assert one.encode_text(text, code) == EncodedText(ids_before_spans(one, text, code), code)


def test_the_tokenizer_learns_nothing_from_spans_of_other_languages() -> None:
    one = encoder("tiny")
    plain, mixed = ("ሰላም ለዓለም", "ሰላም ነው"), ("ሰላም [en]zzqzz qzzq[/en] ለዓለም", "ሰላም [en]zzqzz[/en] ነው")
    assert [one.prepare(text) for text in mixed] == [one.prepare(text) for text in plain]


def test_long_text_is_split_inside_of_spans_too() -> None:
    one = encoder("tiny")
    text = "ሰላም ነው። [en]Hello there. How are you?[/en] ደህና ነኝ። [en]Good[/en]\n[en]bye now[/en]"
    chunks = one.map_chunks(text, "am", lambda words: split_into_chunks(words, "am", 60.0, 0.2))
    assert chunks == [
        ("ሰላም ነው።", 0.2),
        ("[en]Hello there.[/en]", 0.2),
        ("[en]How are you?[/en]", 0.2),
        ("ደህና ነኝ።", 0.2),
        ("[en]Good[/en]", 0.4),
        ("[en]bye now[/en]", 0.0),
    ]


@pytest.mark.parametrize("text", ["[en]Go away! :)[/en] ሰላም።", "ሰላም [en]Go away. — [/en]ነው።", "[en]Go. ♥[/en] ነው።"])
def test_no_chunk_has_a_span_without_words(text: str) -> None:
    one = encoder("tiny")
    chunks = one.map_chunks(text, "am", lambda words: split_into_chunks(words, "am", 60.0, 0.2))
    assert len(chunks) > 1
    assert all("[" not in remove_markers(chunk) for chunk, _ in chunks), chunks


MIXED = (
    "ሰላም [en]my friend[/en] እንዴት ነህ?",
    "[en]Computer[/en]ዎች 3 ናቸው።",
    "በ1987 [en]the year[/en], ነው",
    "ሰ፡[en]x y[/en]",
    "[am]ሰላም[/am] [fr]oui[/fr] . [en]ok[/en]",
)


@pytest.mark.parametrize("name", ["chatterbox", "indextts2"])  # XTTS has a test of its own: load.py reads its spans
def test_exports_read_spans_as_training_did(name: str, tmp_path: Path) -> None:
    one = encoder(name)
    mixed = [text for text in MIXED if name == "chatterbox" or "[fr]" not in text]
    refused = [
        "[en]Hello[/en]",
        "ሰላም [en]Hello",
        "ሰላም [xx]a[/xx]",
        *(["ሰ [zh]你好[/zh]"] if name == "chatterbox" else []),
    ]
    write_package(tmp_path / "am", name, one.rules)
    place = str(tmp_path / "am")
    read = read_without_voxgraft(tmp_path, {place: [*mixed, *refused]})[place]
    for text, handed in zip(mixed, read, strict=False):
        assert isinstance(handed, str), handed
        assert stock_ids(one, handed) == one.encode(text, "am"), (text, handed)
    assert all(isinstance(handed, list) for handed in read[len(mixed) :])


def test_every_part_is_rewritten_by_its_language_and_markers_and_the_spaces_beside_them_stay() -> None:
    calls: list[tuple[str | None, str]] = []

    def rewrite(code: str | None, text: str) -> str:
        calls.append((code, text))
        return text.upper()

    assert rewrite_parts("  a [b] c ", {"en"}.__contains__, rewrite) == "  A [B] C "
    assert calls == [(None, "  a [b] c ")]
    calls.clear()
    assert rewrite_parts(" a [en] b c [/en]፡ d [e]", {"en"}.__contains__, rewrite) == " A [en] B C [/en]፡ D [E]"
    assert calls == [(None, "a"), ("en", "b c"), (None, "d [e]")]
    assert rewrite_parts("[en]b[/en] [fr]c[/fr]", {"en", "fr"}.__contains__, rewrite) == "[en]B[/en] [fr]C[/fr]"


def test_a_program_that_knows_no_spans_is_given_the_words_of_all_with_own_rules_outside_of_them() -> None:
    rules = build_text_rules("am")
    assert read_spans("3 ሰ", ("en",), rules) == rules.apply("3 ሰ")
    assert read_spans("3 [en]my 3[/en]ዎች፡[am]3[/am] ", ("en",), rules) == "ሶስት my 3ዎች ሶስት"
    assert read_spans("[en] my [/en] ሰ", ("en",), rules).split() == ["my", "ሰ"]
    for text in ("[en]my 3[/en]", "[en]my[/en] . [en]3[/en]", "ሰ [en]my", "ሰ [fr]mon[/fr]"):
        with pytest.raises(SpanError) as refused:
            read_spans(text, ("en",), rules)
        assert refused.value.position == (3 if text.startswith("ሰ") else 1)


@pytest.fixture(scope="module")
def graft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    return made_graft(tmp_path_factory.mktemp("graft"), base, "am", 3)


def test_speak_gives_each_chunk_its_gate_and_writes_sound(graft_folder: Path, tmp_path: Path) -> None:
    wav = tmp_path / "out.wav"
    text = "ሰላም [en]blue cup[/en] ነው። [en]Bring the cup.[/en]"
    words = (text, "--graft", graft_folder, "--language=am", "--max-seconds=0.6", "--pause=0", "--output", wav)
    [said] = spoken(*words).said
    assert [(piece.text, piece.language) for piece in said.pieces] == [
        ("ሰላም [en]blue cup[/en] ነው.", "am"),
        ("[en]Bring the cup.[/en]", "en"),
    ]
    mixed, english = said.pieces
    assert mixed.closed is not None
    assert 0 < sum(mixed.closed) < len(mixed.ids) == len(mixed.closed)
    assert english.closed is None
    assert soundfile.info(wav).frames > 10_000
    # Amharic in an English sentence is spoken by the graft, and English alone by the base.
    models = open_synthesis_models(settings_of("x", "--graft", graft_folder))
    assert models.system_for("Say [am]ሰላም[/am] now", "en").name == "graft"
    assert models.system_for("Say [fr]oui[/fr] now", "en").name == "base"


@pytest.mark.parametrize("text", ["ሰላም [en]hello", "ሰላም [de]ja[/de]", "ሰላም [en] [/en]"])
def test_speak_refuses_spans_that_cannot_be_read(text: str, graft_folder: Path, tmp_path: Path) -> None:
    error = error_of(lambda: spoken(text, "--graft", graft_folder, "--language=am", "--output", tmp_path / "out.wav"))
    assert (error.code, error.finding.where) == ("text-span", "utterance 001")
    assert not (tmp_path / "out.wav").exists()


def test_tokenizer_show_spells_each_part_by_its_language(
    graft_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = next(path for path in graft_folder.iterdir() if path.name.startswith("tokenizer"))
    base = get_family("tiny").shipped_folder()
    words = ["tokenizer", "show", "ሰላም [en]blue cup[/en]", "--base", str(base), "--extended", str(grown)]
    assert run_cli([*words, "--language=am", "--json"]) == 0
    [sentence] = json.loads(capsys.readouterr().out)["sentences"]
    assert sentence["spans"] == [{"language": "am", "text": "ሰላም "}, {"language": "en", "text": "blue cup"}]
    ids = [token for _, token, _ in sentence["extended"]]
    plain = open_tokenizer((base or Path()) / "tokenizer.json")
    assert [plain.pieces[token] for token, shut in zip(ids, sentence["closed"], strict=True) if shut] == [
        plain.pieces[token] for token in plain.encode("blue[SPACE]cup")
    ]


@pytest.fixture
def new(fixtures: Fixtures, tmp_path: Path) -> Preparing:
    return preparing(fixtures, tmp_path)


def test_prepare_stores_where_the_gate_is_closed_and_leaves_out_what_cannot_be_read(new: Preparing) -> None:
    plain = new.prepare()
    assert not any(b'"closed"' in content for name, content in new.sets().items() if name.endswith("safetensors"))
    new.change(
        clip000={"text": "ሰላም [en]my friend[/en]"},
        clip001={"text": "ሰላም [en]my friend"},
        clip002={"text": "ሰላም [de]ja[/de]"},
        clip003={"text": "[en]my friend[/en]."},
    )
    result = new.prepare()
    assert result.num_encoded == 0
    assert {name: item.code for name, item in result.left_out.items() if name not in plain.left_out} == dict.fromkeys(
        ("clip001", "clip002", "clip003"), "text-span"
    )
    assert "clip001" in str(result.left_out["clip001"].where)
    clips = open_clip_dataset(new.run.data_set("train"))
    graft = next(path for path in new.run.graft.iterdir() if path.name.startswith("tokenizer"))
    kind, base = load_base_tokenizer(get_family("tiny").shipped_folder() or Path(), "tiny")
    expected = TextEncoder.of(kind, base, open_tokenizer(graft), "am").encode_text("ሰላም [en]my friend[/en]", "am")
    closed = clips.closed(0)
    assert closed is not None
    assert (clips.text_ids(0).tolist(), closed.tolist()) == (expected.ids, list(map(int, expected.closed or ())))
    assert all(clips.closed(at) is None for at in range(1, len(clips)))


def test_an_import_keeps_spans_as_written_and_tells_the_line_of_broken_ones(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "wavs").mkdir(parents=True)
    texts = ["ቁጥር 3 [en]MP 3[/en] 3", "ሰላም [en]my friend", "ሰላም [en]a[/fr] ነው", "ሰላም [it] ነው", "ሰላም [url]x[/url]"]
    for at in range(len(texts)):
        soundfile.write(folder / "wavs" / f"a{at}.wav", voice_like(1.5, at), 24_000)
    table = "\n".join(f"a{at}|{text}" for at, text in enumerate(texts))
    (folder / "metadata.csv").write_text(table + "\n", encoding="utf-8")
    done = data_import(DataImportSettings(dataset=tmp_path / "set", sources=(folder,), language="am", workers=1))
    assert [clip.text for clip in read_manifest(tmp_path / "set" / "manifest.jsonl")] == [
        "ቁጥር ሶስት [en]MP 3[/en] ሶስት",
        "ሰላም it ነው",
    ]
    assert [(problem.code, problem.line) for problem in done.problems] == [("text-span", line) for line in (2, 3, 5)]


def test_changes_of_a_text_with_spans_are_recorded_and_lead_to_the_result() -> None:
    text = "በ1987 [en]in 1987[/en] ዓ.ም. [am]3[/am] «x»"
    found = normalize_marked_text(build_normalizer("am"), text)
    assert found.text.startswith("በአንድ ሺህ ዘጠኝ መቶ ሰማንያ ሰባት [en]in 1987[/en] ")
    assert "[am]ሶስት[/am]" in found.text
    assert replay_changes(text, found.changes) == found.text
    assert all(found.text[note.place :].startswith(note.text) for note in found.notes)
    assert normalize_marked_text(build_normalizer("am"), found.text).text == found.text


def test_subtitles_lose_sounds_in_brackets_and_keep_spans() -> None:
    text = "1\n00:00:01,000 --> 00:00:03,000\n[music] ሰላም [en]my friend[/en] [laughs]\n"
    cues, _ = parse_subtitles(text, ".srt", "a.srt")
    kept, problems = clean_cues(cues, "am", "a.srt")
    assert [cue.text for cue in kept] == ["ሰላም [en]my friend[/en]"]
    assert problems == list[SourceProblem]()
