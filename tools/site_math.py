"""Turn the formulas of a page into MathML, which browsers draw by themselves.

Nothing has to be fetched for it, no script and no font. A hook of `mkdocs.yml`.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(content: str, **_: Any) -> str:
    r"""Return a page's HTML with MathML in place of TeX.

    >>> on_page_content('<p><span class="arithmatex">\\(x\\)</span></p>')
    '<p><math ... display="inline"><mrow><mi>x</mi></mrow></math></p>'
    """
    return _FORMULA.sub(_mathml, content)


def _mathml(formula: re.Match[str]) -> str:
    display = formula["tag"] == "div"
    drawn = convert(html.unescape(formula["tex"]).strip(), display="block" if display else "inline")
    return f'<div class="formula">{drawn}</div>' if display else drawn
