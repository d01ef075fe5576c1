"""Tables against numbers worked out by hand."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from sparseopt.lab.reproduce.convergence import common_level, epochs_to, reach
from sparseopt.lab.reproduce.grid import Arm, Grid
from sparseopt.lab.reproduce.layout import Best, LabelledTable, for_page, for_terminal, markdown
from sparseopt.lab.reproduce.outcomes import Outcomes
from sparseopt.lab.reproduce.records import csv_text, records
from sparseopt.lab.reproduce.scale import sentence
from sparseopt.lab.reproduce.tables import accuracy_table, convergence_table, difference_table
from sparseopt.lab.reproduce.targets import TARGETS, Target

AtScale = Callable[..., Grid]
OutcomesOf = Callable[..., Outcomes]
OURS, BASE = Arm("layer"), Arm("none")


@pytest.fixture
def set_97(at_scale: AtScale) -> Callable[..., Grid]:
    """SET at 97% without HAM, 100 epochs, but for changes."""

    def make(**changes: object) -> Grid:
        usual = {"epochs": (100,), "sparsities": (0.97,), "ham": False, "seeds": 3}
        return at_scale(TARGETS["table-cifar100-set"], **usual | changes)

    return make


def test_mean_std_best_and_the_papers_figure_beside(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    table = accuracy_table(outcomes_of(set_97(), {OURS: [54.0, 55.0, 56.0], BASE: [53.0, 53.5, 54.0]}))
    assert table.columns == ("sparsity", "DST", "training", "100 epochs", "paper, 100")
    assert table.rows == [
        ("97%", "SET", "SparseOpt", "55.00 ± 1.00", "54.76 ± 0.39"),
        ("97%", "SET", "baseline", "53.50 ± 0.50", "53.10 ± 0.48"),
    ]
    assert [isinstance(row[3], Best) for row in table.rows] == [True, False]


def test_at_another_length_the_papers_nearest_figure_is_kept_apart(
    set_97: AtScale, outcomes_of: OutcomesOf
) -> None:
    table = accuracy_table(outcomes_of(set_97(epochs=(20,)), {OURS: [33.0], BASE: [32.0]}))
    assert table.values == ("20 epochs", "(paper: 100 epochs)")
    assert any("for orientation only" in note for note in table.notes)
    assert table.rows[1][3:] == ("32.00 (1 of 3 seeds)", "53.10 ± 0.48")


def test_on_part_of_the_data_no_figure_of_the_paper_stands_beside(
    set_97: AtScale, outcomes_of: OutcomesOf
) -> None:
    outcomes = outcomes_of(set_97(fraction_of_data=0.5), {OURS: [33.0], BASE: [32.0]})
    assert accuracy_table(outcomes).values == ("100 epochs", "(paper: 100 epochs)")
    assert {row["paper_mean"] for row in records(outcomes, reach(outcomes, None))} == {None}


def test_equal_means_are_both_best_and_a_row_alone_is_not(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    tied = accuracy_table(outcomes_of(set_97(), {OURS: [54.001], BASE: [53.999]}))
    assert all(isinstance(row[3], Best) for row in tied.rows)
    alone = accuracy_table(outcomes_of(set_97(), {BASE: [53.999]}))
    assert [isinstance(row[3], Best) for row in alone.rows] == [False]


def test_the_best_is_one_of_those_with_most_seeds(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    table = accuracy_table(outcomes_of(set_97(), {OURS: [60.0], BASE: [53.0, 54.0, 55.0]}))
    assert not any(isinstance(row[3], Best) for row in table.rows), "nothing to compare with"


def test_what_is_missing_is_said(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    table = accuracy_table(outcomes_of(set_97(epochs=(100, 200)), {BASE: [53.0]}))
    notes = " ".join(table.notes)
    assert "10 of 12 runs" in notes
    assert "left out: 97% SET SparseOpt." in notes


def test_differences_are_paired_and_claimed_only_with_an_interval_off_zero(
    set_97: AtScale, outcomes_of: OutcomesOf
) -> None:
    # Differences 1.0, 1.2, 1.4: mean 1.2, s = 0.2, t(0.975, 2) = 4.3027, half width 4.3027 * 0.2 / sqrt(3) = 0.4968.
    clear = outcomes_of(set_97(), {OURS: [54.0, 56.2, 50.4], BASE: [53.0, 55.0, 49.0]})
    row = ("97%", "SET", "SparseOpt", "baseline", "+1.20 (+0.70 to +1.70) improves")
    assert difference_table(clear).rows == [row]
    # Differences 2, 0, 1: mean 1, s = 1, half width 2.48.
    unclear = outcomes_of(set_97(), {OURS: [55.0, 55.0, 50.0], BASE: [53.0, 55.0, 49.0]})
    assert difference_table(unclear).rows[0][-1] == "+1.00 (-1.48 to +3.48) no claim"
    worse = outcomes_of(set_97(), {BASE: [54.0, 56.2, 50.4], OURS: [53.0, 55.0, 49.0]})
    assert difference_table(worse).rows[0][-1] == "-1.20 (-1.70 to -0.70) worsens"
    single = outcomes_of(set_97(), {OURS: [60.0], BASE: [50.0]})
    assert difference_table(single).rows[0][-1] == "+10.00 (1 seed) no claim"


def test_pairs_that_differ_in_more_than_what_is_compared_are_counted(
    set_97: AtScale, outcomes_of: OutcomesOf
) -> None:
    outcomes = outcomes_of(set_97(), {OURS: [54.0, 56.2, 50.4], BASE: [53.0, 55.0, 49.0]})

    def notes(*ours: dict[str, object]) -> list[str]:
        cells = {
            key: replace(
                cell,
                runs={
                    seed: replace(
                        run,
                        environment=ours[seed] if cell.row.arm == OURS else {"processor": "A", "ranks": 1},
                    )
                    for seed, run in cell.runs.items()
                },
            )
            for key, cell in outcomes.cells.items()
        }
        return [
            note for note in difference_table(replace(outcomes, cells=cells)).notes if " of 3 pairs" in note
        ]

    same: dict[str, object] = {"processor": "A", "ranks": 1}
    assert notes(same, same, same) == []
    (processors,) = notes(
        same, {**same, "processor": "B"}, {**same, "continued": [{"step": 5, "processor": "B"}]}
    )
    assert processors.startswith("2 of 3 pairs ran on processors of two kinds")
    ranks, half = notes(
        {**same, "ranks": 8}, {**same, "accelerate": "bfloat16"}, {**same, "accelerate": "on"}
    )
    assert ranks.startswith("1 of 3 pairs ran on two numbers of ranks")
    assert half.startswith("1 of 3 pairs ran with activations in bfloat16 on one side")


def test_one_candidate_is_no_search(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = set_97(tune=(("lr", 0.4),))
    outcomes = outcomes_of(grid, {OURS: [54.0], BASE: [53.0]})
    told = " ".join(
        [
            sentence(grid.target, grid.scale),
            *accuracy_table(outcomes).notes,
            *difference_table(outcomes).notes,
        ]
    )
    assert "every row with lr=0.4" in told
    assert "best" not in told.replace("the best of a block", "")


def test_only_seeds_that_both_have_are_paired(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    outcomes = outcomes_of(set_97(), {OURS: [54.0, 56.0], BASE: [53.0, 54.0, 90.0]})
    assert difference_table(outcomes).rows[0][-1].startswith("+1.50 (")
    without = outcomes_of(set_97(), {OURS: [54.0, 56.0]})
    assert difference_table(without).rows[0][-1] == "-"


def test_convergence_compares_the_loss_of_the_whole_run(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    # Relative differences -10%, -12%, -14%: mean -12%, s = 2%, half width 4.97%.
    outcomes = outcomes_of(
        set_97(),
        {OURS: [50.0] * 3, BASE: [50.0] * 3},
        {OURS: [0.9, 1.76, 0.86], BASE: [1.0, 2.0, 1.0]},
    )
    rows = convergence_table(outcomes, reach(outcomes, None)).rows
    assert rows[0][4:6] == ("1.1733", "-12.0% (-17.0% to -7.0%) improves")
    assert rows[1][4:6] == ("1.3333", "-")


def test_epochs_to_reach_what_all_have_reached(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    """Runs gain their accuracy in equal steps, so 60% takes 60 / 80 of 100 epochs, or 60 / 60.4."""
    outcomes = outcomes_of(set_97(), {OURS: [80.0], BASE: [60.4]})
    ours, base = convergence_table(outcomes, reach(outcomes, None)).rows
    assert ours[6:] == ("75.0 to 60%", "-25.0 (1 seed) no claim")
    assert base[6:] == ("100.0 to 60%", "-")
    ours, base = convergence_table(outcomes, reach(outcomes, 70.0)).rows
    assert ours[6:] == ("88.0 to 70%", "-")
    assert base[6] == "0 of 1 reached 70%"


def test_the_level_is_what_the_worst_run_had_at_its_best(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    outcomes = outcomes_of(set_97(), {OURS: [80.0, 41.9], BASE: [60.4]})
    assert common_level(outcomes.finished) == 41.0
    first = outcomes.finished[0]
    assert (epochs_to(first, 80.0), epochs_to(first, 80.1)) == (100, None)


def test_records_hold_every_cell_for_programs(set_97: AtScale, outcomes_of: OutcomesOf) -> None:
    outcomes = outcomes_of(set_97(), {OURS: [54.0, 56.2, 50.4], BASE: [53.0, 55.0, 49.0]})
    ours, base = records(outcomes, reach(outcomes, None))
    assert ours["accuracy_difference"] == pytest.approx(1.2)
    assert ours["accuracy_low"] == pytest.approx(1.2 - 4.302653 * 0.2 / 3**0.5, rel=1e-5)
    assert (ours["accuracy_claim"], base["accuracy_claim"]) == ("improves", None)
    assert (base["paper_mean"], base["paper_std"]) == (53.10, 0.48)
    assert ours["hours"] == pytest.approx(3.0)
    lines = csv_text([ours, base]).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("target,data,model,dst,")


def layout() -> LabelledTable:
    return LabelledTable(
        "Names <b> & 50%",
        ("a", "b"),
        ("x|y",),
        [("1", "p", "[bold]"), ("1", "q", Best("2*3")), ("2", "q", "<i>")],
    )


def test_markdown_escapes_and_blanks_repeats() -> None:
    text = markdown(layout())
    lines = text.splitlines()
    assert lines[2] == r"| a | b | x\|y |"
    assert lines[4:] == [r"| 1 | p | \[bold\] |", r"|  | q | **2\*3** |", r"| 2 | q | \<i\> |"]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in lines[2:])


def test_pages_and_terminals_show_markup_of_cells_as_text() -> None:
    assert str(for_page(layout()).rows[1][2]) == "<strong>2*3</strong>"
    assert for_terminal(layout()).rows[0][2] == r"\[bold]"


def test_digits_have_no_figure_in_the_paper(
    digits: Target, at_scale: AtScale, outcomes_of: OutcomesOf
) -> None:
    table = accuracy_table(outcomes_of(at_scale(digits), {OURS: [90.0], BASE: [91.0]}))
    assert table.values == ("4 epochs",)
