"""C = A W^T (+ bias): a linear layer's product, accumulated wide and rounded once."""

import torch


def run(A: torch.Tensor, W: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A [M, K], W [N, K], bias [N] or None; C [M, N] in A's dtype."""
    wide = torch.promote_types(A.dtype, torch.float32)
    C = A.to(wide) @ W.to(wide).T
    if bias is not None:
        C = C + bias.to(wide)
    return C.to(A.dtype)
