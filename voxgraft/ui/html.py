"""Pieces of HTML: notes, findings, jobs, tables, players, pictures and links. All text is escaped here.

Players, pictures and links name addresses under which the server hands out files of a project (`server.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from voxgraft.cli.app import COMMAND_LINE_ORIGIN
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.results import EXIT_BAD_INPUT, format_duration, pluralize
from voxgraft.ui.jobs import UiJob

if TYPE_CHECKING:
    from voxgraft.ui.page import PageContext

# Words and kind of note, by state of a job.
JOB_STATE_LABELS = {
    "running": ("running", "busy"),
    "stopping": ("stopping: finishing the current step; press Stop again to end it at once", "busy"),
    "done": ("done", "good"),
    "failed": ("finished with problems: see below", "bad"),
    "stopped": ("stopped", "note"),
    "lost": ("ended unexpectedly (killed, or the machine was switched off); start it again to continue", "bad"),
}
# Commands that resume what they had begun.
RESUMED_VERBS = ("go", "train", "prepare", "data import")
MAX_LOG_BYTES = 16 << 10
# Codes of one utterance that are shown if it has no sound.
MAX_SHOWN_CODES = 400
# Codes of errors that are no mistake of the user's: a value, or a project, is only missing yet.
NEEDED_CODE, NO_PROJECT_CODE = "ui-needed", "ui-no-project"
# What a form shows in place of its command before a run is open.
NO_PROJECT_WORDS = "no run is open"


# Sentences of a cure, and what in them is meant for a terminal.
_SENTENCE_BREAK = re.compile(r"(?<=[.;])\s+")
_FLAG = re.compile(r"`--([a-z][a-z0-9.-]*)([^`]*)`|--([a-z][a-z0-9.-]*)(?:[ =][A-Z][A-Za-z./-]*)?")
_COMMAND = re.compile(r"`?voxgraft ((?:data |tokenizer )?[a-z]+)\b")
_KEY = re.compile(r"`([a-z]+(?:[._][a-z_]+)*)`|\b((?:train|data|tokenizer)\.[a-z_]+)")
_LOGGED_FINDING = re.compile(
    r"^(error|warning) ([a-z0-9-]+): (.*)\n(?:  in: (.*)\n)?(?:  fix: (.*)(?:\n|$))?", re.MULTILINE
)
# What a result says about commands, for terminals.
_TYPED = re.compile(r"`voxgraft \w[^`]*`|^(?:next|speak with it): .*\bvoxgraft \w")
MAX_LOGGED_FINDINGS = 5


class PageTarget(NamedTuple):
    """A control of the page that a message can lead to."""

    tab: str
    label: str
    elem_id: str
    folds: tuple[str, ...] = ()
    """Ids of the folds around it, the outermost first: what is in a closed one is not on the page yet."""


# Controls by command and setting; a command alone is its button. The layout of the page is the same for everybody, so
# this is filled once, when the page is built.
PAGE_TARGETS: dict[tuple[str, str], PageTarget] = {}
# Errors whose control no flag in their text names, by code: command and setting.
CODE_TARGETS = {
    "sentences-missing": ("evaluate", "sentences"),
    "speak-voice": ("speak", "voice"),
    "voice-unknown": ("speak", "voice"),
    "trained-otherwise": ("go", "when_changed"),
    "source-changed": ("go", "reimport"),
    "licence-not-accepted": ("export", "accept_terms"),
    **dict.fromkeys(("text-few", "text-digits", "proof-unknown-symbols"), ("graft", "texts")),
    **dict.fromkeys(("language-unlisted", "language-spoken"), ("graft", "language")),
    **dict.fromkeys(
        ("media-missing", "text-missing", "name-ambiguous", "source-none", "source-failed", "source-unknown"),
        ("data import", "upload"),
    ),
    **dict.fromkeys(("rate-out-of-range", "plateau", "no-gain"), ("train", "train.lr_rows")),
    "clips-left-out": ("data import", "longest"),
    "speakers-many-voices": ("go", "data.speaker_from"),
    NO_PROJECT_CODE: ("", "project"),
}
# Settings of run.yaml that no form of one command owns: where they are set.
RUN_KEY_TARGETS = {
    "base": ("model", "choice"),
    "language": ("graft", "language"),
    "texts": ("graft", "texts"),
    "data.sources": ("data import", "sources"),
}
# Commands whose forms hold settings of run.yaml, for messages of a command that shows only some of them.
RUN_FORMS = ("train", "graft", "prepare", "data import", "data split", "evaluate")


def target_button(target: PageTarget, words: str = "") -> str:
    """A button that opens the tab and the folds of a control, and moves the focus there."""
    folds = " ".join(target.folds)
    return (
        f'<button type="button" class="vg-goto" data-goto="{escape(target.elem_id)}" data-tab="{escape(target.tab)}"'
        f' data-folds="{escape(folds)}">{escape(words or f"Go to “{target.label}”")}</button>'
    )


def action_button(act: str, words: str, *, label: str = "", elem_id: str = "", **data: str) -> str:
    """A button inside of an HTML part; `ACTIONS_JS` (page.py) sends `act` and `data` to the part's click event."""
    named = "".join(f' {name}="{escape(text)}"' for name, text in (("id", elem_id), ("aria-label", label)) if text)
    given = "".join(f' data-{name}="{escape(text)}"' for name, text in {"act": act, **data}.items())
    return f'<button type="button" class="vg-do"{named}{given}>{escape(words)}</button>'


