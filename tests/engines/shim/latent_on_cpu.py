"""DeepSeek's latent attention with torch's own attention, which SGLang pairs on no device.

Its default for a back-end that it does not know is the normal form with keys that torch's back-end
would look for in the pool of compressed ones; the absorbed form fits.
"""

from __future__ import annotations


def register() -> None:
    """Called by SGLang in each of its processes, as a plugin."""
    from sglang.srt.models.deepseek_common import attention_backend_handler as handler

    def absorbed(attention: object, forward_batch: object) -> object:
        return handler.AttnForwardMethod.MLA

    handler.AttentionBackendRegistry.register("torch_native", absorbed)
