"""Make Markdown of what docstrings say in reStructuredText: formulas, names, tables, terms.

An extension of Griffe, which reads the docstrings for `mkdocs.yml`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?([\w.]+)`")
_DEEPER = r"(?:\n(?: *\n)*(?P=indent) +[^\n]+)*"  # lines further in than the one before
_MATH = re.compile(rf"^(?P<indent> *)\.\. math::(?P<tex>[^\n]*{_DEEPER})", re.MULTILINE)
_TERM = re.compile(
    rf"^(?P<indent> *)(?P<term>``[^`\n]+``)\n(?P<about>(?P=indent)    [^\n]+{_DEEPER})",
    re.MULTILINE,
)
_RULE = r" *=+(?: +=+)+ *"
_TABLE = re.compile(rf"^{_RULE}\n(?:[^\n]+\n)+?{_RULE}$(?:\n(?:[^\n]+\n)+{_RULE}$)?", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring when it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, obj)


def markdown(text: str, obj: griffe.Object | None = None) -> str:
    """Return a docstring in Markdown; names are looked up where ``obj`` stands.

    >>> print(markdown("A :math:`x^2` of :class:`~fedzo.runs.result.Result`."))
    A $x^2$ of <autoref identifier="fedzo.runs.result.Result" optional>`Result`</autoref>.
    """
    text = _MATH.sub(_formula, text)
    text = _TABLE.sub(_table, text)
    text = _TERM.sub(_definition, text)
    text = re.sub(r":math:`([^`]+)`", lambda found: f"${' '.join(found[1].split())}$", text)
    text = re.sub(r"(?<=\S)::$", ":", text, flags=re.MULTILINE)  # what follows is indented: code
    return _ROLE.sub(lambda role: _reference(role[1], obj), text)


def _formula(found: re.Match[str]) -> str:
    indent = found["indent"]
    lines = [line.strip() for line in found["tex"].split("\n") if line.strip()]
    return "\n".join(["", *(indent + line for line in ("$$", *lines, "$$")), ""])


def _definition(found: re.Match[str]) -> str:
    indent, term, about = found["indent"], found["term"], found["about"]
    first, *more = about.split("\n")
    return "\n".join([f"\n{indent}{term}", f"{indent}:   {first.strip()}", *more, ""])


def _table(found: re.Match[str]) -> str:
    """Turn a table between rules of equal signs into one between bars."""
    rule, *lines = found[0].split("\n")
    columns = [column.span() for column in re.finditer("=+", rule)]
    edges = [(start, None if (start, end) == columns[-1] else end) for start, end in columns]
    rows: list[list[str]] = []
    rules = [n for n, line in enumerate(lines) if re.fullmatch(_RULE, line)]
    for line in (line for n, line in enumerate(lines) if n not in rules):
        cells = [line[start:end].strip().replace("|", r"\|") for start, end in edges]
        if cells[0] or not rows:
            rows.append(["" if cell == ".." else cell for cell in cells])
        else:  # the row above goes on
            rows[-1] = [f"{a} {b}".strip() for a, b in zip(rows[-1], cells, strict=True)]
    if len(rules) == 1:  # no head
        rows.insert(0, ["" for _ in edges])
    bars = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([bars[0], "|" + " --- |" * len(edges), *bars[1:]])


def _reference(name: str, obj: griffe.Object | None) -> str:
    if name.startswith("fedzo."):
        path, shown = name, name.rpartition(".")[2]
    elif obj is None:
        return f"`{name}`"
    else:
        try:
            path, shown = obj.resolve(name), name
        except griffe.NameResolutionError:
            return f"`{name}`"
    return f'<autoref identifier="{path}" optional>`{shown}`</autoref>'
