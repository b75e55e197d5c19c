"""FC2's product over quantised operands: activation W^T, dequantised to float32 first."""

import torch

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def run(
    activation: torch.Tensor,
    weight: torch.Tensor,
    activation_scale: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
    rows: int | None = None,
    alpha: torch.Tensor | bool | None = None,
    *tensor_scales: torch.Tensor,
) -> torch.Tensor:
    """C [M, N] in bfloat16, computed in float32 and rounded once.

    bf16: activation [M, K], weight [N, K]. FP8 E4M3: besides, one float32 scale an operand; the
    accumulation mode comes sixth and changes nothing here. NVFP4: two E2M1 codes a byte, even
    element in the high nibble; UE4M3 scales for 16 values along K in the 128x4 layout; alpha is
    the product of both tensor scales.
    """
    if activation_scale is None or weight_scale is None:
        return (activation.float() @ weight.float().T).to(torch.bfloat16)
    if isinstance(alpha, torch.Tensor):
        left, right = decode(activation, activation_scale), decode(weight, weight_scale)
        return (left @ right.T * alpha.float()).to(torch.bfloat16)
    scale = activation_scale.float() * weight_scale.float()
    return (activation.float() @ weight.float().T * scale).to(torch.bfloat16)


def decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [rows, K] of packed codes [rows, K / 2] and their swizzled block scales."""
    table = torch.tensor(CODES, device=codes.device)
    values = table[torch.stack((codes >> 4, codes & 15), dim=-1).flatten(1).long()]
    tall, wide = scales.shape
    tiles = scales.view(torch.uint8).reshape(tall // 128, wide // 4, 32, 4, 4)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(tall, wide) & 0x7F
    blocks = plain.view(torch.float8_e4m3fn).float()[: values.shape[0], : values.shape[1] // 16]
    return values * blocks.repeat_interleave(16, dim=1)
