"""Let the pictures of the gallery be found: mkdocs-gallery's ``srcset`` assumes a folder per page.

The pages of this site are files (``use_directory_urls: false``), so that they can be read from the
disk. A hook of `mkdocs.yml`.
"""

import re
from typing import Any


def on_page_content(content: str, **_: Any) -> str:
    """Return a page's HTML whose pictures have one source, ``src``.

    >>> on_page_content('<img src="images/a.png" srcset="../images/a.png" />')
    '<img src="images/a.png" />'
    """
    return re.sub(r'(<img\b[^>]*) srcset="[^"]*"', r"\1", content)
