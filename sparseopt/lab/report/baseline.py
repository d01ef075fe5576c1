"""One configuration against another, seed by seed: the difference that the right factors, or anything else, make.

`--baseline correction=none` names what the baseline's settings are; everything else a baseline shares with the configuration
that is compared with it. Runs of one seed share initial weights, masks and batches, so differences are taken between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sparseopt.lab.config.differences import differing
from sparseopt.lab.config.values import settings_given, value_of
from sparseopt.lab.errors import UserError
from sparseopt.lab.report.study import Study
from sparseopt.lab.report.tables import NOTHING, ReportTable, TableCell, cells_of, in_words
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.groups import Group
from sparseopt.lab.show.statistics import Comparison, compare, compare_relative

OPTION = "--baseline"


@dataclass(frozen=True)
class Difference:
    """A configuration against its baseline: accuracies in points, losses relative."""

    group: Group
    seeds: list[int]
    """Those that both have finished."""
    accuracy: Comparison
    loss: Comparison


def read_baseline(options: Sequence[str]) -> dict[str, Any]:
    """What the baseline is, as the options spell it.

    >>> read_baseline(["correction=none", "method=set"])
    {'correction': 'none', 'method': 'set'}
    """
    chosen: dict[str, Any] = {}
    for name, text in settings_given(options, OPTION, "value", "correction=none"):
        value = value_of(name, text, OPTION)
        chosen[name] = list(value) if isinstance(value, tuple) else value
    return chosen


def differences(study: Study, chosen: Mapping[str, Any]) -> list[Difference]:
    """Every configuration that has a baseline, against it; refused if no configuration is one."""
    baselines = [
        group for group in study.groups if all(group.settings.get(name) == chosen[name] for name in chosen)
    ]
    if not baselines:
        told = ", ".join(f"{name}={value}" for name, value in chosen.items())
        values = "; ".join(f"{name}: {', '.join(_values(study, name))}" for name in chosen)
        raise UserError(f"{OPTION} {told}: no configuration here has these settings; there are {values}")
    others = [group for group in study.groups if group not in baselines]
    pairs = [(group, _baseline_of(group, baselines, chosen)) for group in others]
    found = [_difference(group, base) for group, base in pairs if base is not None]
    return [each for each in found if each is not None]


def _values(study: Study, name: str) -> list[str]:
    return list(dict.fromkeys(str(group.settings[name]) for group in study.groups if name in group.settings))


def _baseline_of(group: Group, baselines: Sequence[Group], chosen: Mapping[str, Any]) -> Group | None:
    """The baseline that shares with the group all settings that both have, but for the chosen ones."""
    alike = [base for base in baselines if not set(differing([group.settings, base.settings])) - set(chosen)]
    return alike[0] if len(alike) == 1 else None


def _difference(group: Group, base: Group) -> Difference | None:
    own, others = (_by_seed(each) for each in (group, base))
    seeds = sorted(own.keys() & others.keys())
    if not seeds:
        return None
    accuracy = compare(*([_mean(runs[seed], "test_accuracy") for seed in seeds] for runs in (own, others)))
    loss = compare_relative(
        *([_mean(runs[seed], "mean_train_loss") for seed in seeds] for runs in (own, others))
    )
    return Difference(group, seeds, accuracy, loss)


def _by_seed(group: Group) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for run in group.finished:
        found.setdefault(run.config.seed, []).append(run)
    return found


def _mean(runs: Sequence[Run], name: str) -> float:
    """Of the runs of one seed: one, but where several machines have trained it."""
    return fmean(run.last[name] for run in runs)


def difference_table(study: Study, found: Sequence[Difference]) -> ReportTable:
    """One row a configuration: differences with their 95% intervals; bold words are left to the reader."""
    names = differing([group.settings for group in study.groups])
    columns = [
        *map(in_words, names),
        "paired seeds",
        "test accuracy (points)",
        "95% interval",
        "mean train loss (%)",
    ]
    rows = [
        [
            *cells_of(each.group.settings, names),
            TableCell(str(len(each.seeds)), len(each.seeds)),
            *_numbers(each),
        ]
        for each in found
    ]
    return ReportTable([*columns, "95% interval", "supported"], rows)


def _numbers(each: Difference) -> list[TableCell]:
    supported = [
        name for name, of in (("accuracy", each.accuracy), ("train loss", each.loss)) if of.supported
    ]
    return [
        *_difference_cells(each.accuracy, 2),
        *_difference_cells(each.loss, 1),
        TableCell(" and ".join(supported) or NOTHING),
    ]


def _difference_cells(comparison: Comparison, digits: int) -> list[TableCell]:
    mean, low, high = (100 * value for value in (comparison.mean, comparison.low, comparison.high))
    form = f"+z.{digits}f"  # a difference that rounds to nothing has no sign of its own
    one_seed = len(comparison.differences) < 2
    interval = "one seed" if one_seed else f"{low:{form}} to {high:{form}}"
    return [TableCell(f"{mean:{form}}", mean), TableCell(interval)]
