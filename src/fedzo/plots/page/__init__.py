"""The page of a report: template, style and script, filled with numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fedzo.plots.curves import COLOURS
from fedzo.plots.figures import MARKERS


def page(content: Mapping[str, Any]) -> str:
    r"""Return the page: the template with style, script and numbers put in.

    Examples
    --------
    >>> content = {"title": "A </script> in a title", "figures": [], "environment": {}}
    >>> html = page(content)
    >>> r"A \u003c/script>" in html, html.count("</script>")
    (True, 2)
    """
    data = {**content, "colours": COLOURS, "markers": MARKERS}
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    html = _part("page.html")
    for mark, part in (("STYLE", _part("page.css")), ("SCRIPT", _scripts()), ("DATA", text)):
        html = html.replace(f"/*{mark}*/", part)
    return html


def _scripts() -> str:
    return "\n".join(_part(name) for name in ("scale.js", "chart.js", "page.js"))


def _part(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
