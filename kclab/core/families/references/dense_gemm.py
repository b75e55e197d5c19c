"""C = A W^T: a linear layer's product, accumulated wide and rounded once."""

import torch


def run(A: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """A [M, K], W [N, K]; C [M, N] in A's dtype."""
    wide = torch.promote_types(A.dtype, torch.float32)
    return (A.to(wide) @ W.to(wide).T).to(A.dtype)
