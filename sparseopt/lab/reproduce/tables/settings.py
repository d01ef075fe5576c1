"""What the runs were made with and on."""

from sparseopt.lab.config.differences import differing
from sparseopt.lab.report.study import Study
from sparseopt.lab.report.tables import shared, shown
from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Outcomes


def settings_table(outcomes: Outcomes) -> LabelledTable:
    """What all runs share, and of versions and machines also where they differ."""
    study = Study(outcomes.finished)
    same = [(name.text, value.text) for name, value in shared(study).rows]
    other = [
        (
            name.replace("_", " "),
            ", ".join(dict.fromkeys(shown(each.get(name)) for each in study.environments)),
        )
        for name in differing(study.environments)
    ]
    return LabelledTable("Settings", ("setting", "value"), (), [*same, *other])
