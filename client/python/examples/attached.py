# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Decoding over an attached pool by own kernels, in processes that share a system prompt.

    python attached.py [--processes 2] [--layers 8] [--system 512] [--new 64] [--socket PATH]
        [--kernel flashinfer]

Each process maps the daemon's KV cache into its own CUDA and computes a small model with random
weights by its own kernels. The daemon computes nothing: it keeps which block is whose, and which
prefixes are there. The process that comes first computes the system prompt; the others wait for it
and read its blocks in place. At the end each process says tokens/s and hits: the tokens of its
prompt that it did not compute.
Steps of one token a sequence use FlashInfer if it is installed; --kernel triton and --kernel
flashinfer choose. Prompts always use the Triton kernel below.
It needs torch for CUDA with Triton.
Without --socket a private daemon is started. A daemon of your own needs --export-pool.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import aule
import torch
import triton
import triton.language as tl

HEADS, KV_HEADS, DIM, VOCAB = 16, 4, 128, 4096
TILE = 64  # keys that a program of the kernel reads at a time


@triton.jit
def _attend(q, layer, table, lengths, out, lse, scale, block_stride, v_offset, columns,
            heads: tl.constexpr, group: tl.constexpr, rows: tl.constexpr, size: tl.constexpr,
            dim: tl.constexpr, tile: tl.constexpr, splits: tl.constexpr):
    """Attend for one row, one KV head and one part of its keys: out [splits, rows, heads, dim]."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    part = tl.cdiv(tl.cdiv(length, tile), splits) * tile
    begin = split * part
    end = tl.minimum(begin + part, length)
    own = tl.arange(0, rows)  # heads of this KV head, padded
    dims = tl.arange(0, dim)
    at = (row * heads + kv_head * group + own)[:, None] * dim + dims[None, :]
    query = tl.load(q + at, mask=own[:, None] < group, other=0.0)
    best = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    sums = tl.zeros([rows, dim], tl.float32)
    for first in range(begin, end, tile):
        keys = first + tl.arange(0, tile)
        seen = keys < end
        block = tl.load(table + row * columns + keys // size, mask=seen, other=0).to(tl.int64)
        lies = block * block_stride + kv_head * size * dim + (keys % size) * dim
        key = tl.load(layer + lies[None, :] + dims[:, None], mask=seen[None, :], other=0.0)
        score = tl.where(seen[None, :], tl.dot(query, key) * scale, float("-inf"))
        now = tl.maximum(best, tl.max(score, 1))
        weights = tl.exp(score - now[:, None])
        fade = tl.exp(best - now)
        total = total * fade + tl.sum(weights, 1)
        value = tl.load(layer + v_offset + lies[:, None] + dims[None, :], mask=seen[:, None],
                        other=0.0)
        sums = sums * fade[:, None] + tl.dot(weights.to(value.dtype), value)
        best = now
    some = total > 0.0
    sums = tl.where(some[:, None], sums / tl.where(some, total, 1.0)[:, None], 0.0)
    put = split * tl.num_programs(0) * heads
    tl.store(out + put * dim + at, sums.to(out.dtype.element_ty), mask=own[:, None] < group)
    tl.store(lse + put + row * heads + kv_head * group + own,
             tl.where(some, best + tl.log(tl.where(some, total, 1.0)), float("-inf")),
             mask=own < group)


def attend(q: Any, layer: Any, table: Any, lengths: Any, splits: int = 1) -> Any:
    """Attend for rows q [rows, heads, dim] over a layer of `cache.layers`.

    table [rows, columns]: blocks of each row's keys; lengths [rows]: how many keys it sees.
    """
    count, heads, dim = q.shape
    kv_heads, size = layer.shape[2], layer.shape[3]
    group = heads // kv_heads
    out = torch.empty((splits, *q.shape), device=q.device,
                      dtype=q.dtype if splits == 1 else torch.float32)
    lse = torch.empty((splits, count, heads), device=q.device, dtype=torch.float32)
    _attend[count, kv_heads, splits](
        q, layer, table, lengths, out, lse, dim**-0.5, layer.stride(0), layer.stride(1),
        table.stride(0), heads, group, max(16, triton.next_power_of_2(group)), size, dim, TILE,
        splits, num_warps=4, num_stages=3)
    if splits == 1:
        return out[0]
    return (out * lse.softmax(0)[..., None]).sum(0).to(q.dtype)


def write(layer: Any, slots: Any, k: Any, v: Any) -> None:
    """Put k and v [tokens, kv_heads, dim] into their slots, none of which is negative."""
    size = layer.shape[3]
    block, offset = slots // size, slots % size
    layer[block, 0, :, offset] = k
    layer[block, 1, :, offset] = v


Attention = Callable[[Any, Any], Any]  # of q and a layer of the pool


def triton_attention(tables: Any, row_of: Any, lengths: Any) -> Attention:
    """Attend for rows of any sequences: row i belongs to row_of[i] and sees lengths[i] keys."""
    table = tables.block_table[row_of]
    splits = 8 if len(row_of) < 64 else 1
    return lambda q, layer: attend(q, layer, table, lengths, splits)


class FlashInfer:
    """Decodes one row of each sequence with FlashInfer; its wrapper plans once a step."""

    def __init__(self, heads: int, kv_heads: int, dim: int) -> None:
        import flashinfer

        self.shape = heads, kv_heads, dim
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), kv_layout="HND")

    def attention(self, arrays: Any, block_size: int, dtype: Any) -> Attention:
        """Plan a step. `arrays` are those of a plan: on the host, where FlashInfer reads them."""
        indptr, indices, last = (torch.from_numpy(array) for array in (
            arrays.indptr, arrays.indices, arrays.last_page_len))
        self.wrapper.plan(indptr, indices.cuda(), last, *self.shape, block_size,
                          q_data_type=dtype, kv_data_type=dtype)
        run: Attention = self.wrapper.run
        return run


def flashinfer_is_there() -> bool:
    """Say whether FlashInfer is installed."""
    return importlib.util.find_spec("flashinfer") is not None


class Model:
    """A small decoder with random weights, the same in each process."""

    def __init__(self, num_layers: int, kernel: str) -> None:
        self.flashinfer = FlashInfer(HEADS, KV_HEADS, DIM) if kernel == "flashinfer" else None
        make = torch.Generator(device="cuda").manual_seed(7)
        width = HEADS * DIM

        def weights(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", generator=make,
                               dtype=torch.float16) * shape[-1] ** -0.5

        self.embedding = weights(VOCAB, width) * width**0.5
        self.qkv = [weights(width + 2 * KV_HEADS * DIM, width) for _ in range(num_layers)]
        self.out = [weights(width, width) for _ in range(num_layers)]

    def __call__(self, cache: aule.Cache, plan: Any, tokens: Any) -> list[int]:
        """Compute a plan's rows; returns the token that follows each sequence."""
        tables = plan.tables()
        counts = tables.cu_seqlens_q.diff()
        row_of = torch.repeat_interleave(torch.arange(len(counts), device="cuda"), counts)
        behind = tables.cu_seqlens_q[1:][row_of] - torch.arange(len(tokens), device="cuda")
        lengths = (tables.cache_seqlens[row_of] - behind + 1).int()  # a row sees itself
        if self.flashinfer and len(tokens) == len(counts):
            own = self.flashinfer.attention(plan.arrays, cache.block_size, self.embedding.dtype)
        else:
            own = triton_attention(tables, row_of, lengths)
        fresh = tables.slot_mapping >= 0
        slots = tables.slot_mapping[fresh]
        x = self.embedding[tokens]
        for layer, qkv, out in zip(cache.layers, self.qkv, self.out, strict=True):
            normal = torch.nn.functional.rms_norm(x, x.shape[-1:])
            q, k, v = (normal @ qkv.T).view(len(tokens), -1, DIM).split(
                [HEADS, KV_HEADS, KV_HEADS], 1)
            write(layer, slots, k[fresh], v[fresh])
            x = x + own(q.contiguous(), layer).flatten(1) @ out.T
        plan.wrote()
        last = torch.nn.functional.rms_norm(x[tables.cu_seqlens_q[1:].long() - 1], x.shape[-1:])
        return (last @ self.embedding.T).argmax(-1).tolist()


