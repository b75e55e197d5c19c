"""FC2's product over NVFP4 operands: activation W^T, dequantised to float32 first."""

import torch

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def run(
    activation: torch.Tensor,
    weight: torch.Tensor,
    activation_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    rows: int,
    alpha: torch.Tensor,
    activation_tensor_scale: torch.Tensor,
    weight_tensor_scale: torch.Tensor,
) -> torch.Tensor:
    """C [M, N] in bfloat16, computed in float32 and rounded once.

    activation [M, K / 2] and weight [N, K / 2] hold two E2M1 codes a byte, the even element in
    the high nibble; their UE4M3 scales, one for 16 values along K, come in the 128x4 layout.
    `alpha` is the product of both tensor scales, which therefore change nothing here. The last
    M - rows rows are padding, computed like the others.
    """
    left, right = decode(activation, activation_scale), decode(weight, weight_scale)
    return (left @ right.T * alpha.float()).to(torch.bfloat16)


def decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [rows, K] of packed codes [rows, K / 2] and their swizzled block scales."""
    table = torch.tensor(CODES, device=codes.device)
    values = table[torch.stack((codes >> 4, codes & 15), dim=-1).flatten(1).long()]
    tall, wide = scales.shape
    tiles = scales.view(torch.uint8).reshape(tall // 128, wide // 4, 32, 4, 4)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(tall, wide) & 0x7F
    blocks = plain.view(torch.float8_e4m3fn).float()[: values.shape[0], : values.shape[1] // 16]
    return values * blocks.repeat_interleave(16, dim=1)
