"""A gate for each head on an attention's output, as LTX-2.5 has it: twice the sigmoid."""

import torch


def run(x: torch.Tensor, gate_logits: torch.Tensor) -> torch.Tensor:
    """x [B, S, H, D], gate_logits [B, S, H]; x times 2 sigmoid(gate_logits), in x's dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * (2.0 * torch.sigmoid(gate_logits.to(wide)))[..., None]).to(x.dtype)
