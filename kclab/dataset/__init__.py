"""Datasets: reading foreign roots, importing them by content, exporting for other tools."""

from kclab.dataset.cases import Case, FileTensor, RandomInput, Refusal, Root, RootKind, ScalarInput
from kclab.dataset.roots import read_root

__all__ = [
    "Case",
    "FileTensor",
    "RandomInput",
    "Refusal",
    "Root",
    "RootKind",
    "ScalarInput",
    "read_root",
]
