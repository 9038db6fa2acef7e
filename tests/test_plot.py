"""Curves of real journals: whole, cut off, of one line, of several runs; the same journal gives the same picture."""

from __future__ import annotations

import json
import struct
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from fontTools.fontBuilder import FontBuilder  # type: ignore[import-untyped]
from fontTools.pens.ttGlyphPen import TTGlyphPen  # type: ignore[import-untyped]
from matplotlib import font_manager
from matplotlib.figure import Figure

from tests.support.fixtures import Fixtures
from tests.support.trainers import EVERY, OPTIONS, loop_of
from voxgraft.cli import run_cli
from voxgraft.config.commands import PlotSettings
from voxgraft.core.errors import FileError
from voxgraft.core.run import SPEECH_LOSS, TEXT_LOSS, History, RunFolder
from voxgraft.evaluation.command import draw_comparison
from voxgraft.evaluation.scores import Score
from voxgraft.text.encoder import romanize
from voxgraft.training.callbacks import LogCallback
from voxgraft.training.plots import (
    _find_fonts,
    _find_fonts_for_text,
    _installed_fonts,
    make_figure_renderable,
    make_text_renderable,
    plot,
    render_run_comparison,
    render_run_curves,
)

Entry = Mapping[str, Any]
FINDING = {"code": "not-reading", "found": "text use is near zero", "level": "warning"}


@pytest.fixture(scope="module")
def entries(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The journal of a real training, with a base language beside the new one and a finding on the way."""
    run = tmp_path_factory.mktemp("plot") / "run"
    loop = loop_of(fixtures.place("chatterbox"), run, replace(OPTIONS, steps=8), replace(EVERY, valid_every=2))
    loop.validations["en"] = loop.validations["am"]
    loop.callbacks.append(
        LogCallback(lambda kind, step, _: loop.write("finding", 5, **FINDING) if (kind, step) == ("step", 5) else None)
    )
    loop.train(0)
    return loop.journal.read()


def written(folder: Path, entries: Iterable[Entry]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def pictures(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "curves.png").read_bytes(), (folder / "curves.svg").read_bytes()


def assert_pictures(folder: Path) -> str:
    """Both files are what their names say; gives the text of the SVG's comments, which hold every label."""
    png, svg = pictures(folder)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1000
    assert height > 300
    assert ET.fromstring(svg).tag.endswith("svg")
    return svg.decode()


@pytest.mark.long
def test_a_run_is_drawn_whole(entries: list[dict[str, Any]], tmp_path: Path) -> None:
    run = written(tmp_path / "amharic", entries)
    result = plot(PlotSettings(runs=(run,)))
    assert result.to_json()["files"] == [str(run / "curves.png"), str(run / "curves.svg")]
    labels = assert_pictures(run)
    assert "<!-- amharic: am, step 8 of 8 -->" in labels
    for title in ("speech loss", "text loss", "learning rates", "speed, tokens per second"):
        assert f"<!-- {title} -->" in labels
    history = History.of(entries)
    for key in (SPEECH_LOSS, TEXT_LOSS):
        assert f"<!-- chance: {history.chance[key]:.2f} -->" in labels
        assert f"<!-- step 0: {history.initial_loss(key):.2f} -->" in labels
    best = dict(history.held_out(SPEECH_LOSS))[history.best_step]
    assert f"<!-- best: step {history.best_step:,}, {best:.3f} -->" in labels
    assert "<!-- findings: step 5: not-reading -->" in labels
    assert "<!-- en -->" in labels


@pytest.mark.long
def test_the_same_journal_gives_the_same_bytes_whatever_matplotlib_is_reported(
    entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = written(tmp_path / "run", entries)
    plot(PlotSettings(runs=(run,)))
    first = pictures(run)
    assert b"<dc:date>" not in first[1]
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None, "lines.linewidth": 9, "axes.grid": False}):
        plot(PlotSettings(runs=(run,)))
        assert matplotlib.rcParams["font.size"] == 30
    assert pictures(run) == first


@pytest.mark.parametrize("kind", ["valid", "step"])
def test_a_single_line_is_enough(kind: str, entries: list[dict[str, Any]], tmp_path: Path) -> None:
    line = next(entry for entry in entries if entry["kind"] == kind)
    run = written(tmp_path / "run", [line])
    plot(PlotSettings(runs=(run,)))
    assert_pictures(run)


def test_a_run_that_trains_is_drawn_as_far_as_it_is(entries: list[dict[str, Any]], tmp_path: Path) -> None:
    run = written(tmp_path / "run", entries[:7])
    with (run / "journal.jsonl").open("a") as stream, RunFolder(run).lock():
        stream.write('{"kind": "step", "step": 9, "speech_lo')
        stream.flush()
        result = plot(PlotSettings(runs=(run,)))
    assert result.to_json()["runs"]["run"]["step"] == max(entry["step"] for entry in entries[:7])
    assert_pictures(run)


