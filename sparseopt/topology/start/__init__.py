"""How a network becomes sparse: which of its weights (`kinds`, `find`), with which masks (`masks`, `first_masks`), kept how
(`packing`), and which of them BatchNorm follows (`normed`). `sparsify` is all of it; what it returns is a topology."""
