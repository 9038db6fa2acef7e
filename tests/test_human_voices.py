"""Human voices for the recipe: readers of packages, what is held out, and a pack that needs NumPy alone."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from recipes.human_voices.gather import capped, choose_splits, compare_letters, read_source
from recipes.human_voices.pack import HumanClip, decode, encode, mu_law_decode, mu_law_encode, read_pack, write_pack
from recipes.human_voices.packages import PACKAGES, SOURCES, Source
from tests.contract.test_encoders import clip as speech_like

BY_NAME = {source.name: source for source in SOURCES}


def wave_of(seconds: float, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return (speech_like(seconds, seed) * 32767).astype(np.int16)


def noise_db(
    wave: np.ndarray[tuple[int], np.dtype[np.int16]], other: np.ndarray[tuple[int], np.dtype[np.int16]]
) -> float:
    """The noise below the sound, in decibels."""
    difference = wave.astype(float) - other
    return float(10 * np.log10((wave.astype(float) ** 2).sum() / (difference**2).sum()))


def made_clips(source: Source, count: int, speakers: tuple[str, ...] = ("one",)) -> list[HumanClip]:
    silent = np.zeros(100, np.int16)
    return [
        HumanClip(
            source.name,
            f"{speaker}-{number}",
            source.language,
            speaker,
            f"Text, number {chr(97 + number // 26)}{chr(97 + number % 26)} of all.",
            source.licence,
            "train",
            silent,
        )
        for speaker in speakers
        for number in range(count)
    ]


# ---- the pack --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 319, 320, 321, 16_000])
def test_a_wave_of_any_length_is_decoded_at_its_length_and_hardly_noisier(samples: int) -> None:
    wave = wave_of(1.0)[:samples]
    codes, levels = encode(wave)
    made = decode(codes, levels, samples)
    assert len(made) == samples
    assert samples < 300 or noise_db(wave, made) > 15
    assert noise_db(wave_of(1.0), decode(*encode(wave_of(1.0), 0.04), 16_000, 0.04)) > 25
    assert not decode(*encode(np.zeros(800, np.int16)), 800).any()


def test_a_pack_has_every_clip_as_it_was_and_is_smaller_than_mu_law(tmp_path: Path) -> None:
    clips = made_clips(BY_NAME["festvox-ru"], 3)
    clips = [
        replace(clip, wave=wave_of(2.0 + number, number), text=f"Текст «{number}»") for number, clip in enumerate(clips)
    ]
    write_pack(tmp_path / "voices.npz", clips)
    found = read_pack(tmp_path / "voices.npz")
    for one, other in zip(clips, found, strict=True):
        assert replace(one, wave=other.wave) == other
        assert noise_db(one.wave, other.wave) > 15
        alone = decode(*encode(one.wave), len(one.wave))
        np.testing.assert_array_equal(alone, other.wave)
    assert (tmp_path / "voices.npz").stat().st_size < sum(len(clip.wave) for clip in clips)


def test_a_file_that_is_no_pack_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", notes=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match=r"x\.npz"):
        read_pack(tmp_path / "x.npz")


def test_mu_law_keeps_every_sample_within_its_step() -> None:
    wave = np.arange(-32768, 32767, 7).astype(np.int16)
    made = mu_law_decode(mu_law_encode(wave))
    assert (np.abs(made.astype(int) - wave) <= 16 + np.abs(wave.astype(int)) * 0.025).all()
    assert noise_db(wave_of(1.0), mu_law_decode(mu_law_encode(wave_of(1.0)))) > 30


# ---- what is held out ------------------------------------------------------------------------------------------------


def test_sixty_russian_sentences_are_held_out_and_no_training_clip_has_their_text() -> None:
    clips = made_clips(BY_NAME["festvox-ru"], 200)
    clips += [replace(clip, name=f"again {clip.name}", text=clip.text.upper()) for clip in clips[:100]]
    found = choose_splits(BY_NAME["festvox-ru"], clips)
    test = [clip for clip in found if clip.split == "test"]
    assert len(test) == 60
    held = {compare_letters(clip.text) for clip in found if clip.split in ("test", "valid")}
    learned = {compare_letters(clip.text) for clip in found if clip.split == "train"}
    assert not held & learned
    assert len(held) == 70
    assert len(learned) == 130


def test_each_speaker_of_a_source_has_sentences_held_out_from_all_its_speakers() -> None:
    found = choose_splits(BY_NAME["fillets-cs"], made_clips(BY_NAME["fillets-cs"], 100, ("cs-m", "cs-v")))
    for speaker in ("cs-m", "cs-v"):
        assert sum(clip.split == "test" and clip.speaker == speaker for clip in found) == 30
    held = {clip.text for clip in found if clip.split != "train"}
    assert not held & {clip.text for clip in found if clip.split == "train"}


@pytest.mark.parametrize("name", ["asterisk-ru", "asterisk-en", "asterisk-fr", "asterisk-es"])
def test_unseen_voices_are_in_no_other_split_and_of_sentences_only(name: str) -> None:
    clips = [*made_clips(BY_NAME[name], 100), replace(made_clips(BY_NAME[name], 1)[0], name="short", text="One word")]
    found = choose_splits(BY_NAME[name], clips)
    assert {clip.split for clip in found} == {"unseen"}
    assert len(found) == 60
    assert "short" not in {clip.name for clip in found}


def test_the_choice_does_not_depend_on_the_order_of_files() -> None:
    clips = made_clips(BY_NAME["festvox-ru"], 120)
    splits = [
        {clip.name: clip.split for clip in choose_splits(BY_NAME["festvox-ru"], some)} for some in (clips, clips[::-1])
    ]
    assert splits[0] == splits[1]


def test_one_speaker_is_never_both_learned_and_unseen() -> None:
    # Asterisk's English and Spanish voices are one person.
    unseen = {source.name for source in SOURCES if source.is_unseen}
    assert {"asterisk-en", "asterisk-es"} <= unseen
    assert {source.name for source in SOURCES if "may ship" in source.licence or "BSD" in source.licence} == {
        "festvox-ru"
    }
    packages = [
        source.name.replace("asterisk-", "asterisk-core-sounds-").replace("fillets-", "fillets-ng-data-")
        for source in SOURCES
    ]
    assert all(any(package.startswith(name) for package in PACKAGES) for name in packages)
    extra = [source for source in SOURCES if source.is_extra]
    assert extra
    assert not any(source.is_unseen for source in extra)


# ---- readers ---------------------------------------------------------------------------------------------------------


def test_packages_are_read_with_their_texts_and_speakers(tmp_path: Path) -> None:
    def sound(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, wave_of(1.5), 16_000)

    voice = tmp_path / "usr/share/festival/voices/russian/msu_ru_nsh_clunits"
    sound(voice / "wav/ru_1.wav")
    sound(voice / "wav/ru_2.wav")
    (voice / "etc").mkdir()
    (voice / "etc/txt.done.data").write_text('( ru_1 "Вол+ос за ухо." )\n( ru_2 "Их было 12." )\n', encoding="utf-8")
    (russian,) = read_source(BY_NAME["festvox-ru"], tmp_path)  # a number can be read in several ways
    assert (russian.text, russian.speaker, russian.language) == ("Волос за ухо.", "nsh", "ru")
    assert int(np.abs(russian.wave).max()) == round(0.6 * 32767)

    below = tmp_path / "usr/share/asterisk/sounds/it_IT_m_Carlo"
    for name in ("vm-a", "letters/b", "no-text"):
        sound(below / f"{name}.wav")
    listed = tmp_path / "usr/share/doc/asterisk-core-sounds-it/core-sounds-it.txt.gz"
    listed.parent.mkdir(parents=True)
    listed.write_bytes(gzip.compress(b"; comment\nvm-a: Buon giorno.\nletters/b: b\nno-text: [a tone]\n"))
    (italian,) = read_source(BY_NAME["asterisk-it"], tmp_path)
    assert (italian.text, italian.split) == ("Buon giorno.", "train")

    game = tmp_path / "usr/share/games/fillets-ng"
    sound(game / "sound/reef/cs/re-m-ahoj.ogg")
    (game / "script/reef").mkdir(parents=True)
    script = 'dialogId("re-m-ahoj", "font_small", "Hello")\ndialogStr("Ahoj, jak je?")\ndialogId("re-x", "", "")\ndialogStr("Ne")\n'
    (game / "script/reef/dialogs_cs.lua").write_text(script, encoding="utf-8")
    (czech,) = read_source(BY_NAME["fillets-cs"], tmp_path)
    assert (czech.text, czech.speaker) == ("Ahoj, jak je?", "cs-m")


def test_captions_and_words_are_found_with_their_languages(tmp_path: Path) -> None:
    stamps = tmp_path / "usr/share/tuxpaint/stamps/animals"
    stamps.mkdir(parents=True)
    (stamps / "cat.txt").write_text("A cat.\nca.utf8=Un gat.\nru.utf8=Кошка.\n", encoding="utf-8")
    for name in ("cat.ogg", "cat_desc.ogg", "cat_desc_ru.ogg", "cat_desc_ca.ogg", "cat_desc_fr.ogg"):
        soundfile.write(stamps / name.replace(".ogg", ".wav"), wave_of(1.0), 16_000)
    words = tmp_path / "usr/share/klettres/hu/alpha"
    words.mkdir(parents=True)
    soundfile.write(words / "a.ogg", wave_of(0.6), 16_000)
    (words / "notes.txt").touch()
    found = {clip.language: clip for clip in read_source(BY_NAME["tuxpaint"], tmp_path)}
    assert {language: clip.text for language, clip in found.items()} == {"ru": "Кошка.", "ca": "", "fr": ""}
    assert {clip.speaker for clip in found.values()} == {"tuxpaint-ru", "tuxpaint-ca", "tuxpaint-fr"}
    (clip,) = read_source(BY_NAME["klettres"], tmp_path)
    assert (clip.language, clip.speaker, clip.text) == ("hu", "klettres-hu", "")
    assert choose_splits(BY_NAME["klettres"], [clip]) == [clip]


def test_a_pack_to_train_on_has_no_held_out_clip_and_a_cap_for_each_speaker() -> None:
    minute = np.zeros(60 * 16_000, np.int16)
    klettres = [replace(clip, wave=minute) for clip in made_clips(BY_NAME["klettres"], 5, ("one", "two"))]
    festvox = [
        replace(clip, wave=minute)
        for clip in choose_splits(BY_NAME["festvox-ru"], made_clips(BY_NAME["festvox-ru"], 90))
    ]
    kept = capped([*klettres, *festvox])
    assert [clip.speaker for clip in kept if clip.package == "klettres"] == ["one", "two"]
    assert {clip.split for clip in kept} == {"train", "valid"}
    assert sum(clip.package == "festvox-ru" for clip in kept) == 30
    assert capped([*festvox, *klettres[::-1]]) == kept
