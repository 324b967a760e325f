# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""A tiny model with random weights of each class that transformers generates text with.

Its configuration is the class's default one with a small number for each size: by the tables below,
which know names of attributes and the parts of some models. Nothing is loaded by name.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

MAPPINGS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
            "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES")

VOCAB, PROMPT, WINDOW, BLOCK, SIDE = 256, 40, 8, 8, 32
FIRST_SPECIAL = 200  # ids from here on are of images, sounds and the like; prompts have none

# Attributes whose whole name matches get at most this value. The first match counts.
SIZES: tuple[tuple[str, int], ...] = (
    (r".*vocab(_size\w*|_base)?|num_embeddings", VOCAB),
    (r".*(max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length|context_length)"
     r"|max_\w+_positions|max_\w+_position_embeddings|seq_len", 512),
    (r"(num_hidden|num|n|encoder|decoder|num_encoder|num_decoder|speech_encoder|t2u_encoder"
     r"|t2u_decoder|conf_num_hidden|num_global|num_sparse_\w+|num_adapter|aligner_num_add"
     r"|resampler)?_?(layers?|depth|blocks)|num_layers_per_stack", 2),
    (r".*(key_value_heads|kv_heads|kv_n_heads|query_groups)", 2),
    (r".*(attention|index_n|mamba_num|linear_num_\w+|linear_num|mamba_n|n_mamba|num|n|resampler)_?"
     r"heads?|attention_heads", 4),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r"head_dim|\w*_head_dim|d_kv|d_head|dim_head|attention_head_size|kv_channels|mamba_d_head"
     r"|mamba_headdim|resampler_dim_head|linear_head_dim", 16),
    (r"(sliding_window|attention_window|local_attention|window_size|attention_chunk_size"
     r"|sliding_window_size|attention_window_size|local_attention_window_len|keep_window_size"
     r"|floor_scale|local_radius)", WINDOW),
    (r".*(num|n)_?(routed|local)?_?experts(?!_per)|.*expert_num", 4),
    (r".*(experts_per_tok(en)?|moe_k|moe_top_?k|top_k_experts)", 2),
    (r"index_topk", 4),
    (r"(n|num_expert)_groups?|topk_group", 1),
    (r".*(lora_rank|lowrank|_rank)", 16),
    (r".*(state_size|d_state|attn_chunk_length)|(mamba_)?chunk_size", 16),
    (r"base_channels", 32), (r"depths", 1), (r"num_groups", 4),
    (r"image_size|crop_size|max_image_size", 32),
    (r"patch_size", 8),
    (r".*(hidden_size\w*|d_model|n_embd|embd?_dim|embedding_dim|hidden_dim|embedding_size"
     r"|projection_dim|output_dim|hidden_sizes|proj_dim|lru_width|inner_dim|input_dim|in_dim"
     r"|out_dim|ffn_dim|ffn_hidden_size|intermediate_size\w*|d_ff|d_inner|dff|dim_ff|ff_dim|mlp_dim"
     r"|output_size|input_size|proj_size|feed_forward_size|channels?|filters|expert_dim)", 64),
    (r"latent_query_num|num_query_tokens|mm_tokens_per_image|resampler_n_latents", 4),
    (r".*(_dim|_size|_width)", 64),
)
SPECIAL = re.compile(r".*(token_id|token_index|index|_id)$")
KEEP = re.compile(r"(pad|bos|eos|decoder_start|forced_\w+|unk|mask|lang|cls|sep)_(token_)?"
                  r"(id|index)|.*layer_id|altup_active_idx")
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "depth")
# For every configuration that has the attribute.
ALWAYS = {"tie_word_embeddings": False, "mrope_section": [2, 3, 3], "use_sliding_window": True,
          "sliding_window": WINDOW, "image_grid_pinpoints": [[SIDE, SIDE]],
          "fullatt_block_indexes": [1]}
# Parts that a default configuration leaves out, by the model_type of the whole.
PARTS = {"gemma4": {"vision_config": "gemma4_vision"},
         "gemma4_unified": {"vision_config": "gemma4_unified_vision"}}
# By model_type, for a configuration or a part of one. They replace, or add to, the small sizes.
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MROPE = {"rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]}}
MROPE4 = {"rope_parameters": {**ROPE, "mrope_section": [2, 2, 2, 2]}}
HALF = {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}}
VOCABULARY = {"<image>": VOCAB - 1, "IMGIMGA": VOCAB - 2}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
HEAD_DIM = {"head_dim": 16}
INDEXED = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
           "indexer_budget": 16, "indexer_compress_ratio": 4}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
WINDOWED_VISION = {"window_size": SIDE}
SHARED_LAYERS = {"num_hidden_layers": 4, "num_kv_shared_layers": 2,
                 "layer_types": ["sliding_attention", "full_attention"] * 2}
