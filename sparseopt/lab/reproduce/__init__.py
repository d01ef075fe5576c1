"""The paper's tables and figures: a named grid of runs, and its results beside the paper's, at the scale one can afford.

targets, scale, grid        what the paper varied, how much of it is run, and the runs that makes
outcomes                    the runs that are there, cell by cell and seed by seed
estimate, plan              the hours to go, measured from a few steps
paper                       the paper's own figures
convergence, claims,        what follows from the runs: how fast, what may be said, and that in words
verdict
tables, drawings, records   the same as tables, figures and numbers
layout, latex, write        how they look, and the files they go to
"""