def find_targets(finding: Mapping[str, Any], verb: str = "") -> Iterator[PageTarget]:
    """The controls that an error is about: by its code, the flags and settings that it names, commands of its fix."""
    texts = " ".join(str(finding.get(key) or "") for key in ("found", "expected", "cure"))
    by_code = CODE_TARGETS.get(str(finding.get("code")), ("", ""))
    # A form that has the control itself comes before another tab.
    wanted = [(verb, by_code[1]) if (verb, by_code[1]) in PAGE_TARGETS and by_code[1] else by_code]
    flags = [(quoted or plain).replace("-", "_") for quoted, _, plain in _FLAG.findall(texts)]
    wanted += [(verb, name) for name in flags]
    for key in (quoted or plain for quoted, plain in _KEY.findall(texts)):
        forms = [RUN_KEY_TARGETS[key]] if key in RUN_KEY_TARGETS else []
        forms += [(form, name) for form in RUN_FORMS if "." in key for name in (key, key.rpartition(".")[2])]
        wanted += [one for one in ((verb, key), *forms) if one in PAGE_TARGETS][:1]
    wanted += [RUN_KEY_TARGETS.get(name, ("", "")) for name in flags if (verb, name) not in PAGE_TARGETS]
    wanted += [(name, "") for name in _COMMAND.findall(str(finding.get("cure") or "")) if name != verb]
    yield from (PAGE_TARGETS[key] for key in dict.fromkeys(wanted) if key in PAGE_TARGETS)


def note_html(text: str, kind: str = "note") -> str:
    """A text in a box; `kind` is its colour: good, bad, warn, busy, note."""
    # Screen readers announce it when it appears, except for what changes every moment.
    role = "" if kind == "busy" else ' role="status"'
    return f'<div class="vg-note vg-{kind}"{role}>{escape(text)}</div>'


def error_html(error: VoxgraftError, verb: str = "") -> str:
    """An error as a box with found, where and cure; a value that is only missing yet as one plain line."""
    if error.code == NEEDED_CODE:
        found = error.finding.found
        targets = (target for (command, _), target in PAGE_TARGETS.items() if command == verb)
        buttons = "".join(target_button(target) for target in targets if target.label.lower() in found.lower())
        return f'<div class="vg-note vg-bad" role="status">{escape(found)}{buttons}</div>'
    return finding_html(error.finding.to_json(), verb)


