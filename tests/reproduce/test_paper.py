"""The paper's figures are all there, and every cell of every table of the paper finds its own."""

from sparseopt.lab.reproduce.grid import Grid
from sparseopt.lab.reproduce.paper import Published, Setting, find, nearest, published
from sparseopt.lab.reproduce.scale import Scale
from sparseopt.lab.reproduce.targets import TARGETS

TABLES = {
    name: target for name, target in TARGETS.items() if name.startswith("table-") and not target.of_methods
}


def test_all_figures_are_there() -> None:
    assert sum(len(figures) for figures in published().values()) == 252


def test_every_cell_of_the_papers_tables_finds_its_figure() -> None:
    found = []
    for target in TABLES.values():
        grid = Grid(target, Scale.of(target))
        for row in grid.rows:
            if row.arm.lr_factor != 1:  # the control is ours
                assert grid.setting(row) is None
                continue
            setting = grid.setting(row)
            assert setting is not None
            found += [(setting, epochs) for epochs in target.epochs if find(setting, epochs)]
            assert all(find(setting, epochs) for epochs in target.epochs), (target.name, row)
    assert len(found) == len(set(found)) == 252


def test_figures_are_those_of_the_paper() -> None:
    def cifar(
        method: str, sparsity: float, *, corrected: bool, ham: bool, renormalised: bool = False
    ) -> Setting:
        return Setting("cifar100", method, renormalised, sparsity, corrected, ham)

    assert find(cifar("rigl", 0.9, corrected=True, ham=True), 100) == Published(100, 61.64, 0.24)
    assert find(cifar("rigl", 0.97, corrected=False, ham=False), 500) == Published(500, 57.32, 0.16)
    imagenet = Setting("imagenet", "set", False, 0.95, corrected=False, ham=False)
    assert find(imagenet, 270) == Published(270, 73.82, None)


def test_the_nearest_figure_is_of_the_same_setting() -> None:
    setting = Setting("imagenet", "set", False, 0.95, corrected=False, ham=False)
    assert nearest(setting, 20) == find(setting, 90)
    assert nearest(setting, 1000) == find(setting, 270)
    assert nearest(Setting("digits", "set", False, 0.95, corrected=False, ham=False), 20) is None
