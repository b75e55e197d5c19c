"""C = A W^T + bias: a linear layer's product, accumulated wide and rounded once."""

import torch


def run(A: torch.Tensor, W: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A [M, K], W [N, K], bias [N]; C [M, N] in A's dtype."""
    wide = torch.promote_types(A.dtype, torch.float32)
    return (A.to(wide) @ W.to(wide).T + bias.to(wide)).to(A.dtype)
