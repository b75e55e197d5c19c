"""Capture operator calls out of a running PyTorch program.

In a program's own code, `with kclab.capture.request("id"):` and `with kclab.capture.step():` say
what the calls inside belong to. Both are harmless where nothing captures.
"""

from kclab.capture.context import request, step

__all__ = ["request", "step"]
