"""C = A W^T with block-scaled FP8 operands (DeepSeek-V3 technical report, section 3.3.2)."""

import torch

E4M3_MAX = 448.0
BLOCK = 128


def run(
    A: torch.Tensor, W: torch.Tensor, W_scale: torch.Tensor, power_of_two_scales: bool
) -> torch.Tensor:
    """A [M, K], W [N, K] float8_e4m3fn, W_scale [N / 128, K / 128]; C [M, N] in A's dtype.

    A is quantised to float8_e4m3fn with one scale for 128 values along K: the largest magnitude
    divided by 448, rounded up to a power of two if so said. W has one scale for 128 x 128 values.
    Products of dequantised values are summed in float32.

    Values of bfloat16 are often a tie between two codes, and the last bit of what they are
    multiplied by decides it: the largest's reciprocal times 448 in float32, as DeepGEMM's
    per_token_cast_to_fp8 and kernels that divide in fast arithmetic have it.
    """
    wide = torch.promote_types(A.dtype, torch.float32)
    rows, columns = W.shape
    scale = W_scale.to(wide).repeat_interleave(BLOCK, 0)[:rows]
    scale = scale.repeat_interleave(BLOCK, 1)[:, :columns]
    return (quantised(A.to(wide), power_of_two_scales) @ (W.to(wide) * scale).T).to(A.dtype)


def quantised(values: torch.Tensor, power_of_two_scales: bool) -> torch.Tensor:
    """What the values are after quantisation, in their own dtype."""
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values.float(), (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    largest = padded.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10)
    scale, factor = largest / E4M3_MAX, largest.reciprocal() * E4M3_MAX
    if power_of_two_scales:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
        factor = 1 / scale
    codes = (padded * factor).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(values.dtype) * scale.to(values.dtype)).view(rows, -1)[:, :columns]
