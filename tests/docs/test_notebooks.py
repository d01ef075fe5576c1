"""The notebooks run from the first cell to the last, and are committed with what they print."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

nbformat = pytest.importorskip("nbformat", reason="the site's libraries are not installed")


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_committed_and_none_is_an_error(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "error"]
    assert str(Path(__file__).parents[2]) not in path.read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the site's libraries are not installed")
    pytest.importorskip("ipykernel", reason="the site's libraries are not installed")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
