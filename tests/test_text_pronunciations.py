"""The list of pronunciations: applied wherever texts are encoded, exported with the graft, and refused where it is wrong."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fixtures import Fixtures
from tests.support.synthesis import made_graft
from tests.test_text_front_end import read_without_voxgraft, small, stock_ids, tiny_base, write_package
from tests.test_text_paths import Home, compare_verbs, home, usable
from voxgraft.config.commands import ExportSettings, PullSettings, PushSettings, TokenizerShowSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.export.command import export
from voxgraft.export.share import pull, push
from voxgraft.graft.command import tokenizer_show
from voxgraft.graft.folder import find_text_rules, load_graft, read_pronunciations
from voxgraft.inspect.text import pronunciation_findings
from voxgraft.text.encoder import text_rules_identity
from voxgraft.text.normalize import NO_RULES, TextRules, TextRulesError, build_text_rules
from voxgraft.text.normalize.generic import replay_changes

__all__ = ["home"]  # the fixture
WORDS = {"nasa": "ናሳ", "ሶስት": "ሦስት", "ቡና ቤት": "ካፌ"}


def test_whole_words_are_written_as_they_are_said() -> None:
    rules = replace(build_text_rules("am"), pronunciations=WORDS)
    reported = rules.normalizer.normalise("NASA 3 ቡና ቤት፣ NASAን nasal")
    assert reported.text == "ናሳ ሦስት ካፌ, NASAን nasal"
    assert [change.before for change in reported.changes if change.rule == "pronunciation"] == ["NASA", "ሶስት", "ቡና ቤት"]
    assert replay_changes("NASA 3 ቡና ቤት፣ NASAን nasal", reported.changes) == reported.text
    assert TextRules.from_json(json.loads(json.dumps(rules.to_json()))) == rules
    names = {rules.identity, build_text_rules("am").identity, replace(rules, pronunciations={"a": "b"}).identity}
    assert len(names) == 3
    raw = TextRules(NO_RULES, pronunciations={"nasa": "ናሳ"})
    assert (raw.apply("NASA 3"), raw.is_raw) == ("ናሳ 3", False)
    assert text_rules_identity(raw)


@pytest.mark.parametrize(
    ("language", "fold", "listed", "found", "other"),
    [
        ("de", False, "Straße", ["Straße", "STRASSE", "STRAẞE", "strasse"], "Straßen"),
        ("tr", False, "İstanbul", ["İstanbul", "İSTANBUL", "i̇stanbul"], "İstanbullu"),
        ("el", False, "Ταΐστε", ["ταΐστε", "ΤΑΪ́ΣΤΕ"], "ταΐστέ"),
        ("am", True, "ሠላም", ["ሠላም", "ሰላም"], "ሰላምታ"),
        ("am", False, "ሠላም", ["ሠላም"], "ሰላም"),
        ("uk", False, "п’ять", ["п'ять", "П’ЯТЬ", "пʼять"], "пять"),
    ],
)
def test_a_listed_word_is_found_as_people_write_it(
    language: str, fold: bool, listed: str, found: list[str], other: str, tmp_path: Path
) -> None:
    (tmp_path / "pronunciations.tsv").write_text(f"{listed}\txyz\n", encoding="utf-8")
    own = build_text_rules(language, fold_homophones=fold)
    rules = replace(own, pronunciations=read_pronunciations(tmp_path / "pronunciations.tsv", own))
    assert [rules.apply(f"a {word}.") for word in found] == ["a xyz."] * len(found)
    assert "xyz" not in rules.apply(f"a {other}.")
    again = replace(own, pronunciations=read_pronunciations(tmp_path / "pronunciations.tsv", rules))
    assert again.identity == rules.identity


def test_rules_from_before_keep_their_meaning() -> None:
    """Lists of older grafts and exports: words were folded, and not normalised."""
    stated = {**build_text_rules("am", fold_homophones=True).to_json(), "pronunciations": {"strasse": "x", "ሠላም": "y"}}
    rules = TextRules.from_json(stated)
    assert rules.apply("STRASSE Straße ሠላም") == "x Straße ሰላም"
    assert rules.identity.endswith("+pronunciations-2618c6b6")


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="naNAsቡና ቤትሶስ3.,\u200b", max_size=30), language=st.sampled_from(["am", "sw", "de"]))
def test_respelling_twice_changes_nothing(text: str, language: str) -> None:
    rules = replace(build_text_rules(language), pronunciations=WORDS)
    once = rules.apply(text)
    assert rules.apply(once) == once


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"nasa\n", "line 1"),
        (b"# x\na\tb\n\tx\n", "line 3"),
        (b"a\tb\tc\n", "line 1"),
        (b"a\tb\n\xff\tb\n", "line 2"),
        (b"a\tb\nA\tc\n", "lines 1 and 2"),
        (b"a\tb a c\n", "'a'"),
        (b"a\tb\nb\tc\n", "'a'"),
    ],
)
def test_a_wrong_list_is_refused_with_its_line(content: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / "pronunciations.tsv").write_bytes(content)
    with pytest.raises(VoxgraftError) as caught:
        read_pronunciations(tmp_path / "pronunciations.tsv")
    assert caught.value.code == "pronunciations"
    assert line in caught.value.finding.found


def test_rules_with_a_wrong_list_are_refused() -> None:
    for words in ({"a": 3}, {"": "b"}, {"a": "x b", "b": "c"}, ["a"]):
        with pytest.raises(TextRulesError):
            TextRules.from_json({"version": NO_RULES, "pronunciations": words})


def test_a_list_in_the_graft_or_the_run_counts_and_is_exported_with_it(tmp_path: Path) -> None:
    graft = made_graft(tmp_path / "run", tiny_base(), "am", 3)
    before = load_graft(graft)
    (graft / "pronunciations.tsv").write_text("nasa\tናሳ\n", encoding="utf-8")
    run = tmp_path / "project"
    shutil.copytree(graft, run / "graft")
    (run / "run.yaml").write_text("language: am\n")
    assert load_graft(run / "graft").card.rules.pronunciations == {"nasa": "ናሳ"}
    # The run that made the graft has no list, so the copy in the graft is a withdrawn one.
    assert load_graft(graft).card.rules == before.card.rules
    (run / "pronunciations.tsv").write_text("\ufeff# mine\nNASA\tናሰ\nukaz\tኡካዝ\n", encoding="utf-8")
    own = load_graft(run / "graft")
    assert own.card.rules.pronunciations == {"nasa": "ናሰ", "ukaz": "ኡካዝ"}
    assert find_text_rules(own.tokenizer.path) == own.card.rules
    assert before.card.rules == replace(own.card.rules, pronunciations={})
    # What the pages and `tokenizer show` read, and the ids of the respelled text.
    grown = run / "graft" / "tokenizer.json"
    asked = TokenizerShowSettings(base=tiny_base(), extended=grown, language="am", text=("ሰላም NASA", "ሰላም ናሰ"))
    one, two = (shown["extended"] for shown in tokenizer_show(asked).to_json()["sentences"])
    assert [token for _, token, _ in one] == [token for _, token, _ in two]
    shared = tmp_path / "shared"
    export(ExportSettings(model=run / "graft", base=tiny_base(), to="graft", output=shared))
    assert load_graft(shared).card.rules == own.card.rules
    assert (shared / "pronunciations.tsv").read_text(encoding="utf-8") == "nasa\tናሰ\nukaz\tኡካዝ\n"
    push(PushSettings(folder=shared, to=str(tmp_path / "graft.zip")))
    pulled = pull(PullSettings(source=str(tmp_path / "graft.zip"), folder=tmp_path / "pulled"))
    assert pulled.exit_code == 0
    assert load_graft(tmp_path / "pulled").card.rules == own.card.rules
    readme = (shared / "README.md").read_text(encoding="utf-8")
    assert "2 words respelled" in readme
    assert "`ukaz` as `ኡካዝ`" in readme
    # An emptied list is not exported, and graft.json is copied byte for byte, also one that is written otherwise.
    card = json.loads((run / "graft" / "graft.json").read_text(encoding="utf-8"))
    (run / "graft" / "graft.json").write_text(json.dumps(card), encoding="utf-8")
    (run / "pronunciations.tsv").write_text("# none\n", encoding="utf-8")
    export(ExportSettings(model=run / "graft", base=tiny_base(), to="graft", output=shared, overwrite=True))
    assert not (shared / "pronunciations.tsv").exists()
    assert (shared / "graft.json").read_bytes() == (run / "graft" / "graft.json").read_bytes()
    assert load_graft(shared).card.rules == before.card.rules


def test_the_check_names_listed_words_that_normalization_changes(tmp_path: Path) -> None:
    graft = made_graft(tmp_path / "run", tiny_base(), "am", 3)
    listed = graft.parent / "pronunciations.tsv"
    listed.write_text("ሰላም\tሰ\n3 ቤት\tካፌ\n", encoding="utf-8")
    assert load_graft(graft).card.rules.pronunciations == {"ሰላም": "ሰ", "ሶስት ቤት": "ካፌ"}
    for place, level in ((graft, "note"), (tmp_path / "alone", "warning")):
        if place != graft:
            shutil.copytree(graft, place)
            shutil.copyfile(listed, place / "pronunciations.tsv")
        (item,) = pronunciation_findings(load_graft(place))
        assert (item.code, item.level) == ("pronunciations-changed", level)
        assert "1 listed word" in item.found
    listed.write_text("ሰላም\tሰ\n", encoding="utf-8")
    assert pronunciation_findings(load_graft(graft)) == []


@pytest.mark.parametrize("name", ["chatterbox", "indextts2"])
def test_both_exports_respell_without_voxgraft(name: str, tmp_path: Path) -> None:
    """Ids of the text package that load.py imports, against those of training."""
    grown = small(name, "am")
    rules = replace(grown.text_encoder.rules, pronunciations=WORDS)
    text_encoder = replace(grown.text_encoder, stated_rules=rules)
    write_package(tmp_path / "out", name, rules)
    texts = ["ሰላም NASA።", "3 ቡና ቤት", "nasa, Nasa", "ሰላም"]
    read = read_without_voxgraft(tmp_path, {str(tmp_path / "out"): texts})[str(tmp_path / "out")]
    for text, handed in zip(texts, read, strict=True):
        assert isinstance(handed, str)
        assert stock_ids(text_encoder, handed) == text_encoder.encode(text, "am")
    assert "ናሳ" in str(read[0])
    assert (
        text_encoder.encode("NASA", "am") == text_encoder.encode("ናሳ", "am") != grown.text_encoder.encode("NASA", "am")
    )


@pytest.mark.long
def test_every_verb_has_the_ids_of_the_respelled_text(home: Home, fixtures: Fixtures) -> None:
    """`prepare`, losses, evaluation sentences, samples, `speak` and `tokenizer show`, as for the normaliser."""
    one = home.grafts["am"]
    listed = one.run.path / "pronunciations.tsv"
    listed.write_text("ሰላም\tሰላማ\n", encoding="utf-8")
    try:
        rules = load_graft(one.run.graft).card.rules
        assert rules.pronunciations == {"ሰላም": "ሰላማ"}
        respelled = replace(one, text_encoder=replace(one.text_encoder, stated_rules=rules))
        changed = replace(home, grafts={**home.grafts, "am": respelled})
        texts = ["ሰላም ነው።", "ቤት ሰላም", "ውሃ 3"]
        assert respelled.ids(texts[0]) == one.ids("ሰላማ ነው።") != one.ids(texts[0])
        compare_verbs(changed, "am", usable(respelled, texts))
    finally:
        listed.unlink()
