"""In plain words: did the paper's ordering show, in how many cells, and how sure is that?"""

from statistics import fmean

from sparseopt.lab.reproduce.claims import ClaimCount, count_claims, count_loss_claims
from sparseopt.lab.reproduce.corrections import BY_NORM, NAMES, READINGS
from sparseopt.lab.reproduce.grid import Arm
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy
from sparseopt.lab.show.statistics import LEVEL, Comparison
from sparseopt.lab.show.words import counted


def verdict(outcomes: Outcomes) -> list[str]:
    """One paragraph for the paper's correction and each that something is claimed of, with and without HAM, one for all others,
    and one about step size where it is controlled."""
    corrected = (*READINGS, *BY_NORM)
    arms = sorted((arm for arm in outcomes.grid.arms if arm.correction in corrected), key=lambda arm: arm.ham)
    counted_arms = [counts for arm in arms if (counts := count_claims(outcomes, arm)).differences]
    unclaimed = [
        counts for counts in counted_arms if counts.arm != Arm("layer") and _unclaimed(outcomes, counts)
    ]
    together = unclaimed if len(unclaimed) > 1 else []
    told = [_ordering(outcomes, counts) for counts in counted_arms if counts not in together]
    told += [_nothing_claimed(together)] if together else []
    if not told and outcomes.grid.target.of_methods:
        return []
    if not told:
        return [
            "No cell has finished runs of a correction and of the baseline: there is nothing to compare yet."
        ]
    return [*told, *_step_size(outcomes)]


def _single(counts: ClaimCount) -> bool:
    return all(len(each.differences) < 2 for each in counts.differences.values())


def _unclaimed(outcomes: Outcomes, counts: ClaimCount) -> bool:
    both = (counts, count_loss_claims(outcomes, counts.arm))
    return not any(each.claimed(claim) for each in both for claim in ("improves", "worsens"))


def _nothing_claimed(several: list[ClaimCount]) -> str:
    reasons = {
        "one seed has no interval": any(map(_single, several)),
        f"no paired {LEVEL:.0%} interval leaves 0 out": not all(map(_single, several)),
    }
    because = ", and ".join(reason for reason, holds in reasons.items() if holds)
    cells = {len(counts.differences) for counts in several}
    mean = "" if cells == {1} else ", mean over cells"
    gains = ", ".join(f"{counts.arm.label} {_gain(counts)}" for counts in several)
    return (
        f"{because[0].upper()}{because[1:]}, so nothing is claimed of these differences to the baseline, nor of their "
        f"training losses; in points of test accuracy after the last epoch{mean}: {gains}."
    )


def _gain(counts: ClaimCount) -> str:
    differences = list(counts.differences.values())
    mean = f"{fmean(each.mean for each in differences):+.2f}"
    seeds = {len(each.differences) for each in differences}
    return mean if max(seeds) < 2 else f"{mean} ({' to '.join(map(str, sorted(seeds)))} seeds)"


def _ordering(outcomes: Outcomes, counts: ClaimCount) -> str:
    arm, cells = counts.arm, len(counts.differences)
    better, worse = counts.claimed("improves"), counts.claimed("worsens")
    base = "the baseline" + (" w/ HAM" if arm.ham else "")
    sentence = (
        f"{arm.label} against {base}, test accuracy after the last epoch: the paper's ordering ({NAMES['layer']} above the "
        f"baseline) showed in {counts.ahead} of {counted(cells, 'cell')} by the mean over seeds. "
    )
    return sentence + _confidence(counts, better, worse) + _loss(outcomes, arm)


def _confidence(counts: ClaimCount, better: list[Cell], worse: list[Cell]) -> str:
    cells = len(counts.differences)
    level = f"{LEVEL:.0%}"
    if _single(counts):
        return "One seed has no interval, so nothing is claimed."
    chance = (
        f" The intervals are for one cell each; of {cells} cells without any effect, {(1 - LEVEL) * cells:.2g} would be "
        "expected to leave 0 out by chance."
        if cells > 1
        else ""
    )
    if not better and not worse:
        return f"No cell has a paired {level} interval that leaves 0 out: no difference is claimed.{chance}"
    return (
        f"The paired {level} interval lies above 0 in {len(better)}{_named(better)} and below 0 in {len(worse)}"
        f"{_named(worse)}: that much is claimed, no more.{chance}"
    )


def _loss(outcomes: Outcomes, arm: Arm) -> str:
    counts = count_loss_claims(outcomes, arm)
    better, worse = len(counts.claimed("improves")), len(counts.claimed("worsens"))
    return (
        f" Mean training loss over the run: lower in {counts.ahead} of {len(counts.differences)}, with an interval below 0 in "
        f"{better} and above 0 in {worse}."
    )


def _named(cells: list[Cell]) -> str:
    """The cells by name, where they are few enough to be read."""
    if not 1 <= len(cells) <= 4:
        return ""
    names = [f"{' '.join(cell.row.labels[:2])} {cell.epochs} epochs" for cell in cells]
    return f" ({', '.join(names)})"


def _step_size(outcomes: Outcomes) -> list[str]:
    """Beside the gain of the correction: what does the baseline gain by a larger learning rate alone?"""
    gains = [
        (max(each.mean for each in controls), own.mean)
        for cell in outcomes.cells.values()
        if cell.row.arm == Arm("layer")
        and (own := outcomes.difference(cell, accuracy))
        and (controls := _controls(outcomes, cell))
    ]
    if not gains:
        return []
    factors = " or ".join(f"{factor:g}" for factor in outcomes.grid.scale.lr_controls)
    as_much = sum(control >= own for control, own in gains)
    return [
        f"Step size alone: the baseline with {factors} times the learning rate, whichever is better in the cell, gains "
        f"{fmean(control for control, _ in gains):+.2f} points over the baseline, {NAMES['layer']} "
        f"{fmean(own for _, own in gains):+.2f}, mean over {counted(len(gains), 'cell')}; in {as_much} of {len(gains)} the "
        "larger rate gains as much as the correction, or more."
    ]


def _controls(outcomes: Outcomes, cell: Cell) -> list[Comparison]:
    """The baseline with other learning rates against the baseline, in the place of a cell."""
    arms = [Arm("none", lr_factor=factor) for factor in outcomes.grid.scale.lr_controls]
    cells = [control for arm in arms if (control := outcomes.beside(cell, arm))]
    return [difference for control in cells if (difference := outcomes.difference(control, accuracy))]
