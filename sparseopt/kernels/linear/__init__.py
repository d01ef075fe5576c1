"""Linear layers in training: chains that run in one call each way."""
