"""`python -m sparseopt.kernels.native`: the levels this machine can execute, best first, one a line (for `SPARSEOPT_KERNELS`)."""

from sparseopt.kernels.native.levels import possible

if __name__ == "__main__":
    print("\n".join(possible()))  # noqa: T201
