"""How the page looks: one style sheet over gradio's plain theme, with fonts of the system. Fetches nothing."""

from __future__ import annotations

import gradio as gr

PAGE_CSS = """
.gradio-container { max-width: 1200px !important; width: 100%; margin: auto; }
.vg-hidden { display: none; }
.sr-only[role="status"] { display: none; } /* gradio has it read out "common.complete"; ours say what is done */
.vg-note { border-left: 4px solid #777; padding: .4em .7em; margin: .2em 0; border-radius: 4px;
  background: var(--background-fill-secondary); overflow-wrap: anywhere; white-space: pre-line; }
.vg-good { border-left-color: #15803d; } .vg-bad { border-left-color: #b91c1c; }
.vg-warn { border-left-color: #b45309; } .vg-busy { border-left-color: #1d4ed8; }
.vg-note.vg-good::before { content: "✓ "; color: #15803d; font-weight: bold; }
.vg-note.vg-bad::before { content: "✗ "; color: #b91c1c; font-weight: bold; }
.vg-note.vg-warn::before { content: "! "; color: #b45309; font-weight: bold; }
.vg-note.vg-yet::before { content: "○ "; font-weight: bold; } .vg-note.vg-unmeasured::before { content: "– "; }
.vg-mono textarea, .vg-command textarea { font-family: ui-monospace, Menlo, Consolas, monospace !important;
  font-size: .8rem !important; }
.vg-mono textarea { white-space: pre; overflow-x: auto; }
@supports (field-sizing: content) {
  .vg-command textarea { field-sizing: content; height: auto !important; max-height: 16em; overflow: auto !important; }
}
.vg-facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); gap: .4em; margin: 0; }
.vg-fact { border-left: 4px solid #777; padding: .3em .6em; background: var(--background-fill-secondary); }
.vg-fact dt { font-size: .8rem; opacity: .8; } .vg-fact dd { margin: 0; overflow-wrap: anywhere; }
.vg-fact.vg-good { border-left-color: #15803d; } .vg-fact.vg-bad { border-left-color: #b91c1c; }
.vg-fact.vg-warn { border-left-color: #b45309; }
.vg-link { font-weight: 600; text-decoration: underline; }
button.vg-stop { display: none; }
.vg-form:has(.vg-busy) button.vg-stop { display: block; }
.vg-form pre { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .8rem; white-space: pre; margin: 0; }
.vg-result, .vg-tail { overflow: auto; max-height: 30rem; padding: .6em;
  border: 1px solid var(--border-color-primary); }
.vg-tail { display: flex; flex-direction: column-reverse; max-height: 14rem; }
.vg-live { padding: 0 !important; }
.vg-live:has(.prose:empty) { display: none; }
.vg-bar .block { min-width: 100% !important; }
.label-wrap { gap: .6em; align-items: center; } .label-wrap > span { text-align: left; }
.label-wrap > span.icon { flex: none; width: 1em; height: 1em; line-height: 1; text-align: center; }
.secondary-wrap > input { padding-right: 1.6em !important; text-overflow: ellipsis; }
.block:has(> .upload-container) > label.float { position: static; width: 100%; border: 0; }
button.vg-act { max-width: 100%; flex: 0 0 auto !important; align-self: flex-start; width: max-content !important;
  min-width: 10rem; white-space: nowrap; }
.vg-scroll table, .vg-scroll tr { border: 0 !important; }
.vg-scroll th, .vg-scroll td { border: 0 !important; border-bottom: 1px solid var(--border-color-primary) !important; }
.vg-scroll { overflow-x: auto; } .vg-scroll table { border-collapse: collapse; font-size: .85rem; }
.vg-scroll th, .vg-scroll td { text-align: left; padding: .2em .5em !important; white-space: nowrap; }
.vg-scroll th { white-space: normal; vertical-align: bottom; }
.vg-players { display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); gap: .5em; }
.vg-player { display: flex; flex-direction: column; gap: .3em; padding: .5em .7em; border-radius: 4px; min-width: 0;
  background: var(--background-fill-secondary); overflow-wrap: anywhere; }
.vg-player > a { align-self: flex-start; }
.vg-player audio { width: 100%; height: 40px; } .vg-player code { font-size: .75rem; }
.vg-picture { width: 100%; height: auto; background: #fff; border-radius: 4px; }
.vg-word { font-size: 1.5rem; font-weight: 700; }
.vg-charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: .6em;
  --c0: #0f766e; --c1: #c2410c; --c2: #6d28d9; --c3: #15803d; --c4: #64748b; --c5: #a16207; }
.dark .vg-charts { --c0: #5eead4; --c1: #fdba74; --c2: #c4b5fd; --c3: #86efac; --c4: #cbd5e1; --c5: #fde047; }
.vg-charts figure { margin: 0; padding: .5em .7em; border-radius: 4px; background: var(--background-fill-secondary); }
.vg-charts h3 { font-size: .9rem; margin: 0 0 .3em; } .vg-charts svg { width: 100%; height: auto; display: block; }
.vg-charts svg text { font-size: 11px; fill: var(--body-text-color); }
.vg-charts svg path { fill: none; stroke-width: 1.8; } .vg-charts .axis { stroke: var(--border-color-primary); }
.vg-charts .level { stroke: #94a3b8; stroke-dasharray: 4 4; }
.vg-charts .legend { display: flex; flex-wrap: wrap; gap: .2em .9em; font-size: .8rem; }
.vg-charts .legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px; }
@media (max-width: 600px) {
  .gradio-container { padding: 6px !important; }
  .row > .block, .form > .block, .row > .form { min-width: 100% !important; }
  button.vg-act { white-space: normal; }
}
"""


def build_theme() -> gr.themes.Base:
    """Gradio's plain theme without fonts from elsewhere."""
    plain = gr.themes.Default(
        primary_hue="emerald",
        font=["system-ui", "Segoe UI", "Noto Sans", "Noto Sans Ethiopic", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
    )
    # Gradio's helps are too pale to read, and white on its light green too.
    return plain.set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_800",
        block_title_text_color="*neutral_800",
        block_title_text_color_dark="*neutral_100",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
    )
