"""`help(so.RigL)` explains what it takes: every public name documents every argument."""

import inspect
import re

import pytest

import sparseopt as so

PUBLIC = [name for name in so.__all__ if not inspect.ismodule(getattr(so, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_explained(name: str) -> None:
    thing = getattr(so, name)
    texts = [inspect.getdoc(thing) or ""]
    if inspect.isclass(thing):
        texts.append(inspect.getdoc(thing.__init__) or "")
    told = "\n".join(texts)
    missing = [
        parameter
        for parameter in inspect.signature(thing).parameters
        if not re.search(rf"^\s*{parameter}:", told, re.MULTILINE)
    ]
    assert not missing
