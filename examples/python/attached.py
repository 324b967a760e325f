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
flashinfer choose. Prompts always use the Triton kernel of attached_model.py.
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
from typing import Any

import aule


def is_there(module: str) -> bool:
    """Say whether a module is installed."""
    return importlib.util.find_spec(module) is not None


def missing(kernel: str) -> str | None:
    """Say what the model's kernels lack here; None: nothing."""
    for module in ("torch", "triton", *(["flashinfer"] if kernel == "flashinfer" else [])):
        if not is_there(module):
            return f"{module} is not installed"
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device"


def worker(options: argparse.Namespace) -> dict[str, Any]:
    """Serve some requests that begin with the system prompt; returns what it measured."""
    import torch
    from attached_model import DIM, KV_HEADS, VOCAB, Model

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
                        default="flashinfer" if is_there("flashinfer") else "triton")
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    lacks = missing(options.kernel)
    if lacks:
        print(f"attached.py cannot run here: {lacks}", file=sys.stderr)
        return 1
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
