import math

import pytest

from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.config.schedule import WarmupCosine


def cifar(epochs: int = 100, steps_per_epoch: int = 195) -> WarmupCosine:
    config = RECIPES["cifar100-resnet20"]
    return WarmupCosine(
        epochs * steps_per_epoch, 5 * steps_per_epoch, config.warmup_lr, config.peak_lr, config.final_lr
    )


def test_cifar_starts_at_zero_and_rises_linearly_over_five_epochs() -> None:
    schedule = cifar()
    assert schedule(0) == 0
    assert schedule(1) == pytest.approx(0.1 / 975, rel=1e-12)
    assert schedule(974) == pytest.approx(0.1 * 974 / 975, rel=1e-12)
    assert schedule(975) == 0.1


def test_cifar_falls_as_half_a_cosine_to_a_millionth() -> None:
    schedule, middle = cifar(), 975 + (19500 - 975) / 2
    assert schedule(976) == pytest.approx(
        1e-6 + (0.1 - 1e-6) * (1 + math.cos(math.pi / 18525)) / 2, rel=1e-12
    )
    assert schedule(int(middle)) > (0.1 + 1e-6) / 2 > schedule(int(middle) + 1)
    last = 1e-6 + (0.1 - 1e-6) * (1 + math.cos(math.pi * 18524 / 18525)) / 2
    assert schedule(19499) == pytest.approx(last, rel=1e-9)
    assert schedule(19500) == 1e-6
    assert schedule(30000) == 1e-6


def test_imagenet_scales_its_peak_with_the_batch_and_keeps_its_ends() -> None:
    config = RECIPES["imagenet-resnet50"]
    assert config.peak_lr == pytest.approx(0.1 * 128 / 256)
    schedule = WarmupCosine(900, 50, config.warmup_lr, config.peak_lr, config.final_lr)
    assert schedule(0) == 1e-5
    assert schedule(25) == pytest.approx((1e-5 + 0.05) / 2)
    assert schedule(50) == pytest.approx(0.05)
    assert schedule(900) == 1e-5


def test_it_never_rises_after_the_warm_up() -> None:
    schedule = cifar(epochs=10, steps_per_epoch=20)
    rates = [schedule(step) for step in range(100, 210)]
    assert rates == sorted(rates, reverse=True)


def test_no_warm_up_and_nothing_but_warm_up() -> None:
    assert WarmupCosine(10, 0, 0.0, 0.1, 0.0)(0) == 0.1
    everything = WarmupCosine(10, 10, 0.0, 0.1, 1e-6)
    assert everything(9) == pytest.approx(0.09)
    assert everything(10) == 1e-6


def test_a_warm_up_longer_than_the_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"warmup_steps .*total_steps = 10.* 11"):
        WarmupCosine(10, 11, 0.0, 0.1, 0.0)
