from dataclasses import dataclass
from typing import Literal

import pytest

from sparseopt.lab.cli.command import run
from sparseopt.lab.errors import INTERRUPTED, UserError


@dataclass(frozen=True)
class Settings:
    """What to do."""

    sparsity: float = 0.9
    """Fraction of zeros."""
    method: Literal["set", "rigl"] = "set"


def command(settings: Settings, fail: Literal["no", "user", "other", "interrupt"] = "no") -> int:
    """Do it.

    Args:
        fail: How to fail.
    """
    if fail == "user":
        raise UserError("no such thing; take another", exit_code=3)
    if fail == "other":
        raise RuntimeError("a defect")
    if fail == "interrupt":
        raise KeyboardInterrupt
    return 7 if settings.method == "rigl" else 0


def test_options_become_typed_parameters() -> None:
    assert run("sparseopt x", command, []) == 0
    assert run("sparseopt x", command, ["--method", "rigl"]) == 7


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sparseopt x", command, ["--help"]) == 0
    text = capsys.readouterr().out
    for expected in ("sparseopt x", "--sparsity", "Fraction of zeros.", "--fail", "How to fail.", "--debug"):
        assert expected in text


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--sparsit", "3"], "--sparsity"),
        (["--sparsity", "much"], "much"),
        (["--method", "magic"], "rigl"),
        (["extra"], "extra"),
    ],
)
def test_a_wrong_command_line_names_what_is_near_and_is_exit_code_2(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sparseopt x", command, argv) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "sparseopt x --help" in error


def test_a_user_error_is_one_line_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sparseopt x", command, ["--fail", "user"]) == 3
    assert capsys.readouterr().err == "sparseopt x: no such thing; take another\n"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sparseopt x", command, ["--fail", "user", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_interrupted_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sparseopt x", command, ["--fail", "interrupt"]) == INTERRUPTED
    assert capsys.readouterr().err == "sparseopt x: interrupted\n"


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="a defect"):
        run("sparseopt x", command, ["--fail", "other"])
