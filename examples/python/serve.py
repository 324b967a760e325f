# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Continuous batching over a transformers model, in several processes that share one KV cache.

    python serve.py MODEL [--processes 2] [--socket PATH] [--device cuda]

Each process serves requests that begin with the same system prompt, as tokens of the model's
vocabulary. A step computes one token of each request that decodes, and fills up with parts of
prompts. Tokens are streamed by asyncio. If a client goes away, its request ends. At the end each
process says tokens/s and hits: the tokens of its prompts that it did not compute, because it or
another process had.
Without --socket a private daemon is started. With --device cuda the model runs there; q, k, v and
out then stay on the GPU, in a device arena of --device-arena bytes. 0: they go through host memory.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import aule
import aule.hf
import torch
from transformers import AutoModelForCausalLM


class Request:
    """A prompt, its sequence while it runs, and the queue of its new tokens; None ends it."""

    def __init__(self, prompt: list[int], new_tokens: int) -> None:
        self.prompt, self.left = prompt, new_tokens
        self.new: asyncio.Queue[int | BaseException | None] = asyncio.Queue()
        self.sequence: Any = None
        self.gone = False  # nobody reads `new` any more


class Engine:
    """Runs one model over one cache. Use it from one event loop."""

    def __init__(self, model: Any, cache: aule.Cache, step_tokens: int, most: int) -> None:
        self.model, self.cache = model, cache
        self.step_tokens, self.most = step_tokens, most
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.hits = self.prompt_tokens = self.new_tokens = self.steps = 0
        self._work = asyncio.Event()

    async def generate(self, prompt: list[int], new_tokens: int) -> AsyncIterator[int]:
        """Yield the tokens that follow `prompt`, greedily, as they come.

        If the caller is cancelled or leaves the loop, the request ends before the next step.
        """
        request = Request(prompt, new_tokens)
        self.waiting.append(request)
        self._work.set()
        try:
            while (token := await request.new.get()) is not None:
                if isinstance(token, BaseException):
                    raise token
                yield token
        finally:
            request.gone = True  # a step may be using its sequence now

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self._work.wait()
                self._end_gone()
                self._admit()
                if self.running:
                    await self._step()
                elif self.waiting:
                    await asyncio.sleep(0.005)  # another process computes what they need
                else:
                    self._work.clear()
        except BaseException as error:
            for request in [*self.running, *self.waiting]:
                request.new.put_nowait(error)
            raise
        finally:
            for request in self.running:
                request.sequence.close()

    def _end_gone(self) -> None:
        """End requests whose clients went away: their blocks are for others."""
        self.waiting = deque(one for one in self.waiting if not one.gone)
        for request in [one for one in self.running if one.gone]:
            self._end(request)

    def _end(self, request: Request) -> None:
        request.sequence.close()
        self.running.remove(request)

    def _admit(self) -> None:
        """Let requests in while the pool has blocks for all that they may need.

        A request whose prompt begins with what another one computes now, here or in another
        process, waits for that.
        """
        while self.waiting and len(self.running) < self.most:
            request = self.waiting[0]
            sequence = self.cache.sequence(request.prompt, claim=True, timeout=0)
            if sequence.promised:
                sequence.close()
                return
            try:
                to_come = len(request.prompt) - sequence.cached + request.left
                self.cache.reserve([(sequence, to_come)])
            except aule.errors.NoBlocksError:
                sequence.close()
                if not self.running:
                    raise  # nothing will come free
                return
            self.waiting.popleft()
            request.sequence = sequence
            self.running.append(request)
            self.hits += sequence.cached
            self.prompt_tokens += len(request.prompt)

    def _plan(self) -> list[tuple[Request, int]]:
        """Choose the tokens of a step: decodes first, then parts of prompts."""
        todo = [(one, len(one.sequence) - one.sequence.computed) for one in self.running]
        todo.sort(key=lambda pair: pair[1] > 1)
        room, plan = self.step_tokens, []
        for one, count in todo:
            if room:
                plan.append((one, min(count, room)))
                room -= plan[-1][1]
        return plan

    async def _step(self) -> None:
        plan = self._plan()
        tokens = await asyncio.to_thread(self._forward, plan)
        self.steps += 1
        for (request, _), token in zip(plan, tokens, strict=True):
            if request.sequence.computed < len(request.sequence):
                continue  # a part of a prompt
            request.new.put_nowait(token)
            self.new_tokens += 1
            request.left -= 1
            if request.left:
                request.sequence.append(token)
            else:
                request.new.put_nowait(None)
                self._end(request)

    def _forward(self, plan: list[tuple[Request, int]]) -> list[int]:
        """Compute one step; returns the token after the last one of each entry."""
        ids: list[int] = []
        for request, count in plan:
            at = request.sequence.computed
            ids.extend(request.sequence.tokens[at:at + count].tolist())
        step = self.cache.step([(request.sequence, count) for request, count in plan])
        past = aule.hf.StepCache(self.model, step)
        last = torch.tensor([rows.stop - 1 for rows in step.rows])
        with torch.inference_mode():
            logits = self.model(
                input_ids=torch.tensor([ids]).to(self.model.device), past_key_values=past,
                position_ids=past.position_ids.to(self.model.device), logits_to_keep=last).logits
        return [int(token) for token in logits[0].argmax(-1)]