def label_flags(text: str, verb: str) -> str:
    """A text in which flags of a command are called by the labels of their controls."""

    def label(match: re.Match[str]) -> str:
        name = (match[1] or match[3]).replace("-", "_")
        # Some flags of a command are short for settings of run.yaml.
        target = next((PAGE_TARGETS[verb, key] for key in (name, f"data.{name}") if (verb, key) in PAGE_TARGETS), None)
        value = (match[2] or "").strip()
        return f"“{target.label}”{f': {value}' if value else ''}" if target is not None else match[0]

    return _FLAG.sub(label, text)


def finding_html(finding: Mapping[str, Any], verb: str = "", *, is_brief: bool = False) -> str:
    """A finding as a box: what was found, what was expected, where, the fix, and buttons to the controls it is about.

    Flags are called by the labels of their controls. Sentences that only a terminal understands are in a fold. With
    `is_brief` all but what was found and the first button is in a fold.
    """
    kind = {"error": "bad", "warning": "warn"}.get(str(finding.get("level")), "note")
    sentences = _SENTENCE_BREAK.split(str(finding.get("cure") or ""))
    plain = [label_flags(one, verb) for one in sentences]
    is_typed = [bool(_COMMAND.search(one) or _FLAG.search(one)) for one in plain]
    cure = " ".join(one for one, typed in zip(plain, is_typed, strict=True) if not typed)
    typed = " ".join(one for one, typed in zip(sentences, is_typed, strict=True) if typed)
    found = f"<strong>{escape(label_flags(str(finding.get('found', '')), verb))}</strong>"
    parts = [
        f"<small>{word}: {escape(text)}</small>"
        for word, text in (
            ("expected", label_flags(str(finding.get("expected") or ""), verb)),
            ("in", "" if finding.get("where") == COMMAND_LINE_ORIGIN else str(finding.get("where") or "")),
            ("fix", cure),
            ("code", str(finding.get("code", ""))),
        )
        if text
    ]
    targets = [target_button(target) for target in find_targets(finding, verb)] if kind != "note" else []
    buttons = "".join(targets)
    # Where a terminal is the only way, it is not hidden.
    is_open = "" if cure or buttons else " open"
    shell = (
        f"<details{is_open}><summary>Command line</summary><small>{escape(typed)}</small></details>" if typed else ""
    )
    if is_brief:
        fold = f"<details><summary>{found}</summary>{'<br>'.join(parts)}{shell}{''.join(targets[1:])}</details>"
        return f'<div class="vg-note vg-{kind} vg-brief">{fold}{"".join(targets[:1])}</div>'
    return f'<div class="vg-note vg-{kind}">{"<br>".join([found, *parts])}{shell}{buttons}</div>'


def logged_findings(log: str) -> list[dict[str, str]]:
    """Errors and warnings that a command has printed, the last ones first: the last is what ended it."""
    keys = ("level", "code", "found", "where", "cure")
    return [dict(zip(keys, map(str, found), strict=True)) for found in _LOGGED_FINDING.findall(log + "\n")][::-1]


def findings_html(result: Mapping[str, Any], verb: str = "") -> str:
    """All findings of a command's result; those of one kind as a count that unfolds, so that the page stays short."""
    by_code: dict[str, list[Mapping[str, Any]]] = {}
    for item in result.get("findings", ()):
        by_code.setdefault(f"{item.get('level')} {item.get('code')}", []).append(item)
    shown = []
    for same in by_code.values():
        boxes = [finding_html(item, verb) for item in same]
        if len(boxes) <= MAX_LOGGED_FINDINGS:
            shown += boxes
            continue
        summary = f"{len(boxes):,} × {same[0].get('code')}: {same[0].get('found')}, ..."
        shown.append(f"<details><summary>{escape(summary)}</summary>{''.join(boxes)}</details>")
    return "".join(shown)


