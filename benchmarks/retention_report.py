"""The results of the retention benchmark: numbers of each method, tables for a log, and the picture."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import median, stdev
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.retention_training import JOBS, METHODS, SHARES
from voxgraft.evaluation.command import place_labels
from voxgraft.training.plots import COLORS, DOTS_PER_INCH, MATPLOTLIB_STYLE, MUTED_COLOR, TEXT_COLOR

Results = Mapping[str, dict[str, Any]]
OLD = ("en", "fr")
GOALS = (0.3, 0.2, 0.1, 0.05)
"""Errors of the new language by which step they are reached is told."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What one method came to: a number for each of its seeds."""

    key: str
    title: str
    rate: float
    new: tuple[float, ...]
    """Phone error of the new language."""
    letters: tuple[float, ...]
    changes: dict[str, tuple[float, ...]]
    """Phone error of every old language after less before."""
    equal: bool
    """Whether the speech logits of old languages were the base's own (`torch.equal`), and every code they said too."""
    trained: float

    @property
    def worst(self) -> tuple[float, ...]:
        """Of each seed the worst change of an old language."""
        return tuple(map(max, zip(*self.changes.values(), strict=True)))


def summaries(results: Results) -> list[Summary]:
    """Every method at its chosen rate, with 60 minutes and romanized rows."""
    found: list[Summary | None] = []
    for key, method in METHODS.items():
        if key == "seeds":
            found += _seeds_ways(results)
            continue
        rate = chosen_rate(results, key)
        found.append(_summary(key, method.title, rate, _of(results, "run", key, rate), results))
        if key == "gated-32":
            opened = _of(results, "ungated", key, rate)
            found.append(_summary("ungated-32", "ungated LoRA 32", rate, opened, results))
        if key == "self":
            for share in SHARES:
                points = [one for one in _of(results, "point", key, rate) if one["share"] == share]
                title = f"{method.title}, {share:g} of the way"
                found.append(_summary(f"self-{share:g}", title, rate, points, results))
    return [one for one in found if one is not None]


def _seeds_ways(results: Results) -> list[Summary | None]:
    slow = _of(results, "run", "seeds", 1e-5, times=1)
    long = _of(results, "run", "seeds", 1e-5, times=10)
    fast = _of(results, "run", "seeds", 1e-4)
    return [
        _summary("seeds", "masked-finetune, 1e-4", 1e-4, fast, results),
        _summary("seeds-slow", "masked-finetune, 1e-5", 1e-5, slow, results),
        _summary("seeds-long", "masked-finetune, 1e-5, 10 times the steps", 1e-5, long, results),
    ]


def chosen_rate(results: Results, key: str) -> float | None:
    """The rate of the grid with the lowest held-out loss of the new language."""
    grid = [one for one in _of(results, "run", key, None) if one["run"]["seed"] == 0]
    return min(grid, key=lambda one: one["valid"]["am"])["run"]["rate"] if grid else None


def _of(
    results: Results, kind: str, key: str, rate: float | None, *, times: int = 1, minutes: float = 60
) -> list[dict[str, Any]]:
    """Results of a kind by their seeds; of every rate if none is named."""
    wanted = {"method": key, "minutes": minutes, "start": "romanised", "times_steps": times}
    wanted |= {} if rate is None else {"rate": rate}
    found = [one for one in results.values() if one["kind"] == kind and wanted.items() <= one["run"].items()]
    return sorted(found, key=lambda one: (one["run"]["rate"], one["run"]["seed"]))


def _summary(
    key: str, title: str, rate: float | None, found: Sequence[dict[str, Any]], results: Results
) -> Summary | None:
    if not found or rate is None or "base" not in results:
        return None
    before = results["base"]["scores"]
    return Summary(
        key,
        title,
        rate,
        tuple(error(one, "am") for one in found),
        tuple(one["scores"]["am"]["cer"]["value"] for one in found),
        {old: tuple(error(one, old) - before[old]["phone_error"]["value"] for one in found) for old in OLD},
        all(_is_equal(one, before) for one in found),
        median(one.get("train_seconds", 0.0) for one in found),
    )


