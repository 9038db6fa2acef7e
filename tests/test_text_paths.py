"""Every way from a text to the model has the ids of training: `prepare`, samples, `evaluate`, `speak` and the pages.

Two of the ways, the programs of exports, are in test_text_front_end.py.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from hypothesis import HealthCheck, given, settings

import voxgraft.graft.command as graft_verb
from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import RATE, resolved, voice_like
from tests.support.ui import form_of, tab_of
from tests.test_text_front_end import LANGUAGES, any_text, texts_of
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.load import read_tensor_shapes
from voxgraft.cli import run_cli
from voxgraft.config.commands import GoSettings, NewSettings, SpeakSettings, TokenizerShowSettings
from voxgraft.config.run import RowSettings, RunSettings, VocabularySettings, rewrite_run_yaml
from voxgraft.core.languages import find_exemplar
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import ManifestClip, SplitName, select_clips, write_manifest
from voxgraft.dataset.run_data import DataRequirements
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.dataset.shards import ClipDataset
from voxgraft.evaluation.in_training import build_sample_sentences
from voxgraft.evaluation.judge import _RetokenizedClipSet
from voxgraft.evaluation.scores import _build_request
from voxgraft.evaluation.sentences import load_manifest_sentences
from voxgraft.graft.command import tokenizer_show
from voxgraft.graft.folder import load_graft
from voxgraft.graft.rows import build_new_rows
from voxgraft.models import family_names, get_family
from voxgraft.models.base import BaseFiles, Clip
from voxgraft.models.speech_model import load_model
from voxgraft.pipeline.command import create_run, run_pipeline
from voxgraft.preprocess.command import EncodedClips, FrontEndFiles, make_prepared_dataset
from voxgraft.preprocess.encode import BatchStore
from voxgraft.synthesis.command import plan_utterance
from voxgraft.synthesis.engine import ModelContext, SpeakingModel, SynthesisModels, open_grafted_model
from voxgraft.synthesis.inputs import ReferenceVoice, VoiceLoader, has_speakable_text, read_utterances
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.text.normalize import build_text_rules
from voxgraft.tokenizers import TextCorpus, open_tokenizer
from voxgraft.tokenizers.prove import prove_tokenizer
from voxgraft.ui.commands import run_command_in_process

RANDOM_LANGUAGES = ("am", "uk", "nv", "chr", "ff-Adlm")
NFC = partial(unicodedata.normalize, "NFC")
Ids = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Grafted:
    """A run with a graft of one language, and the spelling that the graft was made with."""

    run: RunFolder
    text_encoder: TextEncoder

    @property
    def language(self) -> str:
        return str(self.text_encoder.language)

    @cache  # noqa: B019 (for the length of the module)
    def ids(self, text: str) -> Ids:
        """The ids that every other way must have."""
        return tuple(self.text_encoder.encode(text, self.language))


@dataclass(frozen=True, eq=False)
class Home:
    """Runs of many languages on one base, whose codes and voices all of them borrow."""

    folder: Path
    files: BaseFiles
    place: ModelContext
    shapes: dict[str, tuple[int, ...]]
    """Of the base's tensors."""
    lent: ClipDataset
    voice: ReferenceVoice
    grafts: dict[str, Grafted]

    @cache  # noqa: B019
    def system(self, language: str) -> SpeakingModel:
        """What `evaluate` and `speak` open for a graft."""
        return open_grafted_model(self.place, load_graft(self.grafts[language].run.graft))


def make_grafts(name: str, folder: Path, files: BaseFiles, languages: Sequence[str]) -> dict[str, Grafted]:
    """Graft folders as the command writes them. The proof over the base's languages, most of its time, is left out."""
    kind, base = get_family(name), open_tokenizer(files.tokenizer)
    card: dict[str, Any] = {}
    proof = None
    made = {}
    with open_checkpoint(files.checkpoint) as checkpoint:
        for language in languages:
            before = TextEncoder.of(kind, base, None, language)
            learnt = learn_language_pieces(
                before, TextCorpus(own_texts(language)), VocabularySettings(pieces=20, min_count=2)
            )
            text_encoder = replace(before, grown=learnt.grown)
            rows = build_new_rows(checkpoint, text_encoder, RowSettings(init="mean"))
            card = card or graft_verb.describe_base(text_encoder, files)
            proof = proof or prove_tokenizer(
                base, learnt.grown, (), text_encoder.prepare_base, text_encoder.new_text(())
            )
            run = RunFolder(folder / language)
            run.path.mkdir(parents=True)
            run.settings.write_text(f"base: {files.folder}\nfamily: {name}\nlanguage: {language}\n", encoding="utf-8")
            graft_verb.write_graft_folder(run.graft, text_encoder, card, rows, RowSettings(), proof)
            made[language] = Grafted(run, text_encoder)
    return made


