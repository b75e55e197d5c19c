"""FC2's product over FP8 E4M3 operands: activation W^T times both scales, in float32."""

import torch


def run(
    activation: torch.Tensor,
    weight: torch.Tensor,
    activation_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    rows: int,
    fast_accumulation: bool,
) -> torch.Tensor:
    """activation [M, K], weight [N, K], a float32 scale each; C [M, N] in bfloat16, rounded once.

    The last M - rows rows are padding, computed like the others. `fast_accumulation` tells what
    the engine's kernel may do; the reference sums in float32 either way.
    """
    scale = activation_scale.float() * weight_scale.float()
    return (activation.float() @ weight.float().T * scale).to(torch.bfloat16)
