"""`sparseopt demo`, played small: the page is whole and self-contained, its path comes last, and its runs are kept."""

import os
import re
import signal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparseopt.lab.commands.demo import main
from sparseopt.lab.demo.workers import pool_of, run_all
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import find_runs

pytestmark = pytest.mark.slow

SMALL = [
    "--seeds",
    "2",
    "--table-seeds",
    "1",
    "--epochs",
    "1",
    "--hidden",
    "16",
    "--batches",
    "2",
    "--seconds",
    "0.1",
]


class _References(HTMLParser):
    """Collects everything a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            value or ""
            for name, value in attrs
            if name in ("src", "href") and not (value or "").startswith("#")
        ]


def test_demo_plays_and_leaves_a_self_contained_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--workers", "1", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    page = tmp_path / "index.html"
    assert out.splitlines()[-1] == str(page)
    for name in ("1-speed", "2-skew", "3-training", "4-results"):
        assert (tmp_path / f"{name}.png").is_file()
        assert (tmp_path / f"{name}.pdf").is_file()
    text = page.read_text()
    references = _References()
    references.feed(text)
    assert [
        each for each in references.found if "://" in each or each.endswith((".css", ".js", ".png"))
    ] == []
    for title in ("Speed", "The skew", "Training", "What you get", "Your own network", "Learning curves"):
        assert f"{title}</h2>" in text
    assert text.count("<svg") == 4
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text
    ids = re.findall(r'\bid="((?:p|m|image)[0-9a-f]{10})"', text)
    assert len(ids) == len(
        set(ids)
    )  # figures on one page must not borrow each other's clip paths and markers
    runs = find_runs(tmp_path / "runs")
    assert len(runs) == 2 * 2 * 3 + 2 * 9 - 1  # two acts; SET at 95% is in both
    assert {run.state for run in runs} == {"finished"}


def test_impossible_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0"]) == 2
    assert "--seeds" in capsys.readouterr().err


class _Refusing:
    """A job that fails as a person's mistake does."""

    def __call__(self) -> None:
        raise UserError("out of digits; bring more")

    def __str__(self) -> str:
        return "counting"


def test_error_in_a_worker_arrives_with_the_name_of_its_job() -> None:
    with pool_of(1) as pool, pytest.raises(UserError, match="counting: out of digits; bring more"):
        list(run_all([_Refusing()], pool))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_ends_the_demo_with_a_remedy() -> None:
    with pool_of(1) as pool, pytest.raises(UserError, match="--workers 1"):
        list(run_all([_die], pool))
