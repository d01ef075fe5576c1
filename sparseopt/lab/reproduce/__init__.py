"""The paper's tables and figures: a named grid of runs, and its results beside the paper's, at the scale one can afford."""
