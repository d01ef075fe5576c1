"""The commands of the `sparseopt` program, one module each: `main(argv) -> exit code`."""
