"""The compiled library and what it reads: building, memory, layouts and lists."""
