"""Which control a setting gets, by its kind, and how its value stands in it. Knows no form and no project."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import gradio as gr

from voxgraft.config import SettingField
from voxgraft.ui.commands import CommandBuilder
from voxgraft.ui.roots import PathFilter

AUTOMATIC_LABEL = "automatic"


def build_component(
    leaf: SettingField, choices: Sequence[str], path_filter: PathFilter | None, lines: int, about: dict[str, Any]
) -> Any:
    """The control of a setting; `words` are what can be chosen, `render_method` its label, help and id."""
    default = leaf.default
    if leaf.field.annotation is bool:
        return gr.Checkbox(value=bool(default), **about)
    if leaf.field.annotation == (bool | None):
        return gr.Dropdown([(AUTOMATIC_LABEL, ""), "yes", "no"], value="", **about)
    if choices:
        value = list(default or []) if leaf.is_list else default or (choices[0] if leaf.field.is_required() else "")
        return gr.Dropdown(dropdown_choices(leaf, choices), value=value, multiselect=leaf.is_list or None, **about)
    if path_filter is not None:
        paths: Any = [str(item) for item in default or []] if leaf.is_list else str(default or "")
        return gr.Dropdown([], value=paths or None, allow_custom_value=True, multiselect=leaf.is_list or None, **about)
    if leaf.is_number and not leaf.is_list and not _may_be_empty(leaf):
        is_whole = int in _annotation_types(leaf.field.annotation)
        step = 1 if is_whole or not default else 10.0 ** math.floor(math.log10(abs(default)))
        return gr.Number(value=default, precision=0 if is_whole else None, step=step, min_width=120, **about)
    if leaf.is_list:
        about["info"] = f"{about['info']} One on each line."
        return gr.Textbox(value="\n".join(map(str, default or ())), lines=max(2, lines), **about)
    about["min_width"] = 120 if leaf.is_number else 160
    text = "" if default is None else f"{default:g}" if leaf.is_number else str(default)
    is_open = default is None and not leaf.field.is_required()
    return gr.Textbox(value=text, lines=lines, placeholder=AUTOMATIC_LABEL if is_open else "", **about)


def dropdown_choices(leaf: SettingField, words: Sequence[str]) -> list[Any]:
    """Words to choose from; nothing is one of them where a setting may be left open."""
    return [*words] if leaf.is_list or leaf.field.is_required() else [(AUTOMATIC_LABEL, ""), *words]


def component_value(leaf: SettingField, value: Any, command: CommandBuilder) -> Any:
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


def _may_be_empty(leaf: SettingField) -> bool:
    """Whether a number may be left open. Gradio's own field of a number puts 0 where nothing is."""
    return type(None) in _annotation_types(leaf.field.annotation)


def _annotation_types(annotation: Any) -> tuple[Any, ...]:
    return (annotation, *get_args(annotation))
