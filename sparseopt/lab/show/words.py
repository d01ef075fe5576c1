"""Numbers and times in words, for messages, tables and sentences made from results."""


def printable(text: str) -> str:
    """A text from anywhere, such as the name of a folder, without what would command a terminal.

    >>> print(printable("run\\x1b[31m"))
    run\\x1b[31m
    """
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "seed"), counted(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> [duration(seconds) for seconds in (4.2, 75, 7325)]
    ['4.2s', '1m15s', '2h02m']
    """
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def layer_label(name: str, neurons: int) -> str:
    """A layer as an axis names it: what it is called, and where that is only a number, how large it is.

    >>> layer_label("stages.0.conv1.weight", 16), layer_label("4.weight", 512)
    ('stages.0.conv1', 'layer 4 (512 neurons)')
    """
    stem = name.removesuffix(".weight")
    return stem if any(sign.isalpha() for sign in stem) else f"layer {stem} ({neurons} neurons)"
