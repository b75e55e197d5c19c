"""Whether an exception says that memory ran out, on the host or on a GPU."""

from __future__ import annotations

TORCHS_WORDS = ("can't allocate memory", "not enough memory")
"""In the RuntimeError that torch's CPU allocator raises."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it does; torch's own classes are told by name, so that nothing is imported for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in TORCHS_WORDS)
