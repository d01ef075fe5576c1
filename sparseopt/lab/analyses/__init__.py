"""The paper's analyses and the skew diagnostic: each a measurement, a figure and a table."""

from typing import Any

from sparseopt.lab.analyses import (
    balance,
    bn_ratio,
    fan_in,
    itop,
    ln_ratio,
    one_neuron,
    skew,
    two_neurons,
)
from sparseopt.lab.analyses.analysis import Analysis

ANALYSES: dict[str, Analysis[Any]] = {
    "bn-ratio": bn_ratio.ANALYSIS,
    "fan-in": fan_in.ANALYSIS,
    "ln-ratio": ln_ratio.ANALYSIS,
    "one-neuron": one_neuron.ANALYSIS,
    "two-neurons": two_neurons.ANALYSIS,
    "balance": balance.ANALYSIS,
    "skew": skew.ANALYSIS,
    "itop": itop.ANALYSIS,
}