WIDE = {"per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}}}
MORE: dict[str, dict[str, Any]] = {
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128},
    "granitemoehybrid": {**MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "qwen2": MIXED, "qwen2_moe": MIXED, "qwen3": MIXED, "smollm3": MIXED,
    "gemma2": {"attn_logit_softcapping": 1.5},
    # Their caches have a window if the configuration has one; their masks have none.
    "moshi": {"sliding_window": 512}, "qwen3_vl_moe_text": {"sliding_window": None},
    "qwen2_5_vl_vision": WINDOWED_VISION, "qwen2_5_omni_vision_encoder": WINDOWED_VISION,
    "exaone4_5_vision": WINDOWED_VISION, "hyperclovax_vision_v2_vision": WINDOWED_VISION,
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "llama4_vision_model": {"intermediate_size": 256, "vision_output_dim": 64},
    "blt": {"use_cache": False},
    "chameleon": {"vocabulary_map": VOCABULARY}, "emu3": {"vocabulary_map": VOCABULARY},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "topk_method": "greedy"},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "blip-2": {"image_token_index": VOCAB - 1},
    "instructblip": {"image_token_index": VOCAB - 1},
    "instructblipvideo": {"video_token_index": VOCAB - 1},
    "vibevoice_asr": {"acoustic_tokenizer_chunk_size": 3200},
    "dots3_note_text": {"head_dim": 24, "rope_parameters": {kind: {
        **ROPE, "partial_rotary_factor": 1 / 3} for kind in (
            "sliding_attention", "indexed_attention")}},
    "unlimited_ocr_text": {"num_key_value_heads": 4},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "glm5_next_text": {"num_key_value_heads": 4, "index_kpool": 2},
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1],
                        "downsample_rate": "1/2"},
    "hunyuan_vl_text": {**HEAD_DIM, **MROPE4},
    "mistral4": {"rope_parameters": {**ROPE, "llama_4_scaling_beta": 0.1,
                                     "original_max_position_embeddings": 8}},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"]},
    "xlstm": {"chunk_size": 8, "qk_dim_factor": 1.0},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
                            "layer_types": ["sliding_attention", "full_attention"]},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
              "layer_types": ["sliding_attention", "full_attention"], "first_k_dense_replace": 1},
    "gemma3n_text": {**SHARED_LAYERS, "intermediate_size": [64] * 4,
                     "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]},
    "gemma4_text": {**SHARED_LAYERS, **WIDE}, "gemma4_unified_text": {**SHARED_LAYERS, **WIDE},
    "hrm_text": {"num_hidden_layers": 16, "num_layers_per_stack": 2},
    "hunyuan_v1_dense": HEAD_DIM, "hunyuan_v1_moe": HEAD_DIM, "ministral": HEAD_DIM,
    "nemotron": {"num_key_value_heads": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8},
    "musicgen_decoder": {"num_codebooks": 1}, "musicgen_melody_decoder": {"num_codebooks": 1},
    "qwen4_exp_text": INDEXED,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "attention_hidden_size": 128, "attention_head_dim": 32,
              "layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_dt_rank": 4},
    "zamba2": {"num_hidden_layers": 4, "attention_hidden_size": 128, "attention_head_dim": 32,
               "layers_block_type": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3],
               "n_mamba_heads": 8},
    "step3p5": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "qwen2_vl_text": MROPE, "qwen2_5_vl_text": MROPE, "paddleocr_vl_text": MROPE,
    "qwen2_5_omni_text": MROPE, "glm4v_text": MROPE, "glm_ocr_text": HALF,
    "glm4v_moe_text": HALF, "ernie4_5_vl_moe_text": {"rope_parameters": {
        **ROPE, "mrope_section": [3, 3, 2]}},
}


