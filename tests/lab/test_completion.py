"""Shell completion, in bash itself: commands, recipes, options and their values."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sparseopt.lab.commands.completion import main


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    path = tmp_path_factory.mktemp("completion") / "sparseopt.bash"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main([]) == 0
    return path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["tra"], ["train"]),
        (["train", "cif"], ["cifar100-resnet20"]),
        (["train", "digits-mlp", "--spars"], ["--sparsity"]),
        (["train", "--clip", "p"], ["paper"]),
        (["train", "--storage", "p"], ["packed"]),
        (["flops", "cif"], ["cifar100-resnet20"]),
        (["sweep", "--retry"], ["--retry-failed"]),
        (["analyse", "sk"], ["skew"]),
        (["analyse", "skew", "--batch"], ["--batches"]),
        (["reproduce", "table-cifar100-set-"], ["table-cifar100-set-renorm"]),
        (["export", "--format", "on"], ["onnx"]),
    ],
)
def test_what_bash_offers(script: Path, typed: list[str], expected: list[str]) -> None:
    words = " ".join(f"'{word}'" for word in ("sparseopt", *typed))
    command = (
        f"source {script}; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _sparseopt; echo ${{COMPREPLY[@]}}"
    )
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == expected
    assert answer.stderr == ""
