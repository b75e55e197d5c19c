"""kclab, the kernel capture lab."""

__version__ = "0.1.0"