def shrink(given: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a configuration with small sizes."""
    given = {**given, **{name: CONFIG_MAPPING[kind]().to_dict() for name, kind in
                         PARTS.get(given.get("model_type", ""), {}).items()}}
    layers = next((given[name] for name in LAYERS if isinstance(given.get(name), int)), 0)
    picked = picked_layers(given, layers)
    made = {name: shrunk(name, value, layers, picked) for name, value in given.items()}
    special = [name for name, value in given.items()
               if isinstance(name, str) and is_number(value) and value >= 8
               and SPECIAL.fullmatch(name) and not KEEP.fullmatch(name)]
    made.update({name: VOCAB - 1 - i for i, name in enumerate(special)})
    if made.get("qk_rope_head_dim") and "qk_nope_head_dim" in made:
        fit_mla(made)
    more = MORE.get(made.get("model_type", ""), {})
    if "num_hidden_layers" in more:  # the picked layers are not those of this table
        made = {name: value for name, value in made.items() if name != "per_layer_config"
                and not (isinstance(value, list) and len(value) == len(picked))}
    return {**made, **more}


def shrunk(name: Any, value: Any, layers: int, picked: list[int]) -> Any:
    """Return the small value of one attribute."""
    if name in ALWAYS:
        return ALWAYS[name]
    if name == "per_layer_config":
        kept = {int(key): shrink(part) for key, part in value.items()}
        return {new: kept[old] for new, old in enumerate(picked) if old in kept}
    if isinstance(value, dict):
        return shrink(value)
    if isinstance(value, (list, tuple)):
        short = [value[i] for i in picked] if len(value) == layers > 0 else value
        return [smaller(name, part) for part in short]
    return len(picked) if name in LAYERS and layers else smaller(name, value)


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def fit_mla(made: dict[str, Any]) -> None:
    """Make the sizes of latent attention agree."""
    rope, heads = made["qk_rope_head_dim"], made["num_attention_heads"]
    agree = {"head_dim": rope, "qk_head_dim": rope + made["qk_nope_head_dim"],
             "num_key_value_heads": heads}
    made.update({name: value for name, value in agree.items() if name in made})
    for part in made.get("per_layer_config", {}).values():
        part["num_key_value_heads"] = part.get("num_attention_heads", heads)


def smaller(name: Any, value: Any) -> Any:
    if not is_number(value) or not isinstance(name, str):
        return value
    if KEEP.fullmatch(name):
        return value if value < 8 else {"pad": 0, "bos": 1}.get(name[:3], 2)
    return min([value, *(size for pattern, size in SIZES if re.fullmatch(pattern, name))][:2])


def picked_layers(given: dict[str, Any], layers: int) -> list[int]:
    """Return two to four layers so that each kind of layer is there."""
    each = [value for value in given.values()
            if isinstance(value, (list, tuple)) and len(value) == layers > 0]
    kinds = [json.dumps([value[i] for value in each], default=str) for i in range(layers)]
    first = [i for i in range(layers) if kinds[i] not in kinds[:i]][:4]
    return sorted([*first, *[i for i in range(layers) if i not in first][:max(0, 2 - len(first))]])


def classes() -> dict[str, str]:
    """Return the names of the classes, and the first mapping that has each."""
    found: dict[str, str] = {}
    for mapping in MAPPINGS:
        for name in getattr(modeling_auto, mapping).values():
            found.setdefault(name, mapping)
    return found


def said(error: BaseException) -> str:
    """Return an exception's type and first words, and where it was raised."""
    at = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({os.path.basename(at[0].filename)}:{at[0].lineno})" if at else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}{where}"


class NotBuilt(Exception):
    """The class cannot be tried, and why."""


def tiny_config(cls: Any) -> Any:
    """Return the class's default configuration with small sizes."""
    made = shrink(cls.config_class().to_dict())
    if classes()[cls.__name__] == MAPPINGS[0] and "is_decoder" in made:
        made["is_decoder"] = True
    return cls.config_class.from_dict(made)


STD = 0.2  # of weights
MOST_PARAMETERS = 16_000_000


def weigh(model: Any) -> None:
    """Give each parameter numbers so large that attention matters."""
    generator = torch.Generator().manual_seed(11)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.ndim >= 2 and not name.endswith("A_log"):
            parameter.normal_(std=STD, generator=generator)
        elif name.endswith("sinks"):
            parameter.normal_(std=2.0, generator=generator)
        elif name.endswith(".bias"):
            parameter.normal_(std=0.1, generator=generator)


def build(cls: Any, config: Any, attention: str, weights: Any = None) -> Any:
    """Return a model; with the weights of another one, if they are given."""
    torch.manual_seed(5)
    model = cls._from_config(copy.deepcopy(config), attn_implementation=attention).eval()
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=0, bos_token_id=1, eos_token_id=-1, decoder_start_token_id=1)
    if weights is None:
        weigh(model)
    else:
        model.load_state_dict(weights)
    return model


def eager_model(cls: Any) -> tuple[Any, Any]:
    """Return a tiny configuration, and a model with transformers' own attention."""
    try:
        config = tiny_config(cls)
        with torch.device("meta"):
            meta = cls._from_config(copy.deepcopy(config), attn_implementation="eager")
        count = sum(parameter.numel() for parameter in meta.parameters())
        if count > MOST_PARAMETERS:
            raise NotBuilt(f"the tiny model has {count} parameters")
        return config, build(cls, config, "eager")
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(said(error)) from error


# ---- inputs ----


def drawn(*shape: int, seed: int = 7) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pixels(rows: int) -> dict[str, Any]:
    return {"pixel_values": drawn(1, 3, SIDE, SIDE).expand(rows, -1, -1, -1)}


