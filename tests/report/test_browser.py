"""The page as a reader has it, in headless Chromium: drawn, toggled, sorted, printed, and silent towards the network."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect

from sparseopt.lab.commands.report import main
from sparseopt.lab.demo.page import YOURS
from sparseopt.lab.report import Drawing, Section, write_report
from sparseopt.lab.runs.catalogue import find_runs
from sparseopt.lab.show.table import Table

pytestmark = pytest.mark.slow

Maker = Any
Open = Callable[..., Page]

PHONE, TABLET, DESKTOP = (360, 780), (800, 1100), (1400, 900)
HOSTILE = "<script>alert(1)"


@pytest.fixture(scope="module")
def study(make: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on two corrections with three seeds each, in two budgets, one run with a hostile name."""
    folder = tmp_path_factory.mktemp("study")
    generator = torch.Generator().manual_seed(0)
    for correction in ("none", "layer"):
        for epochs, seed in ((5, 0), (5, 1), (5, 2), (10, 0)):
            name = (
                HOSTILE if (correction, epochs, seed) == ("none", 5, 0) else f"{correction}-{epochs}-{seed}"
            )
            run = make.run(folder / name, correction=correction, epochs=epochs, seed=seed)
            make.masks(run, {f"{n}.weight": torch.rand(8, 40, generator=generator) < 0.3 for n in "135"})
    return _report(folder)


