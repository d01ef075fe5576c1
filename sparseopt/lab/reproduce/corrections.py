"""The corrections that tables compare, and what their rows are called."""

from sparseopt.lab.config.controls import CorrectionName

DECAY = "+decay"
"""Behind the name of a correction: it scales the weight decay as well."""

READINGS: tuple[CorrectionName, ...] = ("layer", "global", "overall")
"""SparseOpt: the paper's average sparsity over neurons can be read as the layer's, the network's, or its share of zeros."""

BY_NORM: tuple[CorrectionName, ...] = ("measured", "angular")
"""Corrections of ours, by the norms of the weights."""

ORDER: tuple[CorrectionName, ...] = (*READINGS, *BY_NORM, "unnormalized", "layerwise", "shuffled", "none")
"""Rows of a block as the paper has them, SparseOpt first and the baseline last, ours and controls between."""

NAMES: dict[CorrectionName, str] = {
    "layer": "SparseOpt",
    "global": "SparseOpt (global)",
    "overall": "SparseOpt (overall)",
    "measured": "measured",
    "angular": "angular",
    "unnormalized": "D alone (unnormalized)",
    "layerwise": "control: layerwise",
    "shuffled": "control: shuffled",
    "none": "baseline",
}
