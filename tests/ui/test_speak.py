"""The tab Speak says what it is reported, with whom it is reported, and plays it; the base alone is beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, done, form_of, tab_of, words_of
from voxgraft.core.errors import ConfigError

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.tabs import speak

WHO = {"speak": "with the graft", speak.BASE_JOB: "the base alone"}


@pytest.fixture
def context(home: Path) -> Iterator[Any]:
    with tab_of(home, "speak") as found:
        yield found


def base_words(context: Any, **typed: Any) -> list[str]:
    form = form_of(context, "speak")
    keys = [control.leaf.key for control in form.controls]
    values = form.initial_values(PROJECT)
    for name, value in typed.items():
        values[keys.index(name)] = value
    return speak.build_base_argv(context, form, PROJECT, values)


def test_the_project_speaks_its_language_into_a_new_folder_of_its_own(context: Any, home: Path) -> None:
    said = ["speak", "ሰላም", "--run", PROJECT, "--language", "am"]
    assert words_of(context, "speak", text="ሰላም") == [*said, "--output", f"{PROJECT}/spoken/speech", "--json"]
    (home / PROJECT / "spoken" / "speech").mkdir(parents=True)
    assert words_of(context, "speak", text="ሰላም") == [*said, "--output", f"{PROJECT}/spoken/speech-2", "--json"]
    assert "x.wav" in words_of(context, "speak", text="ሰላም", output="x.wav")


def test_where_codes_are_asked_for_no_sound_is_demanded(context: Any) -> None:
    words = words_of(context, "speak", text="ሰላም", codes="c.json")
    assert "--output" not in words
    assert words[words.index("--codes") + 1] == "c.json"


def test_every_line_is_an_utterance_and_no_line_is_a_flag(context: Any) -> None:
    words = words_of(context, "speak", text="ሰላም\n\n--overwrite\n")
    assert words[words.index("--") + 1 :] == ["ሰላም", "--overwrite"]
    assert "--overwrite" not in words[: words.index("--")]
    assert "--json" in words[: words.index("--")]


def test_every_way_of_drawing_reaches_the_verb(context: Any) -> None:
    typed = {"temperature": "0.5", "top_k": "7", "top_p": "0.9", "min_p": "0.1", "repetition_penalty": "1.5"}
    words = words_of(context, "speak", text="a", seed=3, max_seconds="4", **typed)
    for key, value in {**typed, "seed": "3", "max_seconds": "4"}.items():
        assert words[words.index(f"--{key.replace('_', '-')}") + 1] == value


def test_a_voice_may_be_a_name_or_a_file_inside_the_roots_and_no_other(context: Any, home: Path) -> None:
    (home / "me.wav").write_bytes(b"RIFF")
    assert "me.wav" in words_of(context, "speak", text="a", voice="me.wav")
    assert "f2" in words_of(context, "speak", text="a", voice="f2")
    with pytest.raises(Exception, match="ui-outside"):
        words_of(context, "speak", text="a", voice="../../etc/me.wav")


def test_the_base_alone_is_asked_for_the_same_without_the_run(context: Any) -> None:
    words = base_words(context, text="hello", language="en", seed=5, step="2")
    assert words[:2] == ["speak", "hello"]
    assert "--base" in words
    assert words[words.index("--seed") + 1] == "5"
    assert not {"--run", "--step"} & set(words)
    assert words[words.index("--output") + 1] == f"{PROJECT}/spoken/base"


def test_what_was_said_can_be_heard_and_saved_beside_what_the_base_says(context: Any, home: Path) -> None:
    assert speak.spoken_html(context, PROJECT, WHO) == ""
    limits = {"max_seconds": "1", "language": "en"}
    done(home, "speak", words_of(context, "speak", text="hello\nworld", **limits))
    alone = speak.spoken_html(context, PROJECT, WHO)
    assert alone.count("<audio") == 2
    assert alone.count("with the graft (en)") == 4  # as titles, and as names of the players
    job = done(home, speak.BASE_JOB, base_words(context, text="hello\nworld", **limits))
    both = speak.spoken_html(context, PROJECT, WHO)
    assert both.count("<audio") == 4, job.tail()
    titles = re.findall(r"<strong>([^<]+)</strong>", both)
    assert titles[:4] == ["with the graft (en)", "the base alone (en)"] * 2
    assert both.count(" download=") == 4
    for address in re.findall(r'src="/pages/secret/([^"?]+)', both):
        assert (home / address).read_bytes()[:4] == b"RIFF"


def test_an_error_of_the_verb_is_shown_with_its_cure(context: Any, home: Path) -> None:
    (home / "noise.wav").write_bytes(b"this is not a sound")
    done(home, "speak", words_of(context, "speak", text="hello", language="en", voice="noise.wav"))
    shown = speak.spoken_html(context, PROJECT, WHO)
    assert "noise.wav" in shown
    assert "fix:" in shown
    assert "<audio" not in shown


def test_the_base_alone_is_offered_only_in_languages_that_it_speaks(context: Any, home: Path) -> None:
    assert speak.run_base_languages(home / PROJECT) == ("en", "fr")
    assert "--language" in base_words(context, text="hello", language="en")
    with pytest.raises(ConfigError) as caught:
        base_words(context, text="ሰላም", language="am")
    assert "en, fr" in caught.value.finding.found


def test_a_refusal_to_start_goes_when_the_values_are_whole(context: Any) -> None:
    form = form_of(context, "speak")
    keys = [control.leaf.key for control in form.controls]
    values = form.initial_values(PROJECT)
    assert "__type__" in form._clear_refusal(form.view, form.words, PROJECT, values), "nothing changes: still no text"
    values[keys.index("text")] = "ሰላም"
    assert form._clear_refusal(form.view, form.words, PROJECT, values) == "", "no job yet, and no error"
