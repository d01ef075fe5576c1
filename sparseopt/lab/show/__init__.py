"""What a person sees of results: figures, curves, statistics, tables in a terminal."""
