"""The story in three acts, on the embedded digits: the skew, training, and what you get."""
