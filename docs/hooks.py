"""What the site's build does to pages.

Links to files outside docs/, which a reader of the repository follows, become text. Short pieces of code and short cells of
tables get a class of their own, so that no browser breaks a line within `--epochs` or `97% ERK`.
"""

import re
from typing import Any

OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:sparseopt|examples|benchmarks|tests|[A-Z]+\.md|LICENSE|CITATION)[^)]*\)"
)
SHORT_CODE = re.compile(r"<code>([^<\n]{1,36})</code>")
SHORT_CELL = re.compile(r"<td>([^<\n]{1,12})</td>")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page, as it was written."""
    return OUTSIDE.sub(r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs for every page, as HTML."""
    html = SHORT_CODE.sub(r'<code class="short">\1</code>', html)
    return SHORT_CELL.sub(r'<td class="short">\1</td>', html)
