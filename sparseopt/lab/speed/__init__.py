"""How much faster this machine runs a sparse network: measured, not promised."""
