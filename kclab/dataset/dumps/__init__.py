"""Dumps that people already have: SGLang's two kinds and FlashInfer's, read as captured calls.

A dump becomes a capture root in a temporary folder, which is then imported like any other. Nobody
has judged its calls: they are stored as not validated, for `kclab replay` to judge.
"""