def worker(options: argparse.Namespace) -> dict[str, Any]:
    """Serve some requests that begin with the system prompt; returns what it measured."""
    system = [(11 * i + 3) % VOCAB for i in range(options.system)]
    prompts = [system + [(7 * i + 13 * options.index + n) % VOCAB for i in range(20)]
               for n in range(options.requests)]
    with aule.connect(options.socket, arena_size=1 << 20) as session:
        cache = session.cache("attached example", num_layers=options.layers,
                              num_kv_heads=KV_HEADS, head_dim=DIM)
        model = Model(options.layers, options.kernel)
        # The first request computes the system prompt, unless another process does or did.
        texts, hits, new = [], 0, []
        started = time.perf_counter()
        for prompt in prompts:
            text = cache.sequence(prompt, claim=True)
            hits += text.cached
            plan = cache.plan([text])
            tokens = torch.tensor(prompt[text.cached:], device="cuda")
            token = model(cache, plan, tokens[len(tokens) - plan.num_tokens:])[0]
            text.publish()  # others that wait for the system prompt find it now
            texts.append(text)
            new.append([token])
        prompted = time.perf_counter()
        for _ in range(options.new - 1):
            for text, said in zip(texts, new, strict=True):
                text.append(said[-1])
            plan = cache.plan(texts)
            tokens = torch.tensor([said[-1] for said in new], device="cuda")
            for said, token in zip(new, model(cache, plan, tokens), strict=True):
                said.append(token)
        took = time.perf_counter() - prompted
        for text in texts:
            text.close()
        cache.attach().report()  # the blocks of these texts are free from now on
        return {"index": options.index, "hits": hits, "prompt_tokens": sum(map(len, prompts)),
                "prompt_s": prompted - started,
                "tokens_per_s": len(texts) * (options.new - 1) / took, "tokens": new}


