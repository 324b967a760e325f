# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Attention classes for the models of transformers that choose a class instead of a function.

Their modules have a table from the name of an attention to a class. Here aule enters its own: for
decoders a class that calls aule's attention function, for the others one that says that aule does
not serve them. The only module of the package that knows models by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from . import errors
from ._hf_mask import windowed

MODELS = "transformers.models"


def _falcon(module: Any, attend: Callable[..., Any]) -> type:
    class AuleFalconAttention(module.FalconAttention):  # type: ignore[misc]
        """Falcon's attention by aule. ALiBi: its bias is in the mask, which aule refuses."""

        def forward(self, hidden_states: Any, alibi: Any, attention_mask: Any,
                    position_ids: Any = None, layer_past: Any = None, use_cache: bool = False,
                    output_attentions: bool = False, position_embeddings: Any = None,
                    **options: Any) -> tuple[Any, None]:
            """Compute one layer."""
            if alibi is not None:
                raise errors.UnsupportedError("Falcon with alibi = True adds a bias to its scores; "
                                              "aule serves Falcon with rotary positions")
            q, k, v = (part.transpose(1, 2) for part in
                       self._split_heads(self.query_key_value(hidden_states)))
            group = k.shape[1] // self.num_kv_heads  # the new architecture repeats its heads
            k, v = k[:, ::group], v[:, ::group]
            q, k = module.apply_rotary_pos_emb(q, k, *position_embeddings)
            if layer_past is not None:
                k, v = layer_past.update(k, v, self.layer_idx)
            out, _ = attend(self, q, k, v, attention_mask, scaling=self.inv_norm_factor,
                            output_attentions=output_attentions, **options)
            return self.dense(out.flatten(2)), None

    return AuleFalconAttention


def _gptj(module: Any, attend: Callable[..., Any]) -> type:
    class AuleGPTJAttention(module.GPTJAttention):  # type: ignore[misc]
        """GPT-J's attention by aule."""

        def _attn(self, query: Any, key: Any, value: Any,
                  attention_mask: Any = None) -> tuple[Any, None]:
            out, _ = attend(self, query, key, value, attention_mask, scaling=1 / self.scale_attn)
            return out.transpose(1, 2), None

    return AuleGPTJAttention


def _gpt_neo(module: Any, attend: Callable[..., Any]) -> type:
    class AuleGPTNeoSelfAttention(module.GPTNeoSelfAttention):  # type: ignore[misc]
        """GPT-Neo's attention by aule. Local layers have a window, which the mask lacks."""

        def _attn(self, query: Any, key: Any, value: Any,
                  attention_mask: Any = None) -> tuple[Any, None]:
            if self.attention_type == "local":
                attention_mask = windowed(attention_mask, self.config.window_size)
            out, _ = attend(self, query, key, value, attention_mask, scaling=1.0)
            return out.transpose(1, 2), None

    return AuleGPTNeoSelfAttention


def _refused(module: Any, _attend: Callable[..., Any]) -> type:
    name = module.__name__.rsplit(".", 1)[1].removeprefix("modeling_")

    class Refused:
        """What the table has under aule's name."""

        def __init__(self, *_args: Any, **_options: Any) -> None:
            raise errors.UnsupportedError(
                f"{name}: its classes compute attention by themselves, and aule has none for "
                "them. Give this part of the model another attention, as in "
                "attn_implementation={'': 'aule', 'vision_config': 'eager'}")

    return Refused


# (module, table, what makes the class)
TABLES: tuple[tuple[str, str, Callable[..., type]], ...] = (
    ("falcon.modeling_falcon", "FALCON_ATTENTION_CLASSES", _falcon),
    ("gptj.modeling_gptj", "GPTJ_ATTENTION_CLASSES", _gptj),
    ("gpt_neo.modeling_gpt_neo", "GPT_NEO_ATTENTION_CLASSES", _gpt_neo),
    ("bark.modeling_bark", "BARK_ATTENTION_CLASSES", _refused),
    ("data2vec.modeling_data2vec_vision", "DATA2VEC_VISION_SELF_ATTENTION_CLASSES", _refused),
    ("deepseek_ocr2.modeling_deepseek_ocr2", "DEEPSEEK_OCR2_SAM_VISION_ATTENTION_CLASSES",
     _refused),
    ("git.modeling_git", "GIT_SELF_ATTENTION_CLASSES", _refused),
    ("sam.modeling_sam", "SAM_VISION_ATTENTION_CLASSES", _refused),
    ("sam_hq.modeling_sam_hq", "SAM_HQ_VISION_ATTENTION_CLASSES", _refused),
    ("superglue.modeling_superglue", "SUPERGLUE_SELF_ATTENTION_CLASSES", _refused),
    ("unlimited_ocr.modeling_unlimited_ocr", "UNLIMITED_OCR_SAM_VISION_ATTENTION_CLASSES",
     _refused),
)


def enter(name: str, attend: Callable[..., Any]) -> None:
    """Enter a class under this name in each table that this transformers has."""
    for path, table, make in TABLES:
        try:
            module = importlib.import_module(f"{MODELS}.{path}")
        except ImportError:
            continue
        classes = getattr(module, table, None)
        if classes is not None and name not in classes:
            classes[name] = make(module, attend)
