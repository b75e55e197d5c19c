"""MiniMax-H3 assembled from diffusers' parts, for work on its FC2 boundaries.

`kclab.h3.model.random_denoiser` makes one of any size with random weights,
`kclab.h3.checkpoint.load_denoiser` reads a pruned checkpoint; `kclab.h3.sampler.sample` denoises.
"""