def main() -> int:
    """Start the processes, and say what each has measured."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--system", type=int, default=512, help="tokens of the system prompt")
    parser.add_argument("--requests", type=int, default=4, help="of each process")
    parser.add_argument("--new", type=int, default=64, help="tokens that each request decodes")
    parser.add_argument("--socket", help="of a daemon that runs with --export-pool")
    parser.add_argument("--kernel", choices=("triton", "flashinfer"),
                        default="flashinfer" if flashinfer_is_there() else "triton")
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.index is not None:
        print("RESULT " + json.dumps(worker(options)), flush=True)
        return 0
    session = None
    if not options.socket:
        session = aule.connect(autostart=True, arena_size=1 << 20, daemon_options=[
            "--cache-folder", "none", "--export-pool", "1024"])
        options.socket = session.socket
    processes = [subprocess.Popen(
        [sys.executable, __file__, "--index", str(i), "--socket", str(options.socket),
         *(f"--{name}={getattr(options, name)}"
           for name in ("layers", "system", "requests", "new", "kernel"))],
        stdout=subprocess.PIPE, text=True) for i in range(options.processes)]
    failed = 0
    for i, process in enumerate(processes):
        lines = process.communicate()[0].splitlines()
        failed += process.returncode != 0
        for line in lines:
            if line.startswith("RESULT "):
                said = json.loads(line.removeprefix("RESULT "))
                print(f"process {i}: {said['tokens_per_s']:.0f} tokens/s by {options.kernel}, "
                      f"hits {said['hits']} of {said['prompt_tokens']} prompt tokens")
    if session is not None:
        session.close()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
