"""HTML pages from the templates in `assets/templates`: every value is escaped, and a page needs no network."""

from __future__ import annotations

import base64
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def render_page(template: str, **values: Any) -> str:
    """One page. `values` are plain data; only `Markup` (an SVG that we drew) is taken as it is."""
    return _environment().get_template(template).render(values)


def data_url(data: bytes, kind: str) -> str:
    """A file inside the page, for players and pictures."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@cache
def _environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    def read_asset(name: str) -> Markup:
        text = resources.files("voxgraft").joinpath(f"assets/templates/{name}").read_text(encoding="utf-8")
        return Markup(text)  # noqa: S704 (a style sheet or a script of ours)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("voxgraft", "assets/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = read_asset
    # A number and its percent sign stay on one line.
    environment.filters["units"] = lambda text: str(text).replace(" %", "\u00a0%")
    environment.filters["spec"] = format
    return environment
