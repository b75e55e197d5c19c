"""FC2's product over bfloat16 operands: activation W^T, accumulated in float32."""

import torch


def run(activation: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """activation [M, K], weight [N, K]; C [M, N] in bfloat16, rounded once."""
    return (activation.float() @ weight.float().T).to(torch.bfloat16)
