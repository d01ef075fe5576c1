"""What a step costs on the kernels under methods of several kinds: python benchmarks/kernels/methods.py

Static masks from none to 95% zeros are what GMP, GraNet and AC/DC pass through; SNFS reads the dense gradient at every step,
annealed top-k (here at its final density) as well, and Top-KAST that of its backward set. At one step in a hundred RigL's cost is
SNFS's; else it is that of static masks.
"""

from candidates import dense_training, images, sparse_training
from timing import interleaved, options, print_table

import sparseopt as so

LONG = 10**6  # steps that no benchmark comes to the end of
ZEROS = (0.0, 0.5, 0.8, 0.9, 0.95)


def main() -> None:
    given = options(
        __doc__,
        network=(str, "resnet20-authors"),
        batch=(int, 256),
        repeats=(int, 5),
        inner=(int, 2),
    )
    x = images(given.network, given.batch)
    steps = dense_training(given.network, x, given.dense)
    erk_topkast = so.TopKAST(LONG, sparsity=0.95, backward_sparsity=0.9, distribution="erk")
    methods: dict[str, tuple[float, so.Method]] = {
        **{f"static masks, {zeros:.0%} zeros": (zeros, so.Static()) for zeros in ZEROS},
        "SNFS, 95%": (0.95, so.SNFS(total_steps=LONG)),
        "Top-KAST, 95% forward, 90% backward": (0.0, erk_topkast),
        "annealed top-k, 95% in every layer": (0.95, so.AnnealedTopK(LONG, sparsity=0.95, start=0.95)),
    }
    for name, (zeros, method) in methods.items():
        steps[name] = sparse_training(
            given.network, x, zeros, "erk", wrapped=True, method=method, break_even=0.0
        )
    times = interleaved(steps, given.repeats, given.clock, inner=given.inner)
    print_table(f"{given.network}, training step, batch {given.batch}", times)


if __name__ == "__main__":
    main()
