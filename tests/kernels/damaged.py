"""What the tests of files that somebody has changed share."""

from typing import Any


def places(value: Any) -> Any:
    """Every place in nested lists and dicts that holds a number, a word or nothing."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(each, dict | list):
            yield from places(each)
        else:
            yield value, key
