"""Reproductions of papers and benchmarks; not part of the installed package."""
