"""The tables of a target: what they say, whatever they will look like."""

from sparseopt.lab.reproduce.tables.accuracy import accuracy_table
from sparseopt.lab.reproduce.tables.convergence import convergence_table
from sparseopt.lab.reproduce.tables.differences import difference_table
from sparseopt.lab.reproduce.tables.settings import settings_table

__all__ = ["accuracy_table", "convergence_table", "difference_table", "settings_table"]
