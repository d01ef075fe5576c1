"""The verdict says what the seeds support, and no more."""

from collections.abc import Callable

from sparseopt.lab.reproduce.grid import Arm, Grid
from sparseopt.lab.reproduce.outcomes import Outcomes
from sparseopt.lab.reproduce.targets import TARGETS
from sparseopt.lab.reproduce.verdict import verdict

AtScale = Callable[..., Grid]
OutcomesOf = Callable[..., Outcomes]
OURS, BASE = Arm("layer"), Arm("none")
SMALL = {"epochs": (20,), "sparsities": (0.97,), "ham": False}


def test_a_supported_gain_is_claimed_with_its_cell(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL)
    (told,) = verdict(outcomes_of(grid, {OURS: [54.0, 56.2, 50.4], BASE: [53.0, 55.0, 49.0]}))
    assert "in 1 of 1 cell" in told
    assert "above 0 in 1 (97% SET 20 epochs)" in told
    assert "by chance" not in told


def test_a_loss_is_claimed_as_well(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL)
    (told,) = verdict(outcomes_of(grid, {BASE: [54.0, 56.2, 50.4], OURS: [53.0, 55.0, 49.0]}))
    assert "showed in 0 of 1 cell" in told
    assert "below 0 in 1 (97% SET 20 epochs)" in told


def test_nothing_is_claimed_of_unclear_seeds_or_of_one(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL | {"epochs": (20, 40)})
    (told,) = verdict(outcomes_of(grid, {OURS: [55.0, 55.0, 50.0], BASE: [53.0, 55.0, 49.0]}))
    assert "showed in 2 of 2 cells" in told
    assert "no difference is claimed" in told
    assert "0.1 would be expected" in told  # of two intervals at 95%
    assert "by chance" in told
    (told,) = verdict(outcomes_of(grid, {OURS: [60.0], BASE: [50.0]}))
    assert "nothing is claimed" in told


def test_corrections_of_a_single_seed_share_a_sentence(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    corrections = ("none", "layer", "global", "overall")
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL | {"corrections": corrections})
    measured = {BASE: [49.0, 50.0], OURS: [50.0, 51.2], Arm("global"): [48.0], Arm("overall"): [50.5]}
    several, single = verdict(outcomes_of(grid, measured))
    assert several.startswith("SparseOpt against the baseline")
    assert single.startswith("One seed has no interval, so nothing is claimed")
    assert single.endswith(": SparseOpt (global) -1.00, SparseOpt (overall) +1.50.")


def test_corrections_that_nothing_is_claimed_of_share_a_sentence(
    at_scale: AtScale, outcomes_of: OutcomesOf
) -> None:
    corrections = ("none", "layer", "global", "overall", "measured")
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL | {"corrections": corrections})
    measured = {BASE: [49.0, 50.0], OURS: [50.0, 49.0], Arm("global"): [48.0], Arm("overall"): [50.0, 50.5]}
    ours, others = verdict(outcomes_of(grid, measured))
    assert ours.startswith("SparseOpt against the baseline")
    assert "One seed has no interval" in others
    assert "no paired 95% interval leaves 0 out" in others
    assert others.endswith(": SparseOpt (global) -1.00, SparseOpt (overall) +0.75 (2 seeds).")
    worse = measured | {Arm("measured"): [40.0, 41.1]}
    ours, norms, others = verdict(outcomes_of(grid, worse))
    assert norms.startswith("measured against the baseline")
    assert "below 0 in 1" in norms


def test_a_claim_of_the_training_loss_alone_has_its_own_paragraph(
    at_scale: AtScale, outcomes_of: OutcomesOf
) -> None:
    corrections = ("none", "global", "measured", "overall")
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL | {"corrections": corrections})
    arms = [Arm(name) for name in corrections]
    same = {arm: [50.0, 51.0, 52.0] for arm in arms}
    losses = {arm: [1.0, 2.0, 1.0] for arm in arms} | {Arm("measured"): [1.1, 2.24, 1.14]}
    norms, others = verdict(outcomes_of(grid, same, losses))
    assert norms.startswith("measured against the baseline")
    assert "above 0 in 1." in norms
    assert others.endswith(": SparseOpt (global) +0.00 (3 seeds), SparseOpt (overall) +0.00 (3 seeds).")


def test_the_training_loss_is_judged_the_other_way_round(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL)
    same = {OURS: [50.0, 51.0, 52.0], BASE: [50.0, 51.0, 52.0]}
    (told,) = verdict(outcomes_of(grid, same, {OURS: [0.9, 1.76, 0.86], BASE: [1.0, 2.0, 1.0]}))
    assert "showed in 0 of 1 cell" in told  # equal is not above
    assert "lower in 1 of 1" in told


def test_both_readings_and_ham_are_judged_against_their_own_baseline(
    at_scale: AtScale, outcomes_of: OutcomesOf
) -> None:
    grid = at_scale(
        TARGETS["table-cifar100-set"], **SMALL | {"ham": True, "corrections": ("none", "layer", "global")}
    )
    measured = {
        OURS: [50.0, 51.2],
        Arm("global"): [48.0, 49.1],
        Arm("layer", ham=True): [40.0, 41.1],
        BASE: [49.0, 50.0],
        Arm("none", ham=True): [45.0, 46.0],
    }
    told = verdict(outcomes_of(grid, measured))
    assert [sentence.split(",")[0] for sentence in told] == [
        "SparseOpt against the baseline",
        "SparseOpt (global) against the baseline",
        "SparseOpt w/ HAM against the baseline w/ HAM",
    ]
    assert ["1 of 1" in sentence.split("by the mean")[0] for sentence in told] == [True, False, False]


def test_a_renormalised_table_says_what_step_size_alone_brings(
    at_scale: AtScale, outcomes_of: OutcomesOf
) -> None:
    grid = at_scale(TARGETS["table-cifar100-set-renorm"], **SMALL)
    measured = {
        OURS: [33.0, 34.1],
        BASE: [21.0, 22.0],
        Arm("none", lr_factor=2.0): [25.0, 26.1],
        Arm("none", lr_factor=4.0): [30.0, 31.1],
    }
    told = verdict(outcomes_of(grid, measured))
    for part in ("Step size alone", "2 or 4 times", "+9.05", "SparseOpt +12.05", "1 cell", "in 0 of 1"):
        assert part in told[-1]
    measured[Arm("none", lr_factor=4.0)] = [40.0, 41.1]
    assert "in 1 of 1" in verdict(outcomes_of(grid, measured))[-1]


def test_without_pairs_there_is_no_verdict(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["table-cifar100-set"], **SMALL)
    assert "nothing to compare" in verdict(outcomes_of(grid, {BASE: [50.0]}))[0]
