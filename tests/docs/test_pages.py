"""What the pages promise is there: links of the files outside the site, and every public name in the reference."""

import inspect
import re
from pathlib import Path

import pytest

import sparseopt as so

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"])
def test_relative_links_lead_somewhere(name: str) -> None:
    """The site's own pages are checked by `make docs`."""
    page = ROOT / name
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_reference_has_every_public_name() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    names = [name for name in so.__all__ if not inspect.ismodule(getattr(so, name))]
    assert set(names) <= set(re.findall(r"(?m)^::: sparseopt\.(?:\w+\.)*(\w+)$", reference))
