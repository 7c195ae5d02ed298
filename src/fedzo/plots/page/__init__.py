"""The page of a report: template, style and scripts, filled with numbers.

uPlot (MIT, see ``uPlot.LICENSE.txt``) draws the charts. It is embedded in the page, so that the
report is one file. ``uPlot.min.js`` and ``uPlot.min.css`` are
``dist/uPlot.iife.min.js`` and ``dist/uPlot.min.css`` of the npm package uplot, 1.6.32.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fedzo.core.style import COLOURS
from fedzo.plots.series import COSTS, axis_label


def page(content: Mapping[str, Any]) -> str:
    r"""Return the page as HTML: the template with style, script and numbers.

    Examples
    --------
    >>> content = {"title": "A </script> in a title", "figures": [], "environment": {}}
    >>> html = page(content)
    >>> r"A \u003c/script>" in html, html.count("</script>")
    (True, 2)
    """
    keys = {key for f in content["figures"] for keys in f["columns"].values() for key in keys}
    names = {key: axis_label(key) for key in sorted(keys)}
    data = {**content, "colours": COLOURS, "costs": COSTS, "names": names}
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    html = _part("page.html")
    parts = {"STYLE": _parts("uPlot.min.css", "page.css"), "DATA": text}
    parts["SCRIPT"] = _parts("uPlot.min.js", "chart.js", "page.js")
    for mark, part in parts.items():
        html = html.replace(f"/*{mark}*/", part)
    return html


def _parts(*names: str) -> str:
    return "\n".join(map(_part, names))


def _part(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
