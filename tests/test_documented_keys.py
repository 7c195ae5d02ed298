"""Every key and exit code that a page names exists."""

import re
import shlex

import pytest

from combinations import keys_of
from fedzo.errors import TABLES, Exit
from fedzo.runs.registry import COMPONENTS
from reader import ROOT, blocks

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENDINGS = ("png", "csr", "ext", "key", "pem", "toml", "py", "md")  # of files
TABLE = rf"({'|'.join(TABLES)})"
CODE = re.compile(r"`([^`\n]+)`")


def keys_in(text):
    """Return the pairs of table and key that a text names, outside of paths and Python."""
    for match in re.finditer(rf"(?<![\w./:-]){TABLE}\.([\w-]+)", text):
        base = COMPONENTS[match[1]].base if match[1] in COMPONENTS else None
        method = base is not None and match[2] in dir(base)
        if not method and match[2] not in ENDINGS:
            yield match[1], match[2].replace("-", "_")  # a run of Flower's takes either


def named(page):
    """Return the keys in code spans, in commands, and in the tables of TOML blocks."""
    text = page.read_text()
    found = {pair for span in CODE.findall(text) for pair in keys_in(span)}
    for block in blocks(text):
        if block.language == "sh":
            for line in block.code.replace("\\\n", " ").splitlines():
                found |= {
                    pair for word in shlex.split(line, comments=True) for pair in keys_in(word)
                }
        if block.language == "toml":
            table = None
            for line in block.code.splitlines():
                head = re.match(r"\[([\w.]+)\]", line)
                table = head[1] if head else table
                key = re.match(r"(\w+)\s*=", line)
                if key and table in TABLES and "module:" not in block.code:
                    found.add((table, key[1]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_keys_that_a_page_names_exist(page):
    custom = re.search(r'name = "\w+:\w+"', page.read_text())
    unknown = {
        f"{table}.{key}"
        for table, key in named(page)
        if key not in keys_of(table) and not (custom and table != "run")
    }
    assert not unknown


def test_the_table_of_exit_codes_is_complete():
    text = (ROOT / "docs" / "configuration.md").read_text()
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)]
    assert codes == [int(code) for code in Exit]
