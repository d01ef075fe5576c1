"""Which parts of a traced network the kernels can run."""