def warnings_html(job: UiJob, *, is_folded: bool = False) -> str:
    """What a job has warned of before its work began, such as the findings of a check; one line each, which unfolds.

    With `is_folded` their number is the one line: what was made comes first then.
    """
    warnings = [item for item in logged_findings(job.head())[::-1] if item["level"] == "warning"]
    kinds = {item["code"]: item for item in warnings}.values()
    shown = "".join(finding_html(item, job.verb, is_brief=True) for item in kinds)
    return (
        f"<details><summary>{pluralize(len(kinds), 'warning')}</summary>{shown}</details>"
        if shown and is_folded
        else shown
    )


def split_commands(output: str) -> tuple[str, str]:
    """A printed result without the sentences about commands, and those."""
    plain: list[str] = []
    typed: list[str] = []
    for line in output.splitlines():
        kept: list[str] = []
        for sentence in _SENTENCE_BREAK.split(line) if _TYPED.search(line) else (line,):
            (typed if _TYPED.search(sentence) else kept).append(sentence)
        plain += [" ".join(kept)] if kept else []
    return "\n".join(plain), "\n".join(typed)


def job_html(job: UiJob | None, is_json: bool = False, title: str = "Result") -> str:
    """A job: its state, what is wrong, its result unless that is JSON, which a tab shows in its own way; its log."""
    if job is None:
        return ""
    state, log, verb = job.state, job.tail("log.txt", MAX_LOG_BYTES).strip(), job.verb
    words, kind = JOB_STATE_LABELS[state]
    if state == "failed" and job.exit_code == EXIT_BAD_INPUT:
        words = "failed: see below"
    if state == "stopped" and verb in RESUMED_VERBS:
        words = "stopped; start it again to resume"
    # An error that somebody has probably solved since is not shown as one.
    is_past = state in ("failed", "lost") and job.is_superseded
    if is_past:
        words, kind = "failed earlier, before the last change", "note"
    more = ". You can close this page; the job continues." if state == "running" and verb in ("go", "train") else ""
    parts = [note_html(f"{words} ({format_duration(job.seconds)}){more}", kind)]
    # A long list of problems begins with how many there are of each kind; the log has all of them.
    found = logged_findings(log) if state == "failed" else []
    problems = []
    if len(found) > 1:
        counts = Counter(f"{item['level']} {item['code']}" for item in found)
        problems.append(note_html(", ".join(f"{count:,} × {name}" for name, count in counts.items()), "bad"))
    problems += [finding_html(item, verb) for item in {item["code"]: item for item in found[::-1]}.values()][
        :MAX_LOGGED_FINDINGS
    ]
    if is_past and problems:
        problems = [f"<details><summary>What failed then</summary>{''.join(problems)}</details>"]
    parts += problems
    if verb in ("go", "train") and state not in ("failed", "lost"):
        parts.append(warnings_html(job, is_folded=state == "done"))
    if not is_json and (output := job.tail("out.txt").strip()):
        named = escape(title)
        shown, typed = split_commands(output)
        pre = f'<pre class="vg-result" tabindex="0" role="region" aria-label="{named}">{escape(shown)}</pre>'
        # Home itself shows the stages.
        is_folded = verb == "go"
        parts.append(
            f"<details><summary>{named}</summary>{pre}</details>"
            if is_folded
            else f'<div class="vg-title">{named}</div>{pre}'
        )
        targets = dict.fromkeys(
            PAGE_TARGETS[name, ""] for name in _COMMAND.findall(typed) if (name, "") in PAGE_TARGETS
        )
        parts += [target_button(target) for target in targets if not is_folded]
        parts += [f"<details><summary>Command line</summary><small>{escape(typed)}</small></details>"] if typed else []
    if log:
        # Where the page shows the progress itself, the log stays folded.
        is_shown = state in ("running", "stopping") and verb not in ("go", "train")
        is_unexplained = state == "lost" or (state == "failed" and not found)
        is_open = " open" if is_shown or (is_unexplained and not is_past) else ""
        message = f'<pre class="vg-log" tabindex="0" role="region" aria-label="Log">{escape(log)}</pre>'
        parts.append(f'<details{is_open}><summary>Log</summary><div class="vg-tail">{message}</div></details>')
    return "".join(parts)


