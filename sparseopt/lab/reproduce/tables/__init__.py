"""The tables of a target: what they say, whatever they will look like."""

from sparseopt.lab.reproduce.tables.accuracy import accuracy_table
from sparseopt.lab.reproduce.tables.by_epoch import by_epoch_table
from sparseopt.lab.reproduce.tables.convergence import convergence_table
from sparseopt.lab.reproduce.tables.differences import difference_table
from sparseopt.lab.reproduce.tables.itop import itop_table
from sparseopt.lab.reproduce.tables.methods import methods_table
from sparseopt.lab.reproduce.tables.power import power_table
from sparseopt.lab.reproduce.tables.settings import settings_table
from sparseopt.lab.reproduce.tables.tuning import tuning_table

__all__ = [
    "accuracy_table",
    "by_epoch_table",
    "convergence_table",
    "difference_table",
    "itop_table",
    "methods_table",
    "power_table",
    "settings_table",
    "tuning_table",
]
