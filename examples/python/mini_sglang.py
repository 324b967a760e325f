# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Lesson L3 of mini_sglang, paged attention, on aule: block tables and slots by hand.

    python mini_sglang.py MODEL [--socket PATH] [--new-tokens 20]

Two requests share the steps: while the first decodes, the second's prompt comes in by chunks. The
names are the lesson's: cu_seqlens_q, seq_lens_kv, block_table and slot_mapping are the metadata of
a step, and each layer's K and V are [num_blocks, block_size, num_kv_heads, head_dim]. They lie in
the session's arena, where the kernel walks the block table; nothing is gathered. One process, no
sharing: for that see serve.py.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import aule
import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

BLOCK_SIZE = 16


class BlockAllocator:
    """The free blocks of the pool."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))

    def take(self) -> int:
        """Return a block."""
        if not self.free:
            raise MemoryError("the pool has no free block; give more --blocks")
        return self.free.pop(0)


@dataclass
class Req:
    """A request: its tokens, its blocks, and how many tokens have K and V."""

    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    cur_len: int = 0

    def reserve(self, allocator: BlockAllocator, count: int) -> None:
        """Have blocks for `count` tokens."""
        while len(self.blocks) * BLOCK_SIZE < count:
            self.blocks.append(allocator.take())

    def slots(self, begin: int, end: int) -> list[int]:
        """Return the flat slots of tokens: block * BLOCK_SIZE + offset."""
        return [self.blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE
                for i in range(begin, end)]


class Pool:
    """The K and V of each layer as block tensors in the arena, and the batches of a step."""

    def __init__(self, session: aule.Session, config: Any, num_blocks: int, dtype: Any) -> None:
        self.session = session
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (num_blocks, BLOCK_SIZE, config.num_key_value_heads, dim)
        self.layers = [(session.empty(shape, dtype), session.empty(shape, dtype))
                       for _ in range(config.num_hidden_layers)]
        self.meta: dict[str, Any] = {}

    def attn_paged(self, module: Any, query: Any, key: Any, value: Any, *_mask: Any,
                   scaling: float | None = None, **_options: Any) -> tuple[Any, None]:
        """Write K and V to their slots, and attend over the block tables: set_kv and attention."""
        keys, values = self.layers[module.layer_idx]
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        with self.session.batch(keys=keys, values=values, **self.meta) as batch:
            return batch.attend(0, q, k, v, scale=scaling)[None], None


def step(model: Any, pool: Pool, allocator: BlockAllocator,
         plan: list[tuple[Req, int]]) -> list[int]:
    """Compute the next n tokens of each request; returns the token that follows each."""
    ids, positions, slots, ends = [], [], [], [0]
    for req, count in plan:
        end = req.cur_len + count
        req.reserve(allocator, end)
        ids += req.tokens[req.cur_len:end]
        positions += range(req.cur_len, end)
        slots += req.slots(req.cur_len, end)
        ends.append(len(ids))
        req.cur_len = end
    table = np.zeros((len(plan), max(len(req.blocks) for req, _ in plan)), np.int32)
    for row, (req, _) in zip(table, plan, strict=True):
        row[:len(req.blocks)] = req.blocks
    pool.meta = {"cu_seqlens_q": ends, "seq_lens_kv": [req.cur_len for req, _ in plan],
                 "block_table": table, "slot_mapping": slots}
    last = torch.tensor(ends[1:]) - 1
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]),
                       use_cache=False, logits_to_keep=last).logits
    return [int(token) for token in logits[0].argmax(-1)]


def run(model: Any, pool: Pool, allocator: BlockAllocator, one: Req, two: Req, new_tokens: int,
        chunk: int) -> list[list[int]]:
    """Serve two requests; returns the new tokens of each."""
    wanted = [len(req.tokens) + new_tokens for req in (one, two)]
    begin = [len(one.tokens), len(two.tokens)]
    (token,) = step(model, pool, allocator, [(one, len(one.tokens))])
    one.tokens.append(token)
    while True:
        plan = [(req, min(chunk, len(req.tokens) - req.cur_len))
                for req, most in zip((one, two), wanted, strict=True) if len(req.tokens) < most]
        if not plan:
            return [req.tokens[at:] for req, at in zip((one, two), begin, strict=True)]
        tokens = step(model, pool, allocator, plan)
        for (req, _), token in zip(plan, tokens, strict=True):
            if req.cur_len == len(req.tokens):
                req.tokens.append(token)


def main() -> None:
    """Read the command line, and print the new tokens of two requests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="name or folder of a model with causal attention, no window")
    parser.add_argument("--socket", help="of the daemon; default: a private one is started")
    parser.add_argument("--new-tokens", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--prompt", action="append", type=lambda text: list(map(int, text.split())),
                        help="token ids; give it twice")
    arguments = parser.parse_args()
    prompts = arguments.prompt or [list(range(5, 40)), list(range(9, 60))]
    with aule.connect(arguments.socket, autostart=not arguments.socket) as session:
        model = AutoModelForCausalLM.from_pretrained(arguments.model)
        pool = Pool(session, model.config, arguments.blocks, model.dtype)
        AttentionInterface.register("mini_sglang", pool.attn_paged)
        AttentionMaskInterface.register("mini_sglang", lambda **_: None)  # aule is causal by itself
        model.set_attn_implementation("mini_sglang")
        for tokens in run(model, pool, BlockAllocator(arguments.blocks), *map(Req, prompts[:2]),
                          arguments.new_tokens, chunk=16):
            print(tokens)


if __name__ == "__main__":
    main()