def facts_html(pairs: Iterable[tuple[str, str, str]]) -> str:
    """Rows of name, value and kind, as a list that a screen reader reads in order."""
    rows = (
        f'<div class="vg-fact vg-{kind}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>'
        for name, value, kind in pairs
    )
    return f'<dl class="vg-facts">{"".join(rows)}</dl>'


def table_html(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table that can be scrolled sideways in a narrow window."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape('' if cell is None else str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="vg-scroll" tabindex="0" role="region" aria-label="Table">{table}</div>'


def details_html(summary: str, names: Iterable[str]) -> str:
    """One line that unfolds to a list of names."""
    return f"<details><summary>{escape(summary)}</summary>{escape(', '.join(names))}</details>"


def audio_card_html(
    title: str, text: str, *, language: str = "", about: str = "", address: str = "", download_name: str = "",
    codes: Sequence[int] = (),
) -> str:  # fmt: skip
    """One utterance: its text, and a player; or its codes if it has no sound."""
    lang = f' lang="{escape(language)}"' if language else ""
    parts = [f"<strong>{escape(title)}</strong>", f'<div{lang} dir="auto">{escape(text)}</div>']
    if about:
        parts.append(f"<small>{escape(about)}</small>")
    if address:
        label = escape(f"{title}: {text}")
        parts.append(f'<audio controls preload="metadata" src="{escape(address)}" aria-label="{label}"></audio>')
        parts += [_download_anchor(address, download_name, "save this audio file")] if download_name else []
    elif codes:
        shown = " ".join(map(str, codes[:MAX_SHOWN_CODES])) + (" ..." if len(codes) > MAX_SHOWN_CODES else "")
        parts.append(f"<details><summary>{len(codes):,} codes, no sound</summary><code>{shown}</code></details>")
    else:
        parts.append("<small>no sound</small>")
    return f'<div class="vg-player">{"".join(parts)}</div>'


def audio_file_html(
    context: PageContext, path: Path, title: str, text: str, *, language: str = "", about: str = ""
) -> str:
    """One utterance whose sound is a file of the project."""
    address = context.file_url(path, versioned=True)
    return audio_card_html(title, text, language=language, about=about, address=address, download_name=path.name)


def audio_cards_html(cards: Iterable[str], empty: str = "") -> str:
    """Utterances side by side, which fold in a narrow window."""
    joined = "".join(cards)
    return f'<div class="vg-players">{joined}</div>' if joined else empty


def image_html(context: PageContext, path: Path, words: str) -> str:
    """A picture of the project; empty if there is none."""
    if not path.is_file():
        return ""
    return f'<img class="vg-picture" src="{escape(context.file_url(path, versioned=True))}" alt="{escape(words)}">'


def file_link(context: PageContext, path: Path, words: str, fragment: str = "") -> str:
    """A link that opens a file of the project in its own window; empty if there is none."""
    if not path.is_file():
        return ""
    address = escape(context.file_url(path) + fragment)
    return f'<a class="vg-link" href="{address}" target="_blank" rel="noopener">{escape(words)}</a>'


def download_link(context: PageContext, path: Path, words: str) -> str:
    """A link that saves a file of the project; empty if there is none."""
    return _download_anchor(context.file_url(path, versioned=True), path.name, words) if path.is_file() else ""


def _download_anchor(address: str, name: str, words: str) -> str:
    return f'<a class="vg-link" href="{escape(address)}" download="{escape(name)}">{escape(words)}</a>'
