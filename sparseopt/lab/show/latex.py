"""Text for LaTeX."""

_SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
}


def latex_escape(text: str) -> str:
    r"""Text as LaTeX sets it.

    >>> latex_escape("97% ± 0.1 at C:\\")
    '97\\% $\\pm$ 0.1 at C:\\textbackslash{}'
    """
    return "".join(_SPECIAL.get(sign, sign) for sign in text)