def prompts_of(arguments: argparse.Namespace, process: int, vocabulary: int) -> list[list[int]]:
    """Make the prompts of a process: the system prompt, and then each its own tokens."""
    def draw(seed: int, count: int) -> list[int]:
        random = torch.Generator().manual_seed(seed)
        return [int(i) for i in torch.randint(vocabulary, (count,), generator=random)]

    system = draw(0, arguments.system_tokens)
    return [system + draw(1 + process * arguments.requests + i, arguments.prompt_tokens)
            for i in range(arguments.requests)]


async def serve(arguments: argparse.Namespace, socket: str, process: int) -> None:
    """Serve one process's requests, and print what it did."""
    aule.hf.register()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, attn_implementation="aule")
    model.to(arguments.device)
    device_arena = arguments.device_arena if arguments.device == "cuda" else 0
    with aule.connect(socket, name=f"serve {process}", device_arena_size=device_arena) as session:
        cache = aule.hf.open_cache(session, model)
        engine = Engine(model, cache, arguments.step_tokens, arguments.running)
        runner = asyncio.create_task(engine.run())

        async def client(prompt: list[int]) -> list[int]:
            return [token async for token in engine.generate(prompt, arguments.new_tokens)]

        begin = time.monotonic()
        prompts = prompts_of(arguments, process, model.config.vocab_size)
        texts = await asyncio.gather(*map(client, prompts))
        took = time.monotonic() - begin
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        if arguments.print_tokens:
            for i, text in enumerate(texts):
                print(f"process {process} request {i}: {text}", flush=True)
        print(f"process {process}: {engine.new_tokens / took:.1f} tokens/s, {engine.steps} steps, "
              f"hits {engine.hits} of {engine.prompt_tokens} prompt tokens", flush=True)


def start(arguments: argparse.Namespace, socket: str, process: int) -> None:
    """Be one process."""
    asyncio.run(serve(arguments, socket, process))


def main() -> int:
    """Start the processes; the exit code is 0 if all ended well."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="name or folder of a causal language model")
    parser.add_argument("--socket", help="of the daemon; default: a private one is started")
    for name, value in (("processes", 2), ("requests", 8), ("system-tokens", 256),
                        ("prompt-tokens", 64), ("new-tokens", 32), ("step-tokens", 512),
                        ("running", 16)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    parser.add_argument("--print-tokens", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--device-arena", type=int, default=256 << 20,
                        help="bytes of GPU memory for tensors, default: 256 MiB")
    arguments = parser.parse_args()
    with aule.connect(arguments.socket, autostart=not arguments.socket, name="serve") as session:
        socket = arguments.socket or session.socket
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=start, args=(arguments, socket, i))
                     for i in range(arguments.processes)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    raise SystemExit(main())
