"""One HTML file that shows what a folder of runs holds: opens from disk, needs no network."""

from sparseopt.lab.report.page import write_report
from sparseopt.lab.report.section import Drawing, Section

__all__ = ["Drawing", "Section", "write_report"]
