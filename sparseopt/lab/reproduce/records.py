"""The numbers for programs: one record a cell, as CSV and as JSON."""

import csv
import io
import math
from collections.abc import Mapping
from typing import Any

from sparseopt.lab.reproduce.claims import claim
from sparseopt.lab.reproduce.convergence import Reached
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy, mean_train_loss
from sparseopt.lab.reproduce.paper import find
from sparseopt.lab.reproduce.tables.itop import itop_rate
from sparseopt.lab.reproduce.tables.methods import costs
from sparseopt.lab.reproduce.tables.texts import candidate_text
from sparseopt.lab.show.statistics import Comparison

Record = dict[str, Any]


def records(outcomes: Outcomes, reached: Mapping[Cell, Reached]) -> list[Record]:
    """One record a cell with finished runs; accuracies in percent, differences paired by seed, empty where unknown."""
    cells = [cell for cell in outcomes.cells.values() if cell.runs]
    found = [_record(outcomes, cell, reached[cell]) for cell in cells]
    if not outcomes.grid.target.of_methods:
        return found
    return [
        {
            **record,
            "itop_rate": cell.mean_and_std(itop_rate)[0],
            "inference_flops": cost and cost[0],
            "training_flops": cost and cost[1],
        }
        for record, cell, cost in zip(found, cells, costs(outcomes.grid, cells), strict=True)
    ]


def _record(outcomes: Outcomes, cell: Cell, reached: Reached) -> Record:
    grid, row = outcomes.grid, cell.row
    config = next(iter(cell.runs.values())).config
    mean, std = cell.mean_and_std(accuracy)
    setting = grid.setting(row) if grid.papers else None
    paper = find(setting, cell.epochs) if setting else None
    loss, loss_std = cell.mean_and_std(mean_train_loss)
    return {
        "target": grid.target.name,
        "data": grid.target.recipe.data,
        "model": grid.target.recipe.model,
        "dst": row.method,
        "grad_renorm": int(grid.target.renormalised),
        "sparsity": row.sparsity,
        "training": row.arm.label,
        "correction": row.arm.correction,
        "correct_decay": int(row.arm.decay),
        "ham": int(row.arm.ham),
        "grow_from": row.arm.grow_from,
        "lr_factor": row.arm.lr_factor,
        "lr": config.lr,
        "tuned": candidate_text(grid.chosen.get((row, cell.epochs), ())),
        "epochs": cell.epochs,
        "fraction_of_data": grid.scale.fraction_of_data,
        "width": grid.scale.width,
        "batch_size": grid.scale.batch_size,
        "seeds": len(cell.runs),
        "seeds_wanted": cell.wanted,
        "accuracy_mean": mean,
        "accuracy_std": std,
        "paper_mean": paper.mean if paper else None,
        "paper_std": paper.std if paper else None,
        **_compared("accuracy", outcomes.difference(cell, accuracy), "higher"),
        "mean_train_loss": loss,
        "mean_train_loss_std": loss_std,
        **_compared("loss_relative", outcomes.relative_difference(cell, mean_train_loss), "lower"),
        "reach_level": reached.level,
        "reach_epochs": reached.mean,
        "reach_seeds": len(reached.epochs),
        "hours": sum(run.last["seconds"] for run in cell.runs.values()) / 3600,
    }


def _compared(name: str, difference: Comparison | None, better: Any) -> Record:
    known = difference is not None and math.isfinite(difference.low)
    return {
        f"{name}_difference": difference.mean if difference else None,
        f"{name}_low": difference.low if difference and known else None,
        f"{name}_high": difference.high if difference and known else None,
        f"{name}_claim": claim(difference, better=better) if difference else None,
    }


def csv_text(rows: list[Record]) -> str:
    """The records under their names; what is unknown is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