@pytest.fixture(scope="module", params=family_names())
def home(request: pytest.FixtureRequest, fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> Home:
    kind, made = get_family(request.param), fixtures.whole_run(request.param)
    folder = tmp_path_factory.mktemp(kind.name)
    model = load_model(kind, made.files, device="cpu", dtype=torch.float32)
    place = ModelContext(kind, made.files, "cpu", torch.float32, opened=model)
    lent = open_clip_dataset(made.folder.data_set("train"))
    voice = ReferenceVoice("lent", Clip(lent.codes(0), lent.voice(0)))
    shapes = dict(read_tensor_shapes(made.files.checkpoint))
    grafts = make_grafts(kind.name, folder, made.files, LANGUAGES)
    return Home(folder, made.files, place, shapes, lent, voice, grafts)


def manifest_of(one: Grafted, texts: Sequence[str]) -> Path:
    """Clips of these texts; their sound is never read here."""
    splits: tuple[SplitName, ...] = ("train", "validation", "test")
    clips = [
        ManifestClip(f"clip{at}-{split}", f"{at}.wav", 1.0, text, one.language, "a", f"{at}", 24_000, split=split)
        for at, text in enumerate(texts)
        for split in splits
    ]
    path = one.run.data / "manifest.jsonl"
    write_manifest(path, clips)
    return path


def prepared(home: Home, one: Grafted, manifest: Path) -> ClipDataset:
    """The set that `prepare` makes of a manifest, where the sound of every clip is encoded already."""
    graft, kind, files = load_graft(one.run.graft), home.place.family, home.files
    base = (kind, files, open_tokenizer(files.tokenizer))
    wanted = DataRequirements.of(one.run, RunSettings(), graft, base, home.shapes)
    front_end = FrontEndFiles({}, graft.card.base["checkpoint_sha256"])
    chosen = [clip for clip in select_clips(manifest, one.language)[0] if clip.split == "train"]
    encoded = EncodedClips(BatchStore(one.run.data / "none"), {clip.id: (home.lent, 0) for clip in chosen})
    clips = [(clip, clip.resolve_audio(manifest.parent), clip.id) for clip in chosen]
    make_prepared_dataset(wanted, front_end, encoded, {}, "train", clips)
    return open_clip_dataset(one.run.data_set("train"))


def own_texts(language: str) -> tuple[str, ...]:
    """The texts of the other tests of text, with one text for all marks of punctuation, to save time."""
    entry, texts = find_exemplar(language), texts_of(language)
    assert entry is not None
    marks = [mark for mark in entry.punctuation if not mark.isspace()]
    first, last = texts[1].split()[0], texts[1].split()[-1]
    single = {f"{first}{mark} {last}{mark}" for mark in marks}
    breaks = f"{first}\u2028{last}\x1e{first}\x85{last}"  # line breaks to Python, spaces or nothing to the text rules
    return (*(text for text in texts if text not in single), " ".join(f"{first}{mark}" for mark in marks), breaks)


def usable(one: Grafted, texts: Sequence[str]) -> list[str]:
    """Texts that a clip can have: with a letter or a digit, and with ids."""
    return [
        text
        for text in dict.fromkeys(texts)
        if any(map(str.isalnum, text)) and has_speakable_text(text) and one.ids(text)
    ]


def compare_verbs(home: Home, language: str, texts: Sequence[str]) -> None:
    """Ids of a prepared set, of the losses on it, of evaluation sentences, of samples and of `speak`, text by text."""
    one, system, voice = home.grafts[language], home.system(language), home.voice
    manifest = manifest_of(one, texts)
    clips = prepared(home, one, manifest)
    stored = {info.text: tuple(clips.text_ids(at).tolist()) for at, info in enumerate(clips.infos)}
    assert stored == {text: one.ids(text) for text in texts}, language
    measured = _RetokenizedClipSet(clips, system, language)
    assert [tuple(measured.text_ids(at).tolist()) for at in range(len(clips))] == list(stored.values())
    found = load_manifest_sentences(manifest, language)
    sentences = found.sentences if found else ()
    reported = {sentence.text: _build_request(system, 0, sentence, voice, 0).text_ids for sentence in sentences}
    letters = [text for text in texts if any(map(str.isalpha, text))]
    assert reported == {NFC(text.strip()): one.ids(text) for text in letters}
    samples = build_sample_sentences(system.text_encoder, [f"{language.lower()}:{text}" for text in texts], (), 0)
    assert [sample.ids for sample in samples] == [one.ids(text) for text in texts]
    assert {(sample.language, sample.is_new) for sample in samples} == {(language, True)}
    compare_spoken(home, language, texts, SpeakSettings(text=tuple(texts), language=language.lower()))
    grown, kind = one.run.graft / f"tokenizer{home.files.tokenizer.suffix}", home.place.family.name
    asked = TokenizerShowSettings(
        base=home.files.tokenizer, family=kind, extended=grown, language=language, text=tuple(texts)
    )
    previewed = [
        [token for _, token, _ in one["extended"] or ()] for one in tokenizer_show(asked).to_json()["sentences"]
    ]
    assert [tuple(ids) for ids in previewed] == [one.ids(text) for text in texts]


def compare_spoken(home: Home, language: str, texts: Sequence[str], asked: SpeakSettings) -> None:
    """What `speak` gives the model. A text that is said in several pieces is read piece by piece."""
    one, system = home.grafts[language], home.system(language)
    speakers = SynthesisModels(home.place, home.place.family.languages, (system,), None)
    voices = VoiceLoader(speakers, asked, {None: home.voice})
    utterances = read_utterances(asked.text, asked.file)
    assert len(utterances) == len(texts)
    for at, text in enumerate(texts):
        planned = plan_utterance(speakers, voices, utterances[at], asked)
        assert planned.language == language
        if len(planned.pieces) == 1:
            assert tuple(planned.pieces[0].ids) == one.ids(text), (language, text)
        else:
            assert asked.split
            assert [tuple(piece.ids) for piece in planned.pieces] == [one.ids(p.text) for p in planned.pieces]
            said = "".join(piece.text for piece in planned.pieces)
            assert "".join(said.split()) == "".join(one.text_encoder.normalize_lines(text, language).split())


def compare_pages(home: Home, texts_by_language: Mapping[str, Sequence[str]]) -> None:
    """The same for the page: the preview of the tab Tokenizer, and the command of the tab Speak."""
    from voxgraft.ui.tabs.model import _tokenize_argvs

    with tab_of(home.folder, "tokenizer") as context:
        for language, texts in texts_by_language.items():
            one, lines = home.grafts[language], on_one_line(texts)
            words = _tokenize_argvs(context, language, "\n".join(lines))
            sentences = [sentence for line in words for sentence in run_command_in_process(line)["sentences"]]
            assert len(sentences) == len(lines)
            for text, sentence in zip(lines, sentences, strict=True):
                assert tuple(token for _, token, _ in sentence["extended"]) == one.ids(text), (language, text)
    with tab_of(home.folder, "speak") as context:
        form = form_of(context, "speak")
        keys = [control.leaf.key for control in form.controls]
        for language, texts in texts_by_language.items():
            lines = on_one_line(texts)
            values = form.initial_values(language)
            values[keys.index("text")] = "\n".join(lines)
            values[keys.index("split")] = False
            settings = resolved([str(word) for word in form.words(language, values)])
            assert settings.run is not None
            compare_spoken(home, language, lines, settings)


def on_one_line(texts: Sequence[str]) -> list[str]:
    """Every line of a text box is a text of its own."""
    return [text for text in texts if not set("\r\n") & set(text.strip())]


@pytest.mark.long(fast="tiny")
def test_prepare_samples_evaluate_and_speak_have_the_same_ids_for_forty_languages(home: Home) -> None:
    for language in LANGUAGES:
        compare_verbs(home, language, usable(home.grafts[language], own_texts(language)))


@pytest.mark.long
def test_the_page_has_the_same_ids_for_forty_languages(home: Home) -> None:
    """A page asks the commands above, so the families share the languages among them: each is asked once."""
    own = LANGUAGES[family_names().index(home.place.family.name) :: len(family_names())]
    compare_pages(home, {name: usable(home.grafts[name], own_texts(name)) for name in own})


def test_a_graft_of_a_language_that_the_base_speaks_is_shown_as_training_reads_it(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    files = fixtures.base("chatterbox")
    (one,) = make_grafts("chatterbox", tmp_path, files, ["fr"]).values()
    grown = load_graft(one.run.graft).tokenizer.path
    asked = TokenizerShowSettings(base=files.tokenizer, family="chatterbox", extended=grown, text=("En 2026 «oui»",))
    (french,) = tokenizer_show(asked.model_copy(update={"language": "fr"})).to_json()["sentences"]
    assert tuple(token for _, token, _ in french["extended"] or ()) == one.ids("En 2026 «oui»")
    (english,) = tokenizer_show(asked.model_copy(update={"language": "en"})).to_json()["sentences"]
    assert english["extended"] == english["base"]


@pytest.mark.long
def test_random_unicode_has_the_same_ids_in_every_verb_and_on_the_page(home: Home) -> None:
    drawn: list[str] = []

    @settings(max_examples=100, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(text=any_text)
    def draw(text: str) -> None:
        drawn.append(text)

    draw()
    chosen = {name: usable(home.grafts[name], drawn) for name in RANDOM_LANGUAGES}
    for language, texts in chosen.items():
        compare_verbs(home, language, texts)
    compare_pages(home, chosen)


# ---- whole commands -----------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "data": {"min_prompt_seconds": 0.5},
    "train": {
        **{"steps": 2, "warmup_steps": 1, "batch_tokens": 256, "rank": 4, "sample_every": 1000},
        **{"tensorboard": False, "valid_every": 2, "save_every": 1},
    },
}
"""A training of a second."""
CLIPS = 15
# Numbers in words, Latin script, no spaces between words, from right to left, a code with capitals. None of them has
# bundled sentences, which `evaluate` would take instead of the run's own texts. The functions that the verbs call are
# compared above for every language.
WHOLE_LANGUAGES = ("uk", "nl", "th", "ur", "ff-Adlm")


def raw_texts(language: str) -> list[str]:
    """Different texts as people type them: an invisible character, odd spaces and quotes in each, and a number."""
    words = texts_of(language)[1].split()
    made = []
    for at in range(CLIPS):
        first, second = words[at % len(words)], " ".join(words[at // len(words) :][:2])
        # The tiny base has no digits, so that a language whose numbers nobody reads is refused for unknown tokens.
        number = f" {2000 + at}\u200b " if build_text_rules(language).numbers else "\u200b "
        made.append(f"«{first}»{number}\u00a0{second} {first}…")
    return made


def write_list(folder: Path, texts: Sequence[str]) -> None:
    (folder / "wavs").mkdir(parents=True)
    for at in range(len(texts)):
        soundfile.write(folder / "wavs" / f"{at:02d}.wav", voice_like(1.2 + 0.05 * at, at), RATE)
    lines = [f"{at:02d}|{text}\n" for at, text in enumerate(texts)]
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("language", WHOLE_LANGUAGES)
def test_whole_verbs_write_the_same_ids_from_a_list_of_recordings_to_the_page(language: str, tmp_path: Path) -> None:
    raw = raw_texts(language)
    write_list(tmp_path / "recordings", raw)
    create_run(
        NewSettings(run=tmp_path / "run", base=Path("tiny"), language=language, sources=(tmp_path / "recordings",))
    )
    run = RunFolder(tmp_path / "run")
    sampled = {"train": {**SHORT["train"], "sample_texts": [f"{language.lower()}:{raw[0]}"]}}
    rewrite_run_yaml(run.settings, {**SHORT, **sampled})
    done = run_pipeline(GoSettings(run=run.path, max_sentences=3, until="evaluate"))
    assert done.exit_code == 0, "\n".join(str(line) for line in done.lines())
    graft, base = load_graft(run.graft), get_family("tiny").shipped_folder()
    assert base is not None
    tokenizer = open_tokenizer(get_family("tiny").files(base).tokenizer)
    text_encoder = TextEncoder.of(get_family("tiny"), tokenizer, graft.tokenizer, language, build_text_rules(language))
    expected = {tuple(text_encoder.encode(text, language)) for text in raw}
    sets = [open_clip_dataset(run.data_set(name)) for name in ("train", "valid")]
    stored = {tuple(clips.text_ids(at).tolist()) for clips in sets for at in range(len(clips))}
    assert stored <= expected
    assert len(stored) == sum(map(len, sets)) > CLIPS / 2
    sample = json.loads((run.samples / "step-000000" / f"{language}.json").read_text(encoding="utf-8"))
    assert sample["text_ids"] == text_encoder.encode(raw[0], language)
    scores = json.loads((run.path / "eval" / "default" / "scores.json").read_text(encoding="utf-8"))
    heard = [one for one in scores["utterances"] if (one["language"], one["who"]) == (language, "after")]
    judged = {tuple(one["text_ids"]) for one in heard}
    assert len(judged) == len(heard) >= 2
    assert judged <= expected
    with tab_of(tmp_path, "speak") as context:
        form = form_of(context, "speak")
        values = form.initial_values("run")
        for key, value in {"text": "\n".join(raw[:3]), "codes": "codes.json", "max_seconds": "0.1"}.items():
            values[[control.leaf.key for control in form.controls].index(key)] = value
        assert run_cli([str(word) for word in form.words("run", values)]) == 1  # speech that is cut off
    spoken = json.loads((tmp_path / "codes.json").read_text(encoding="utf-8"))["utterances"]
    assert [one["pieces"][0]["text_ids"] for one in spoken] == [text_encoder.encode(text, language) for text in raw[:3]]
