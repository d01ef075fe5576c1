"""What the site's build does to pages: links to files outside docs/, which a reader of the repository follows, become text."""

import re
from typing import Any

OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:sparseopt|examples|benchmarks|tests|[A-Z]+\.md|LICENSE|CITATION)[^)]*\)"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page."""
    return OUTSIDE.sub(r"\1", markdown)