def _is_equal(record: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Logits by `torch.equal`, and every code."""
    logits = all(record.get("equal", {}).get(old) is True for old in OLD)
    return logits and all(record["scores"][old]["codes"] == before[old]["codes"] for old in OLD)


def error(record: Mapping[str, Any], language: str) -> float:
    return float(record["scores"][language]["phone_error"]["value"])


def noise_of(results: Results) -> dict[str, float]:
    """By old language: how far apart two models that are equally good may come out, two times in three."""
    base = results["base"]
    draws = len(base["scores"][OLD[0]]["by_draw"])
    return {old: stdev(base["noise"][old]) * math.sqrt(2 / draws) for old in OLD}


def steps_to(curve: Sequence[Sequence[float]], goal: float) -> float | None:
    """The step at which a curve comes to an error, on straight lines between the logarithms of what was heard."""
    if curve and curve[0][1] <= goal:
        return float(curve[0][0])
    for (first, high), (second, low) in pairwise(curve):
        if low <= goal < high:
            part = math.log(high / goal) / math.log(high / max(low, 1e-4))
            return first + part * (second - first)
    return None


def tables(results: Results) -> str:
    """All of it as Markdown."""
    parts = [_about(results), _main(results), _grid(results), _minutes(results), _starts(results), _resume(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(results: Results) -> str:
    if "base" not in results:
        return ""
    base = results["base"]
    draws = len(base["scores"]["en"]["by_draw"])
    lines = [f"{base['device']}, torch {base['torch']}. Each sentence is said {draws} times; phone error in %.", ""]
    rows = []
    for language in ("am", *OLD):
        score = base["scores"][language]
        spread = f"{100 * stdev(base['noise'][language]):.2f}" if language in OLD else ""
        mark = base["marks"][language]["phone_error"]["value"]
        rows.append([language, _percent(mark), _interval(score), spread, str(score["phone_error"]["count"])])
    head = ["language", "codec", "base before (am: new rows untrained)", "sd of one draw", "sentences"]
    return "\n".join([*lines, *_table(head, rows)])


def _main(results: Results) -> str:
    rows = []
    for one in summaries(results):
        kept = "equal" if one.equal else _points(one.worst)
        changes = ["0" if one.equal else _points(one.changes[old]) for old in OLD]
        rate, seeds = f"{one.rate:g}", str(len(one.new))
        rows.append(
            [
                one.title,
                rate,
                seeds,
                _spread(one.new),
                _spread(one.letters),
                *changes,
                kept,
                f"{one.trained:.0f}" if one.trained else "",
            ]
        )
    head = ["method", "rate", "seeds", "am phone error", "am CER", "en change", "fr change", "worst", "s of training"]
    return "\n".join(_table(head, rows)) if rows else ""


def _grid(results: Results) -> str:
    rows = []
    for key, method in METHODS.items():
        cells = [
            f"{one['run']['rate']:g}: {one['valid']['am']:.3f}, {_percent(error(one, 'am'))}, {_worst(one, results)}"
            for one in _of(results, "run", key, None)
            if one["run"]["seed"] == 0
        ]
        rows += [[method.title, "; ".join(cells)]] if len(cells) > 1 else []
    head = ["method", "rate: held-out am loss, am phone error, worst change (seed 0)"]
    return "\n".join(_table(head, rows)) if rows else ""


def _minutes(results: Results) -> str:
    rows = []
    for key in dict.fromkeys(job.method for job in JOBS.values() if job.minutes):
        rate = chosen_rate(results, key)
        for minutes in (10, 30, 60):
            found = [one for one in _of(results, "run", key, rate, minutes=minutes) if one["run"]["seed"] == 0]
            rows += [
                [METHODS[key].title, str(minutes), _interval(one["scores"]["am"]), _worst(one, results)]
                for one in found
            ]
    return "\n".join(_table(["method", "minutes", "am phone error", "worst change"], rows)) if rows else ""


def _starts(results: Results) -> str:
    rate = chosen_rate(results, "gated-32")
    found = [
        one
        for one in results.values()
        if one["kind"] == "run" and one.get("curve") and (one["run"]["rate"], one["run"]["minutes"]) == (rate, 60)
    ]
    rows = [
        [f"{one['run']['start']}, seed {one['run']['seed']}", *_reached(one), _interval(one["scores"]["am"])]
        for one in found
    ]
    head = ["rows start", *(f"steps to {100 * goal:g} %" for goal in GOALS), "am phone error at the end"]
    return "\n".join(_table(head, rows)) if rows else ""


def _resume(results: Results) -> str:
    found = [results[name] for name in ("broken", "resumed", "fresh") if name in results]
    titles = {
        "broken": "no mask, random rows",
        "resumed": "gone on with from there under the mask",
        "fresh": "from the base, under the mask, random rows",
    }
    rows = [
        [titles[one["name"]], str(one["steps"]), *_reached(one), _interval(one["scores"]["am"]), _worst(one, results)]
        for one in found
    ]
    head = ["run at 1e-4", "steps", *(f"to {100 * goal:g} %" for goal in GOALS), "am phone error", "worst change"]
    return "\n".join(_table(head, rows)) if rows else ""


def _reached(record: Mapping[str, Any]) -> list[str]:
    found = [steps_to(record["curve"], goal) for goal in GOALS]
    return ["never" if step is None else f"{step:.0f}" for step in found]


def _worst(record: Mapping[str, Any], results: Results) -> str:
    before = results["base"]["scores"]
    if _is_equal(record, before):
        return "equal"
    return _points([max(error(record, old) - before[old]["phone_error"]["value"] for old in OLD)])


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _interval(score: Mapping[str, Any]) -> str:
    found = score["phone_error"]
    return f"{_percent(found['value'])} ({_percent(found['low'])} to {_percent(found['high'])})"


def _spread(values: Sequence[float]) -> str:
    """The median, and the ends where there are several."""
    ends = f" ({_percent(min(values))} to {_percent(max(values))})" if len(values) > 1 else ""
    return _percent(median(values)) + ends


def _points(values: Sequence[float]) -> str:
    return f"{100 * median(values):+.1f}" + (
        f" ({100 * min(values):+.1f} to {100 * max(values):+.1f})" if len(values) > 1 else ""
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


SIZE_INCHES = (8.0, 5.6)
MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.105, "top": 0.885}
BLUE, ORANGE, GREEN, PINK = COLORS[:4]
KINDS = {
    "gated": (BLUE, "o", "gated, or rows only: the base is unchanged"),
    "rows": (BLUE, "s", ""),
    "merged": (GREEN, "D", "with replay of base languages"),
    "open": (ORANGE, "X", "without replay"),
}
SHORT = {
    "naive": "naive, all weights",
    "seeds": "public recipe, 1e-4",
    "seeds-slow": "public recipe, 1e-5",
    "seeds-long": "public recipe, 1e-5, 10× steps",
    "rows": "rows only",
    "ungated-32": "LoRA 32, no gate",
    "replay": "all weights, replay of recordings",
    "self": "all weights, replay spoken by the base, KL",
    "self-lora": "LoRA, replay spoken by the base, KL",
    "self-0.25": "25 %",
    "self-0.5": "50 %",
    "self-0.75": "75 % of the way from base to result",
}
ACROSS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)
UP = (-2, -1, 0, 1, 2, 5, 10, 20, 50, 100, 200)
LEAST = 0.5
LINEAR_UP = 1.0
# How often each sentence of the logged run was spoken.
LOGGED_DRAWS = 3
Place = tuple[float, float]


def drawn(results: Results) -> dict[str, bytes]:
    """PNG and SVG; the same results give the same bytes."""
    if "base" not in results:
        return draw_summaries(summaries(results), None, 0.0)
    return draw_summaries(summaries(results), error(results["base"], "am"), max(noise_of(results).values()))


def draw_logged(page: str) -> dict[str, bytes]:
    """The same picture from the tables of `docs/log.md`, where the results of a run are no longer at hand."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in page.splitlines()]
    keys = {method.title: key for key, method in METHODS.items()} | {"ungated LoRA 32": "ungated-32"}
    keys |= {f"{METHODS['self'].title}, {share:g} of the way": f"self-{share:g}" for share in SHARES}
    slow = "as in the seeds, 1e-5"  # the recipe's name in the log of that day
    keys |= {"as in the seeds, 1e-4": "seeds", slow: "seeds-slow", f"{slow}, 10 times the steps": "seeds-long"}

    def numbers(cell: str) -> tuple[float, ...]:
        # `median (least to most)`: the three values of three seeds, in per cent.
        return tuple(float(number) / 100 for number in re.findall(r"[-+]?[0-9.]+", cell))

    head = ["method", "rate", "seeds", "am phone error", "am CER", "en change", "fr change", "worst", "s of training"]
    first = rows.index(head) + 2
    found = []
    for title, rate, _, new, letters, *changes, worst, _ in takewhile(lambda row: len(row) == len(head), rows[first:]):
        if title in keys:
            old = dict(zip(OLD, map(numbers, changes), strict=True))
            equal = worst == "equal"
            values = numbers(new), numbers(letters), old
            found.append(Summary(keys[title], title, float(rate), *values, equal, 0.0))
    before = next(numbers(row[2])[0] for row in rows if row[0] == "am" and len(row) == 5)
    spread = max(float(row[3]) for row in rows if row[0] in OLD and len(row) == 5 and row[3]) / 100
    return draw_summaries(found, before, spread * math.sqrt(2 / LOGGED_DRAWS))


def draw_summaries(found: Sequence[Summary], before: float | None, noise: float) -> dict[str, bytes]:
    """The picture of some methods, of the error before training and of the noise of a measured change, as shares."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**MATPLOTLIB_STYLE, "font.size": 9})
        figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        figure.subplots_adjust(**MARGINS)
        places = [_draw(axes, one) for one in found]
        names = [SHORT.get(one.key, one.title) for one in found]
        if before is not None:
            places.append(_before(axes, 100 * before))
            names.append("before training")
            _noise(axes, 200 * noise)
        _frame(axes, places)
        _path(axes, found, places[: len(found)])
        _legend(axes)
        figure.text(
            0.012, 0.955, "Teaching Amharic to a base that speaks English and French", fontsize=11.5, color=TEXT_COLOR
        )
        figure.text(
            0.012,
            0.915,
            "low and left is best; bars: range of three seeds; line: interpolated weights",
            fontsize=9,
            color=MUTED_COLOR,
        )
        place_labels(axes, names, places)
        for text in axes.texts:
            text.set_path_effects([withStroke(linewidth=2.5, foreground="white", alpha=0.85)])
        return {form: _saved(figure, form) for form in ("png", "svg")}


def _draw(axes: Axes, one: Summary) -> Place:
    colour, marker, _ = KINDS[_kind(one)]
    xs = [max(LEAST, 100 * value) for value in one.new]
    ys = [0.0 if one.equal else 100 * value for value in one.worst]
    place = (median(xs), median(ys))
    axes.plot([min(xs), max(xs)], [place[1]] * 2, color=colour, linewidth=1.5, alpha=0.6, zorder=2)
    axes.plot([place[0]] * 2, [min(ys), max(ys)], color=colour, linewidth=1.5, alpha=0.6, zorder=2)
    small = one.key.startswith("self-0")
    axes.plot(
        *[[value] for value in place], marker, color=colour, markersize=5 if small else 8, zorder=3, clip_on=False
    )
    return place


def _kind(one: Summary) -> str:
    if one.key.startswith("gated"):
        return "gated"
    if one.key == "rows":
        return "rows"
    return "merged" if one.key.startswith(("self", "replay")) else "open"


def _path(axes: Axes, found: Sequence[Summary], places: Sequence[Place]) -> None:
    """From the base to what replay with KL has made of it."""
    by_key = {one.key: place for one, place in zip(found, places, strict=True)}
    way = [by_key[key] for key in ("self-0.25", "self-0.5", "self-0.75", "self") if key in by_key]
    if len(way) > 1:
        axes.plot(*zip(*way, strict=True), color=KINDS["merged"][0], linewidth=0.9, alpha=0.6, zorder=1)


def _before(axes: Axes, new: float) -> Place:
    axes.plot([new], [0], "o", color="white", mec=MUTED_COLOR, mew=1.5, markersize=7, zorder=3)
    return new, 0.0


def _noise(axes: Axes, noise: float) -> None:
    """As far as two equally good models differ by chance, nineteen times in twenty."""
    axes.axhspan(-noise, noise, color="#f0f0f0", zorder=0)
    way = axes.get_yaxis_transform()
    note = axes.text(0.5, -0.6 * noise, "sampling noise", transform=way, ha="center", va="center")
    note.set(fontsize=7.5, color=MUTED_COLOR)


def _frame(axes: Axes, places: Sequence[Place]) -> None:
    axes.set_xlabel("phone error rate in Amharic after training, %")
    axes.set_ylabel("increase of phone error rate, English or French (the larger), points")
    axes.axhline(0, color=MUTED_COLOR, linewidth=1, zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR_UP, linscale=0.6)
    xs, ys = [x for x, _ in places], [y for _, y in places]
    axes.set_xlim(max(LEAST, 0.6 * min(xs, default=1.0)), 1.5 * max(xs, default=100.0))
    axes.set_ylim(min(-1.5 * LINEAR_UP, 1.5 * min(ys, default=0.0)), max(5.0, 1.9 * max(ys, default=0.0)))
    axes.xaxis.set_major_locator(FixedLocator(ACROSS))
    axes.yaxis.set_major_locator(FixedLocator(UP))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))


def _legend(axes: Axes) -> None:
    for colour, marker, title in KINDS.values():
        if title:
            axes.plot([], [], marker, color=colour, label=title)
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 1.15), ncols=1, borderaxespad=0)


def _saved(figure: Figure, form: str) -> bytes:
    stream = io.BytesIO()
    nameless = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(stream, format=form, dpi=DOTS_PER_INCH, metadata=nameless)
    return stream.getvalue()