@pytest.fixture(scope="module")
def single(make: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on one run that has completed one epoch."""
    folder = tmp_path_factory.mktemp("single")
    make.run(folder / "only", done=1)
    return _report(folder)


@pytest.fixture(scope="module")
def crowd(make: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on 300 runs: 100 configurations, three seeds, 60 epochs."""
    folder = tmp_path_factory.mktemp("crowd")
    for number in range(100):
        for seed in range(3):
            make.run(folder / f"{number}-{seed}", lr=0.01 * (1 + number), seed=seed, epochs=60)
    return _report(folder)


def _report(folder: Path) -> Path:
    assert main([str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page from disk; at the end, nothing may have been complained of or asked of the network."""
    trouble: list[str] = []
    contexts = []

    def opened(path: Path, size: tuple[int, int] = DESKTOP, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        contexts.append(context)

        def only_the_page(route: Route, request: Request) -> None:
            if request.url == path.as_uri():
                route.continue_()
            else:
                trouble.append(f"asked for {request.url}")
                route.abort()

        context.route("**/*", only_the_page)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []


def charts(page: Page) -> list[Locator]:
    """All charts, each drawn, which they are when they come into sight."""
    found = page.locator(".chart").all()
    for chart in found:
        chart.scroll_into_view_if_needed()
        chart.locator("canvas").wait_for()
    return found


def coloured(chart: Locator) -> int:
    """How many pixels of a chart have a colour, as lines have and axes have not."""
    return chart.locator("canvas").evaluate(
        """canvas => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let found = 0;
          for (let i = 0; i < data.length; i += 4) {
            const colour = Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]);
            if (data[i + 3] > 100 && colour > 60) found += 1;
          }
          return found;
        }"""
    )


def chart(page: Page, name: str) -> Locator:
    found = page.locator(f'.chart[data-chart="{name}"]')
    found.scroll_into_view_if_needed()
    found.locator("canvas").wait_for()
    return found


def width_beyond(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def cells(table: Locator, column: int) -> list[str]:
    return table.locator(f"tbody tr > :nth-child({column})").all_inner_texts()


@pytest.mark.parametrize("size", [PHONE, TABLET, DESKTOP])
def test_every_chart_is_drawn_and_the_page_fits(open_page: Open, study: Path, size: tuple[int, int]) -> None:
    page = open_page(study, size)
    found = charts(page)
    assert len(found) == 4 + 1 + 4 + 2 + 1  # learning, budget, masks, layers, fan-in
    assert all(coloured(each) > 0 for each in found)
    assert width_beyond(page) == 0


def test_sections_fit_a_phone(open_page: Open, study: Path) -> None:
    figure = Figure(figsize=(9, 3))
    figure.subplots().plot([1, 2, 3])
    wide = Table(tuple(f"column {number}" for number in range(12)), [("value",) * 12])
    section = Section("Wide", "", ["word " * 30], [Drawing(figure, "a line")], [wide], YOURS.html)
    path = study.with_name("sections.html")
    write_report(find_runs(study.parent), path, title="A_name_without_any_blank" * 4, sections=[section])
    page = open_page(path, PHONE)
    assert page.locator("#part-1 svg path").count() > 0
    assert width_beyond(page) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_run_with_one_epoch_is_a_dot(open_page: Open, single: Path, scheme: str) -> None:
    page = open_page(single, PHONE, color_scheme=scheme)
    assert coloured(chart(page, "test_accuracy")) > 0
    assert "1 run is not finished" in page.inner_text("main")
    assert width_beyond(page) == 0


def test_a_toggle_hides_a_run_and_a_group(open_page: Open, study: Path) -> None:
    page = open_page(study)
    accuracy = chart(page, "test_accuracy")
    assert accuracy.get_attribute("data-lines") == "8"
    everything = coloured(accuracy)
    group = page.locator(".groups > li").nth(1)
    group.locator("summary").click()
    group.locator("ul input").first.uncheck()
    assert accuracy.get_attribute("data-lines") == "7"
    some = coloured(accuracy)
    assert 0 < some < everything
    whole = group.locator("label").first.locator("input")
    assert whole.evaluate("input => input.indeterminate") == (group.locator("ul input").count() > 1)
    page.get_by_role("button", name="Hide all").click()
    assert coloured(accuracy) == 0
    whole.check()
    assert accuracy.get_attribute("data-lines") == str(group.locator("ul input").count())
    page.get_by_role("button", name="Show all").click()
    assert coloured(accuracy) > some


def test_means_are_one_line_a_configuration(open_page: Open, study: Path) -> None:
    page = open_page(study)
    accuracy = chart(page, "test_accuracy")
    page.get_by_role("radio", name="mean ± std over seeds").check()
    assert accuracy.get_attribute("data-lines") == "4"
    page.get_by_role("radio", name="every run").check()
    assert accuracy.get_attribute("data-lines") == "8"


def test_losses_on_a_logarithmic_scale_are_drawn_otherwise(open_page: Open, study: Path) -> None:
    page = open_page(study)
    loss = chart(page, "train_loss")
    before = loss.screenshot()
    page.get_by_label("Losses on a logarithmic scale").check()
    assert coloured(loss) > 0
    assert loss.screenshot() != before


def test_pointing_tells_epoch_run_and_value(open_page: Open, study: Path, make: Maker) -> None:
    page = open_page(study)
    accuracy = chart(page, "test_accuracy")
    accuracy.focus()
    page.keyboard.press("ArrowLeft")  # from the end
    tooltip = accuracy.locator(".tooltip")
    assert "epoch 10" in tooltip.inner_text()
    best = 100 * make.accuracy(make.config(correction="layer", seed=0), 10)
    assert f"{best:.2f}%" in tooltip.inner_text()
    page.keyboard.press("ArrowLeft")
    assert "epoch 9" in tooltip.inner_text()
    page.keyboard.press("Escape")
    assert tooltip.is_hidden()
    box = accuracy.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "epoch" in tooltip.inner_text()
    assert "layer" in tooltip.inner_text()


def test_another_run_shows_other_layers(open_page: Open, study: Path) -> None:
    page = open_page(study)
    fan_in = chart(page, "quantiles")
    before = fan_in.screenshot()
    page.get_by_label("Run", exact=True).select_option("none-5-1")
    fan_in.locator("canvas").wait_for()
    assert fan_in.screenshot() != before


def test_the_table_sorts_numbers_as_numbers(open_page: Open, study: Path) -> None:
    page = open_page(study)
    table = page.locator("#results table.keyed")
    heading = table.get_by_role("columnheader", name="test accuracy (%)")
    column = 1 + heading.evaluate("cell => cell.cellIndex")
    shown = [float(text.split()[0]) for text in cells(table, column)]
    heading.get_by_role("button").click()
    assert [float(text.split()[0]) for text in cells(table, column)] == sorted(shown)
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.get_by_role("button").press("Enter")
    assert [float(text.split()[0]) for text in cells(table, column)] == sorted(shown, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator("#results table.keyed").get_by_role("button", name="epochs").click()
    assert cells(table, 1) == ["5", "5", "10", "10"]


def test_a_run_named_script_shows_as_text(open_page: Open, study: Path) -> None:
    page = open_page(study)
    assert HOSTILE in page.locator("#runs table").inner_text()
    page.get_by_role("radio", name="every run").check()
    for group in page.locator(".groups summary").all():
        group.click()
    assert HOSTILE in page.locator(".groups").inner_text()
    assert HOSTILE in page.locator("select#run").inner_text()
    assert page.locator("main script").count() == 0


def test_dark_and_light_differ_and_paper_is_light(open_page: Open, study: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page(study, color_scheme=scheme) for scheme in ("light", "dark"))
    assert light.evaluate(background) == "rgb(255, 255, 255)"
    assert dark.evaluate(background) == "rgb(21, 24, 28)"
    shots = {page: chart(page, "test_accuracy").screenshot() for page in (light, dark)}
    assert shots[light] != shots[dark]
    dark.emulate_media(color_scheme="light")
    assert dark.evaluate(background) == "rgb(255, 255, 255)"
    dark.emulate_media(color_scheme="dark", media="print")
    assert dark.evaluate(background) == "rgb(255, 255, 255)"


def test_print_has_every_chart_and_every_run_and_comes_back(open_page: Open, study: Path) -> None:
    page = open_page(study, color_scheme="dark")
    drawn = page.locator(".chart canvas")
    assert drawn.count() < page.locator(".chart").count()  # those out of sight wait
    page.emulate_media(media="print")
    page.wait_for_function(
        "document.querySelectorAll('.chart canvas').length === document.querySelectorAll('.chart').length"
    )
    assert all(coloured(each) > 0 for each in page.locator(".chart").all())
    assert page.locator("nav").is_hidden()
    assert page.locator("#runs table").is_visible()
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="screen")
    assert page.locator("nav").is_visible()
    assert coloured(chart(page, "test_accuracy")) > 0


def test_three_hundred_runs(open_page: Open, crowd: Path) -> None:
    assert crowd.stat().st_size < 3_000_000
    page = open_page(crowd, PHONE)
    assert width_beyond(page) == 0
    accuracy = chart(page, "test_accuracy")
    assert accuracy.get_attribute("data-lines") == "100"  # means, as so many runs are no picture
    assert coloured(accuracy) > 0
    page.locator(".legend > summary").click()
    page.get_by_role("radio", name="every run").check()
    expect(chart(page, "test_accuracy")).to_have_attribute("data-lines", "300")
    page.get_by_label("Find a configuration").fill("lr 0.5 ")
    assert 0 < page.locator(".groups > li:visible").count() < 100
    assert page.locator("#runs table").is_hidden()
    page.locator("#runs summary").click()
    assert page.locator("#runs tbody tr").count() == 300


def test_everything_can_be_reached_by_keyboard(open_page: Open, study: Path) -> None:
    page = open_page(study)
    wanted = {"A", "BUTTON", "SUMMARY", "INPUT", "chart", "SELECT", "scroll"}
    for _ in range(200):
        page.keyboard.press("Tab")
        wanted.discard(page.evaluate("document.activeElement.className || document.activeElement.tagName"))
        if not wanted:
            break
    assert not wanted


def test_zooming_in_lasts_until_a_double_click(open_page: Open, study: Path) -> None:
    page = open_page(study)
    accuracy = chart(page, "test_accuracy")
    over = accuracy.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    whole = accuracy.screenshot()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle)
    page.mouse.up()
    page.mouse.move(0, 0)
    zoomed = accuracy.screenshot()
    assert zoomed != whole
    page.get_by_role("button", name="Show all").click()  # draws anew
    page.mouse.move(0, 0)
    assert accuracy.screenshot() == zoomed
    over.dblclick()
    page.mouse.move(0, 0)
    assert accuracy.screenshot() == whole


def test_show_and_hide_act_on_what_was_found(open_page: Open, crowd: Path) -> None:
    page = open_page(crowd)
    accuracy = chart(page, "test_accuracy")
    page.get_by_role("button", name="Hide all").click()
    page.get_by_label("Find a configuration").fill("lr 0.07")
    page.get_by_role("button", name="Show all").click()
    assert accuracy.get_attribute("data-lines") == "1"
    page.get_by_label("Find a configuration").fill("")
    assert page.locator(".groups > li:visible").count() == 100


def test_what_has_no_number_is_sorted_last(open_page: Open, make: Maker, tmp_path: Path) -> None:
    for seed, (lr, done) in enumerate([(0.1, 5), (0.2, 2), (0.3, 5)]):
        make.run(tmp_path / str(seed), lr=lr, done=done, seed=seed)
    page = open_page(_report(tmp_path))
    table = page.locator("#results table.keyed")
    heading = table.get_by_role("columnheader", name="test accuracy (%)")
    for expected in (["0.1", "0.3", "0.2"], ["0.3", "0.1", "0.2"]):
        heading.get_by_role("button").click()
        assert cells(table, 1) == expected


@pytest.mark.parametrize("size", [PHONE, TABLET, DESKTOP])
def test_no_table_is_cut(open_page: Open, study: Path, size: tuple[int, int]) -> None:
    """Every cell of every table lies within the page, without scrolling sideways and without a hidden row."""
    page = open_page(study, size)
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    page.wait_for_timeout(200)
    cut = page.locator(".scroll").evaluate_all(
        """regions => regions.filter((region) =>
          region.scrollWidth > region.clientWidth + 1 || region.scrollHeight > region.clientHeight + 1).length"""
    )
    assert cut == 0
    cells = page.locator("#results tbody td:visible").all()
    assert len(cells) > 10
    for cell in cells:
        box = cell.bounding_box()
        assert box is not None
        assert -1 <= box["x"] < box["x"] + box["width"] <= size[0] + 1


def test_a_stacked_table_still_sorts_and_names_its_cells(open_page: Open, study: Path) -> None:
    page = open_page(study, PHONE)
    table = page.locator("#results table.sortable").first
    expect(table).to_have_class(re.compile("stacked"))
    cell = table.locator("tbody tr").first.locator("td").first
    assert cell.get_attribute("data-label")
    table.get_by_role("button", name="test accuracy").first.click()
    numbers = [
        float(each.get_attribute("data-number") or 0)
        for each in table.locator('[data-label^="test accuracy"]').all()
    ]
    assert numbers == sorted(numbers)
