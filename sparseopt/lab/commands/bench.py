"""`sparseopt bench`: what sparse kernels gain on this machine, in a minute."""

from sparseopt.lab.cli.command import run
from sparseopt.lab.errors import UserError, require
from sparseopt.lab.show.terminal import print_table, wide_console
from sparseopt.lab.speed.measure import MLP, RESNET, measure, unavailable
from sparseopt.lab.speed.words import machine, sentence, table


def main(argv: list[str]) -> int:
    """Measure what the command line says."""
    return run("sparseopt bench", bench, argv)


def bench(sparsity: tuple[float, ...] = (0.9, 0.95, 0.97), seconds: float = 45.0, threads: int = 1) -> None:
    """Time a ResNet-20 and an MLP, dense and sparse: a training step, one sample, a batch. Dense is torch as it is written
    (eager); every ratio is dense time / sparse time. The first use of the kernels on a machine may compile them first.

    Args:
        sparsity: One or several shares of zeros.
        seconds: How long to measure, all together.
        threads: CPU threads.
    """
    require(bool(sparsity), "sparsity", "none", "one or more shares of zeros")
    for share in sparsity:
        require(0 <= share < 1, "sparsity", share, "at least 0 and less than 1")
    require(seconds > 0, "seconds", seconds, "greater than 0")
    require(threads >= 1, "threads", threads, "at least 1")
    print(machine(threads))
    if why := unavailable():
        raise UserError(f"the sparse kernels do not run here: {why}")
    each = seconds / (2 * len(sparsity))
    measured = [measure(network, share, each, threads) for network in (RESNET, MLP) for share in sparsity]
    console = wide_console()
    print_table(console, table(measured))
    console.print(sentence(measured[len(sparsity) // 2]), highlight=False)
    console.print(
        "Dense is torch as it comes, eager; compiled torch and inference engines are faster (docs/kernels.md, docs/engines.md).",
        highlight=False,
    )
