"""The families' reference sources: read as text, written into definitions, run only by replay.

Each file stands alone (torch is its only import) and follows these rules:

- `run` takes exactly the inputs of the definitions that carry it, in their order, none optional:
  flashinfer-bench counts them.
- Sizes come from the inputs, so one source serves every size of the family.
- It computes in `torch.promote_types(x.dtype, torch.float32)` and names no floating dtype
  otherwise; each floating output has the dtype of the input that the docstring of `run` names.
  So the same source fed with float64 inputs is the float64 oracle.
- It runs on the device that its inputs are on, with working memory bounded by blocks.
"""
