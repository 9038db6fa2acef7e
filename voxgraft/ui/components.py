"""Which control a setting gets, by its kind, and how its value stands in it. Knows no form and no project."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import gradio as gr

from voxgraft.config import Leaf
from voxgraft.ui.commands import Command
from voxgraft.ui.roots import Sought

AUTOMATIC = "automatic"


def component_of(leaf: Leaf, words: Sequence[str], sought: Sought | None, lines: int, about: dict[str, Any]) -> Any:
    """The control of a setting; `words` are what can be chosen, `about` its label, help and id."""
    default = leaf.default
    if leaf.field.annotation is bool:
        return gr.Checkbox(value=bool(default), **about)
    if leaf.field.annotation == (bool | None):
        return gr.Dropdown([(AUTOMATIC, ""), "yes", "no"], value="", **about)
    if words:
        value = list(default or []) if leaf.is_list else default or (words[0] if leaf.field.is_required() else "")
        return gr.Dropdown(choices_of(leaf, words), value=value, multiselect=leaf.is_list or None, **about)
    if sought is not None:
        paths: Any = [str(item) for item in default or []] if leaf.is_list else str(default or "")
        return gr.Dropdown([], value=paths or None, allow_custom_value=True, multiselect=leaf.is_list or None, **about)
    if leaf.is_number and not leaf.is_list and not _may_be_empty(leaf):
        is_whole = int in _types(leaf.field.annotation)
        step = 1 if is_whole or not default else 10.0 ** math.floor(math.log10(abs(default)))
        return gr.Number(value=default, precision=0 if is_whole else None, step=step, min_width=120, **about)
    if leaf.is_list:
        about["info"] = f"{about['info']} One on each line."
        return gr.Textbox(value="\n".join(map(str, default or ())), lines=max(2, lines), **about)
    about["min_width"] = 120 if leaf.is_number else 160
    text = "" if default is None else f"{default:g}" if leaf.is_number else str(default)
    is_open = default is None and not leaf.field.is_required()
    return gr.Textbox(value=text, lines=lines, placeholder=AUTOMATIC if is_open else "", **about)


def choices_of(leaf: Leaf, words: Sequence[str]) -> list[Any]:
    """Words to choose from; nothing is one of them where a setting may be left open."""
    return [*words] if leaf.is_list or leaf.field.is_required() else [(AUTOMATIC, ""), *words]


def shown_value(leaf: Leaf, value: Any, command: Command) -> Any:
    """A setting's value as its component takes it."""
    if leaf.field.annotation is bool:
        return bool(value)
    if leaf.field.annotation == (bool | None):
        return "" if value is None else "yes" if value else "no"
    if leaf.is_path:
        words = command.plain(leaf, value)
        return words if leaf.is_list else (words[0] if words else None)
    if leaf.is_list:
        return [*value] if leaf.choices else "\n".join(command.plain(leaf, value))
    if leaf.is_number:
        return next(iter(command.plain(leaf, value)), "") if _may_be_empty(leaf) else value
    if value is None and leaf.choices and leaf.field.is_required():
        return leaf.choices[0]
    return "" if value is None else str(value)


def _may_be_empty(leaf: Leaf) -> bool:
    """Whether a number may be left open. Gradio's own field of a number puts 0 where nothing is."""
    return type(None) in _types(leaf.field.annotation)


def _types(annotation: Any) -> tuple[Any, ...]:
    return (annotation, *get_args(annotation))
