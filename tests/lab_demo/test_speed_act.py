"""The act about speed says what was measured, and why nothing was where no kernels run."""

from dataclasses import replace

from sparseopt.lab.demo.speed_act import speed_act
from sparseopt.lab.speed.measure import ACCELERATED, DENSE, ENGINE, Speed, TimedTask

MEASURED = Speed(
    "ResNet-20",
    0.95,
    2,
    [
        TimedTask("training step, batch 64", {DENSE: 90.0, ACCELERATED: 30.0}),
        TimedTask("one image", {DENSE: 5.0, ACCELERATED: 1.0, ENGINE: 0.5}),
        TimedTask("64 images", {DENSE: 60.0, ACCELERATED: 10.0, ENGINE: 6.0}),
    ],
    1_100_000,
    100_000,
)


def test_the_ratio_is_told_in_one_sentence() -> None:
    act = speed_act(MEASURED)
    for part in ("30 ms instead of 90", "3.0 times", "0.5 ms instead of 5", "10.0 times", "100 kB", "1.1 MB"):
        assert part in act.sentences[0]
    assert act.table is not None
    assert act.table.rows[1][-1] == "0.5 (10.0x)"
    assert act.table.rows[0][-1] == "-"


def test_without_kernels_it_says_why() -> None:
    tasks = [TimedTask(task.name, {DENSE: task.ms[DENSE]}) for task in MEASURED.tasks]
    act = speed_act(replace(MEASURED, tasks=tasks, why_not="no C++ compiler"))
    assert "no C++ compiler" in act.sentences[0]
    assert "instead of 1.1 MB" in act.sentences[0]