# What a class needs besides token ids, for a number of rows.
EXTRA: dict[str, Callable[[int], dict[str, Any]]] = {
    "BlipForConditionalGeneration": pixels,
    "Blip2ForConditionalGeneration": pixels,
    "InstructBlipForConditionalGeneration": lambda rows: {
        **pixels(rows), "qformer_input_ids": torch.full((rows, 4), 20)},
    "InstructBlipVideoForConditionalGeneration": lambda rows: {
        "pixel_values": drawn(1, 4, 3, SIDE, SIDE).expand(rows, -1, -1, -1, -1),
        "qformer_input_ids": torch.full((rows, 4), 20)},
    "Kosmos2ForConditionalGeneration": lambda rows: {
        **pixels(rows), "image_embeds_position_mask": (
            (torch.arange(PROMPT) > 0) & (torch.arange(PROMPT) <= 4))[None].expand(rows, -1)},
    "IdeficsForVisionText2Text": lambda rows: {
        "pixel_values": drawn(1, 1, 3, SIDE, SIDE).expand(rows, -1, -1, -1, -1),
        "image_attention_mask": torch.ones(rows, PROMPT, 1)},
    "UdopForConditionalGeneration": lambda rows: {
        "bbox": torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(rows, PROMPT, 4)},
    "VisionEncoderDecoderModel": pixels,
    "PPFormulaNetForConditionalGeneration": pixels,
    "Pix2StructForConditionalGeneration": lambda rows: {
        "flattened_patches": torch.cat([torch.arange(1, 9)[:, None].float().expand(8, 2),
                                        drawn(8, 64)], 1).expand(rows, -1, -1)},
}


# How many ids from the second on stand for the image of EXTRA.
QUERIES = {"Blip2ForConditionalGeneration": 4, "InstructBlipForConditionalGeneration": 4,
           "InstructBlipVideoForConditionalGeneration": 16}
WITHOUT_IDS = ("PPFormulaNetForConditionalGeneration",)  # though its forward names input_ids


def image_inputs(model: Any, config: Any, seed: int) -> tuple[dict[str, Any], int]:
    """Return the arguments of an image, and for how many token ids it stands."""
    owner = next((part for part in (model, getattr(model, "model", None))
                  if hasattr(part, "get_image_features")), None)
    token = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
    if owner is None or token is None:
        raise NotBuilt("the class has no image tokens")
    known = {name for part in (owner, getattr(owner, "model", None))
             if hasattr(part, "get_image_features")
             for name in inspect.signature(part.get_image_features).parameters}
    failed = NotBuilt("no image")
    for given in image_kinds(config, seed):
        options = {name: value for name, value in given.items() if name in known}
        try:
            count = rows_of(owner.get_image_features(**options), config)
        except Exception as error:
            failed = NotBuilt(f"no image: {said(error)}")
            continue
        if 0 < count <= 160:
            return options, count
    raise failed


def image_kinds(config: Any, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what an image can look like: a square, patches in a row, tiles."""
    vision = getattr(config, "vision_config", None) or config
    side = getattr(vision, "image_size", SIDE)
    side = side if isinstance(side, int) else SIDE
    patch = getattr(vision, "patch_size", 8)
    patch = patch if isinstance(patch, int) else 8
    values = 3 * patch * patch
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1)
    common = {"image_grid_thw": torch.tensor([[1, 4, 4]]), "spatial_shapes": torch.tensor([[4, 4]]),
              "target_sizes": torch.tensor([[4, 4]]), "image_sizes": torch.tensor([[side, side]]),
              "image_position_ids": places.reshape(1, 16, 2),
              "image_merge_sizes": torch.tensor([2])}
    times = getattr(vision, "temporal_patch_size", 1)
    for shape, mask in (((1, 3, side, side), (1, side, side)), ((16, values * times), (1, 16)),
                        ((16, values), (1, 16)), ((1, 16, values), (1, 16)),
                        ((1, 1, 3, side, side), (1, 1, side, side)),
                        ((1, 2, 3, side, side), (1, 2, side, side)),
                        ((1, 5, 3, side, side), (1, 5, side, side)),
                        ((16, 3, patch, patch), (1, 16)), ((1, 3, patch, 16 * patch), (1, 16))):
        yield {**common, "pixel_values": drawn(*shape, seed=seed),
               "pixel_attention_mask": torch.ones(mask, dtype=torch.bool),
               "pixel_mask": torch.ones(mask, dtype=torch.bool)}


def rows_of(features: Any, config: Any) -> int:
    if hasattr(features, "keys"):
        pooled = getattr(features, "pooler_output", None)
        features = features.last_hidden_state if pooled is None else pooled
    parts = [features] if isinstance(features, torch.Tensor) else list(features)
    hidden = config.get_text_config().hidden_size
    return sum(part.numel() for part in parts) // hidden
