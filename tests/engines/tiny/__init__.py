"""Tiny models of the engines' own architectures, a family a file."""
