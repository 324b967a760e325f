# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The names of aule's attention in transformers, and what its keyword arguments mean in a run."""

from __future__ import annotations

from typing import Any

import torch

from . import errors

NAME = "aule"
BATCH_NAME = "aule_batch"  # of generate_batch; transformers makes no mask for it


def options_of(module: Any, query: Any, dropout: float, scaling: float | None,
               options: dict[str, Any]) -> dict[str, Any]:
    """Translate the keyword arguments of an attention function for `attend`."""
    if dropout:
        raise errors.UnsupportedError(f"dropout = {dropout}: aule serves inference; call "
                                      "model.eval()")
    if query.requires_grad and torch.is_grad_enabled():
        raise errors.UnsupportedError("aule computes no gradients: run the model under "
                                      "torch.no_grad()")
    if options.get("position_bias") is not None:
        raise errors.UnsupportedError("position_bias is given; aule knows ALiBi slopes only")
    causal = options.get("is_causal")
    window = options.get("sliding_window")
    types = getattr(getattr(module, "config", None), "layer_types", None)
    if window is None and types and types[module.layer_idx] == "sliding_attention":
        raise errors.UnsupportedError(f"layer {module.layer_idx} of {type(module).__name__} has a "
                                      "window, and the model does not pass sliding_window")
    return {"causal": getattr(module, "is_causal", True) if causal is None else causal,
            "scale": scaling, "soft_cap": options.get("softcap") or 0.0,
            "sinks": options.get("s_aux"), "window": None if window is None else window - 1}
