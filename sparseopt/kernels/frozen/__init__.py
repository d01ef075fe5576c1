"""Networks that no longer learn: engines for inference, and small files."""
