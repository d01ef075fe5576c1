"""What the operating system gives and takes: files, signals, ranks."""
