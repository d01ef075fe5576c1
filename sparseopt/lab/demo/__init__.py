"""The story in four acts: speed on this machine; then, on the embedded digits, the skew, training, and what you get."""