@pytest.mark.long
def test_lost_values_leave_gaps_and_no_mistakes(entries: list[dict[str, Any]], tmp_path: Path) -> None:
    holes = [{**entry, "speech_loss": None, "rates": None} if entry["step"] in (2, 4) else entry for entry in entries]
    run = written(tmp_path / "run", holes)
    plot(PlotSettings(runs=(run,)))
    assert_pictures(run)
    assert [step for step, _ in History.of(holes).held_out(SPEECH_LOSS)] == [0, 6, 8]


@pytest.mark.long
def test_no_legend_lies_on_a_curve_or_on_another_panel(
    entries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many base languages make the longest legend."""
    figures: list[Figure] = []
    # Called once, with the finished figure.
    monkeypatch.setattr("voxgraft.training.plots.make_figure_renderable", figures.append)
    english = [entry for entry in entries if entry.get("set") == "en"]
    more = [{**entry, "set": f"language {number}"} for entry in english for number in range(20)]
    render_run_curves(History.of([*entries, *more]), "a run")
    figure = figures[0]
    figure.draw_without_rendering()
    panels = [axes for axes in figure.axes if axes.axison]
    legends = {axes.get_title("left"): axes.get_legend() for axes in panels}
    places = {title: legend.get_window_extent() for title, legend in legends.items() if legend is not None}
    assert len(places) >= 4
    titles = [axes.title.get_window_extent() for axes in panels]
    for title, place in places.items():
        assert place.x1 <= figure.bbox.x1
        assert place.y0 >= 0
        assert not any(place.overlaps(axes.get_window_extent()) for axes in panels), title
        assert not any(place.overlaps(other) for other in titles), title


@pytest.mark.long
def test_several_runs_are_laid_over_each_other(
    entries: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/run", "b/run", "_$x_y$ [am]"):
        written(tmp_path / name, entries)
    result = plot(PlotSettings(runs=(Path("a/run"), Path("b/run"), Path("_$x_y$ [am]"))))
    assert result.to_json()["files"] == ["curves.png", "curves.svg"]
    labels = assert_pictures(tmp_path)
    for text in ("held-out speech loss", "held-out text loss", "a/run", "b/run", " _$x_y$ [am]"):
        assert f"<!-- {text} -->" in labels
    with pytest.raises(FileError) as error:
        plot(PlotSettings(runs=(Path("a/run"), Path("b/run"))))
    assert error.value.code == "file-exists"
    plot(PlotSettings(runs=(Path("a/run"), Path("b/run")), overwrite=True))


def test_pictures_go_where_they_are_reported_and_replace_nothing_unasked(
    entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = written(tmp_path / "run", entries)
    result = plot(PlotSettings(runs=(run,), output=tmp_path / "out" / "v1.2.PNG"))
    assert [Path(path).name for path in result.to_json()["files"]] == ["v1.2.png", "v1.2.svg"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["v1.2.png", "v1.2.svg"]
    with pytest.raises(FileError) as error:
        plot(PlotSettings(runs=(run,), output=tmp_path / "out" / "v1.2"))
    assert error.value.code == "file-exists"
    assert not (run / "curves.png").exists()


def test_a_run_without_losses_is_reported_to_train(tmp_path: Path) -> None:
    for lines in ([], [{"kind": "finding", "step": 0, **FINDING}]):
        run = written(tmp_path / "run", lines)
        with pytest.raises(FileError) as error:
            plot(PlotSettings(runs=(run,)))
        assert error.value.code == "plot-nothing"
    (run / "journal.jsonl").unlink()
    with pytest.raises(FileError, match="plot-nothing"):
        plot(PlotSettings(runs=(run,)))
    with pytest.raises(FileError, match="file-missing"):
        plot(PlotSettings(runs=(tmp_path / "nowhere",)))


@pytest.mark.long
def test_the_verb_prints_how_the_runs_stand(
    entries: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "run", entries)
    assert run_cli(["plot", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    last = next(entry for entry in reversed(entries) if entry["kind"] == "valid" and entry["set"] == "am")
    assert found["runs"]["run"]["speech_loss"] == last["speech_loss"]
    assert found["runs"]["run"]["best_step"] == last["best_step"]
    assert run_cli(["plot", str(run)]) == 0
    assert f"{last['speech_loss']:.4f}" in capsys.readouterr().out


def test_retention_is_the_rise_of_the_loss_since_step_0() -> None:
    history = History()
    for step, loss in ((0, 4.0), (10, 4.4), (20, 3.0)):
        history.add("valid", step, {"set": "am", "speech_loss": 9.0})
        history.add("valid", step, {"set": "en", "speech_loss": loss})
    assert history.language == "am"
    assert history.base_languages == ["en"]
    assert [round(share, 6) for _, share in history.retention("en")] == [0.0, 0.1, -0.25]
    assert history.retention("fr") == []
    late = History()
    late.add("valid", 10, {"set": "am", "speech_loss": 9.0})
    late.add("valid", 10, {"set": "en", "speech_loss": 4.0})
    assert late.retention("en") == []


def test_a_line_that_comes_again_replaces_the_one_before(entries: list[dict[str, Any]]) -> None:
    again = [{**entry, "speech_loss": 1.0} for entry in entries if entry["kind"] == "valid" and entry["step"] == 0]
    history = History.of([*entries, *again])
    assert history.initial_loss(SPEECH_LOSS) == 1.0
    assert len(history.held_out(SPEECH_LOSS)) == len(History.of(entries).held_out(SPEECH_LOSS))
    assert history.ended is not None
    history.add("step", 9, {"speech_loss": 1.0})
    assert history.ended is None  # it was continued with


def test_changed_steps_are_the_steps_of_the_run() -> None:
    history = History()
    history.add("start", 0, {"steps": 100, "language": "am"})
    history.add("changed", 50, {"key": "train.steps", "was": 100, "now": 250})
    assert history.num_steps == 250


def test_the_manual_names_every_kind_and_key_that_a_journal_has(entries: list[dict[str, Any]]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "training.md").read_text()
    section = page[page.index("## journal.jsonl") : page.index("## steps/")]
    named = {key for entry in entries for key in (entry["kind"], *entry)}
    assert {"start", "text_classes", "valid", "text_use", "memory_process_bytes", "end"} <= named
    assert [key for key in sorted(named) if f"`{key}`" not in section] == []


SCRIPTS = {
    "Ethiopic": "ሰላም ለዓለም",
    "Khmer": "សួស្តី ពិភពលោក",
    "Arabic": "مرحبا بالعالم",
    "CJK": "你好 世界 안녕 こんにちは",
    "emoji": "run \U0001f600 x",
}


def _text_figure(text: str) -> Figure:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], label=text)
    axes.legend()
    axes.set_title(text, fontweight="bold")
    figure.suptitle(text)
    return figure


@pytest.mark.long(fast="Ethiopic")
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_no_chart_shows_boxes_for_letters_that_its_font_lacks(text: str, entries: list[dict[str, Any]]) -> None:
    history = History.of(entries)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of every glyph that is missing
        assert render_run_comparison({text: history, "other": history}, text)["png"]
        assert render_run_curves(history, text)["svg"]
        dots = [(text, Score(0.1, 0.05, 0.2), ("en", 0.01), "gated")]
        assert draw_comparison(dots, "cer", [text])["png"]


def test_without_a_font_words_are_romanised_and_others_stay() -> None:
    if _find_fonts_for_text("ሰ"):
        pytest.skip("a font with Ethiopic is installed")
    assert make_text_renderable("REPAIR: ሰላም (3 rows)") == f"REPAIR: {romanize('ሰላም')} (3 rows)"
    assert make_text_renderable("50 % → déjà vu") == "50 % → déjà vu"


def test_a_font_that_has_the_letters_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = FontBuilder(1000, isTTF=True)
    pen = TTGlyphPen(None)
    for place in ((0, 0), (0, 700), (500, 700), (500, 0)):
        (pen.moveTo if place == (0, 0) else pen.lineTo)(place)
    pen.closePath()
    builder.setupGlyphOrder([".notdef", "sa"])
    builder.setupCharacterMap({ord("ሰ"): "sa"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "sa": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (500, 0), "sa": (600, 0)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "One Letter", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "one.ttf")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    font_manager.fontManager.addfont(tmp_path / "one.ttf")
    for kept in (_installed_fonts, _find_fonts):
        kept.cache_clear()
    try:
        figure = _text_figure("a ሰ")
        make_figure_renderable(figure)
        title = figure.axes[0].title
        assert title.get_text() == "a ሰ"
        if "One Letter" in _find_fonts_for_text("ሰ"):  # another that is installed may come first
            assert title.get_fontfamily() == ["DejaVu Sans", "One Letter"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure.savefig(tmp_path / "x.png")
    finally:
        for kept in (_installed_fonts, _find_fonts):
            kept.cache_clear()


def test_installed_fonts_are_only_looked_for_where_letters_need_them() -> None:
    _installed_fonts.cache_clear()
    assert not _find_fonts_for_text("loss of speech, step 100")
    assert _installed_fonts.cache_info().currsize == 0
