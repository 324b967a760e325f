# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The parts of gpu_workers.py that use an attached pool, by a Triton kernel of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_measure
from gpu_measure import SMALL, Row, Rows, Size, cuda, right, say

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = str(Path(__file__).with_name("gpu_workers.py"))
POOL_SMALL, POOL = 256, 8192  # blocks of each cache


def kernels() -> Any:
    """Return the example's model, which has the Triton kernel."""
    sys.path.insert(0, str(ROOT / "examples/python"))
    import attached_model

    return attached_model


def attach_to(size: Size, name: str, socket: str | None = None, blocks: int = 0,
              layers: int = 0) -> tuple[Any, Any]:
    """Open a session and a cache; without a socket with a private daemon."""
    import aule

    blocks = blocks or (POOL_SMALL if size is SMALL else POOL)
    options = [*gpu_measure.daemon_options(), "--memory-fraction", "0.9", "--export-pool",
               str(blocks)]
    session = aule.connect(socket, autostart=socket is None, arena_size=size.arena // 4,
                           daemon_options=options if socket is None else ())
    return session, session.cache(name, num_layers=layers or size.layers,
                                  num_kv_heads=size.kv_heads, head_dim=size.dim)


def attached_exact(size: Size) -> list[Row]:
    """Share a prompt between the daemon's kernels and one's own, in both directions."""
    torch, own = cuda(), kernels()
    _session, cache = attach_to(size, "exact", layers=2)
    count = 96 if size is SMALL else 320  # whole blocks
    shapes = [(count, n, size.dim) for n in (size.heads, size.kv_heads, size.kv_heads)]
    qkv = [[torch.randn(s, device="cuda", dtype=torch.float16) for s in shapes] for _ in range(2)]
    one = [torch.randn((1, *s[1:]), device="cuda", dtype=torch.float16) for s in shapes]
    prompts = {who: [index * 7 + i for i in range(count)] for index, who in
               enumerate(("daemon", "own"))}
    # The daemon's kernels write one prompt, and own kernels write the same K and V under another.
    with cache.sequence(prompts["daemon"]) as text:
        step = cache.step([text])
        outs = [step.attend(layer, *tensors) for layer, tensors in enumerate(qkv)]
        text.publish()
    rows = Rows()
    with cache.sequence(prompts["own"]) as text:
        plan = cache.plan([text])
        tables = plan.tables()
        for layer, (_, k, v) in zip(cache.layers, qkv, strict=True):
            own.write(layer, tables.slot_mapping, k, v)
        lengths = torch.arange(1, count + 1, device="cuda", dtype=torch.int32)
        table = tables.block_table.expand(count, -1).contiguous()
        for name, splits in (("", 1), (", splits", 8)):
            out = own.attend(qkv[0][0], cache.layers[0], table, lengths, splits)
            worst = float((out.double() - right(torch, *qkv[0])).abs().max())
            rows.append((f"attached: largest error against float64{name}", worst, "", "<= 0.002",
                         worst <= 2e-3))
        plan.wrote()
        cache.attach().report()
        text.publish()
        rows.append(("attached: published blocks", float(text.published), "",
                     str(count // cache.block_size), text.published == count // cache.block_size))
    # Both prompts, found again: the daemon's kernels must give the same bits over both.
    after: dict[str, list[Any]] = {}
    stored: dict[str, list[Any]] = {}
    for who, prompt in prompts.items():
        with cache.sequence([*prompt, 1], publish=False) as text:
            rows.append((f"attached: found of {who}'s prompt", float(text.cached), "", str(count),
                         text.cached == count))
            step = cache.step([text])
            after[who] = [step.attend(layer, *one).cpu() for layer in range(2)]
            text.truncate(count)
            text.append(2)
            tables = cache.plan([text]).tables()
            blocks = tables.indices[:count // cache.block_size].long()
            stored[who] = [layer[blocks].cpu() for layer in cache.layers]
    same = all(torch.equal(a, b) for a, b in zip(after["daemon"], after["own"], strict=True))
    rows.append(("attached: the daemon reads own blocks bit for bit", float(same), "", "1", same))
    same = all(torch.equal(a, b) for a, b in zip(stored["daemon"], stored["own"], strict=True))
    rows.append(("attached: own kernels read the daemon's bit for bit", float(same), "", "1", same))
    worst = float((outs[0].double() - right(torch, *qkv[0])).abs().max())
    rows.append(("attached: the daemon's own error", worst, "", "<= 0.002", worst <= 2e-3))
    return rows


def _time(torch: Any, work: Callable[[], Any], repeats: int) -> float:
    """Return the median of the GPU's microseconds for `work`, after two warm-ups."""
    took = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(took[2:])


class Decoder:
    """Decode steps of all layers by the Triton kernel, over a pool that is nearly full."""

    def __init__(self, size: Size) -> None:
        self.size, self.torch, self.own = size, cuda(), kernels()
        self.session, self.cache = attach_to(size, "measure")
        started = time.perf_counter()
        self.where = self.cache.attach()
        self.first_attach = time.perf_counter() - started
        for layer in self.cache.layers:
            layer.normal_()
        block = self.cache.block_size
        self.tokens = self.where.num_blocks // size.seqs * block - block  # of a sequence
        self.texts = [self.cache.sequence([i] * self.tokens, publish=False)
                      for i in range(size.seqs)]
        self.cache.plan(self.texts).wrote()
        self.where.report()
        shapes = [(size.seqs, n, size.dim) for n in (size.heads, size.kv_heads, size.kv_heads)]
        self.q, self.k, self.v = (
            self.torch.randn(shape, device="cuda", dtype=self.torch.float16) for shape in shapes)

    def plan(self) -> Any:
        """Plan one token more of each sequence."""
        for text in self.texts:
            text.append(1)
        return self.cache.plan(self.texts)

    def step(self, layers: list[Any], tables: Any, splits: int) -> None:
        """Launch the kernels of one step; fewer layers are used in turns."""
        for i in range(self.size.layers):
            layer = layers[i % len(layers)]
            self.own.write(layer, tables.slot_mapping, self.k, self.v)
            self.own.attend(self.q, layer, tables.block_table, tables.cache_seqlens, splits)

    def kernels(self) -> list[Row]:
        """Time the kernels over the pool and over torch's own memory, in turns."""
        # Torch's memory has some layers only: each is far larger than the L2 cache.
        plain = [self.torch.empty_like(self.cache.layers[0]).normal_()
                 for _ in range(min(4, self.size.layers))]
        plan = self.plan()
        tables = plan.tables()
        best: dict[str, float] = {}
        for splits in (1, 2, 4):
            times: dict[str, float] = {}
            for name, layers in (("pool", self.cache.layers), ("torch", plain)) * 2:
                took = _time(self.torch, lambda n=layers, s=splits: self.step(n, tables, s),
                             self.size.repeats)
                times[name] = min(took, times.get(name, took))
            if not best or times["torch"] < best["torch"]:
                best = times
        plan.wrote()
        size = self.size
        read = 2 * size.layers * size.seqs * self.tokens * size.kv_heads * size.dim * 2
        ratio = best["pool"] / best["torch"]
        return [("attached: decode, kernels over the pool", best["pool"], "us", "", None),
                ("attached: decode, over torch's memory", best["torch"], "us", "", None),
                ("attached: ratio", ratio, "", "<= 1.02", ratio <= 1.02),
                ("attached: decode, read", read / best["pool"] / 1e3, "GB/s", "", None)]

    def whole(self) -> list[Row]:
        """Time whole steps, with plan(), tables() and reports."""
        self.torch.cuda.synchronize()
        steps = min(self.size.repeats, self.cache.block_size - 2)
        started = time.perf_counter()
        for _ in range(steps):
            plan = self.plan()
            self.step(self.cache.layers, plan.tables(), 1)
            plan.wrote()
        self.torch.cuda.synchronize()
        took = (time.perf_counter() - started) / steps * 1e6
        for text in self.texts:
            text.close()
        self.where.report()
        copied = sum(self.session.copied)
        return [("attached: decode, whole step", took, "us", "", None),
                ("attached: bytes through host memory", float(copied), "B", "0", copied == 0)]

    def publish(self) -> list[Row]:
        """Time the report and the publishing of a prompt that own kernels have written."""
        took = []
        for index in range(10):
            text = self.cache.sequence([index] * (4096 if self.size is not SMALL else 64))
            plan = self.cache.plan([text])
            self.torch.cuda.synchronize()
            plan.wrote()
            started = time.perf_counter()
            text.publish()  # reports, too
            took.append((time.perf_counter() - started) * 1e6)
            if text.published != text.num_blocks:
                raise RuntimeError(f"{text.published} of {text.num_blocks} blocks are published")
            text.close()
        return [("attached: report and publish 4096 tokens", statistics.median(took), "us",
                 "< 200", statistics.median(took) < 200)]

    def attach(self) -> list[Row]:
        """Time how sessions attach after the process's first one."""
        again = []
        for _ in range(3):
            other, seen = attach_to(self.size, "measure", str(self.session.socket))
            started = time.perf_counter()
            seen.attach()
            again.append(time.perf_counter() - started)
            other.close()
        took = statistics.median(again)
        return [("attached: first attach of a process", self.first_attach * 1e3, "ms", "", None),
                ("attached: attach of a session", took * 1e3, "ms", "< 5", took < 5e-3)]


def attached(size: Size) -> list[Row]:
    """Time a decode step of all layers over the pool and over torch's memory; attach; publish."""
    decoder = Decoder(size)
    rows = Rows()
    for part in (decoder.kernels, decoder.whole, decoder.publish, decoder.attach):
        rows.extend(part())
    return rows


COMMON, PRIVATE, STEPS = 16384, 64, 64  # tokens


def sharer(size: Size, socket: str, index: int, count: int) -> None:
    """Decode `count` sequences that begin with one common prompt, when told to."""
    torch, own = cuda(), kernels()
    small = size is SMALL
    _session, cache = attach_to(size, "share", socket)
    common = 256 if small else COMMON
    texts = []
    shape = (1, size.kv_heads, size.dim)
    for i in range(count):
        text = cache.sequence([*range(common), *[index * 1000 + i] * PRIVATE], claim=True)
        plan = cache.plan([text])
        slots = torch.as_tensor(plan.arrays.slot_mapping, device="cuda")
        for layer in cache.layers:
            own.write(layer, slots, torch.ones(shape, device="cuda", dtype=torch.float16),
                      torch.ones(shape, device="cuda", dtype=torch.float16))
        plan.wrote()
        text.publish()
        texts.append(text)
    q = torch.randn((count, size.heads, size.dim), device="cuda", dtype=torch.float16)
    kv = torch.randn((count, size.kv_heads, size.dim), device="cuda", dtype=torch.float16)

    def step() -> None:
        for text in texts:
            text.append(1)
        plan = cache.plan(texts)
        tables = plan.tables()
        for layer in cache.layers:
            own.write(layer, tables.slot_mapping, kv, kv)
            own.attend(q, layer, tables.block_table, tables.cache_seqlens, 8)
        plan.wrote()
        torch.cuda.synchronize()

    step()
    print("READY", flush=True)
    sys.stdin.readline()
    started = time.time()
    for _ in range(STEPS):
        step()
    ended = time.time()
    state = cache.state()
    used = state["leased_blocks"] + state["held_blocks"]
    say({"started": started, "ended": ended, "used": used, "own": sum(t.num_blocks for t in texts)})
    sys.stdin.readline()


def attached_share(size: Size) -> list[Row]:
    """Run four processes with one common prompt, and one process with all sequences."""
    each = 4
    rows = Rows()
    rates: dict[int, float] = {}
    for processes in (1, 4):
        session, _ = attach_to(size, "share", blocks=POOL_SMALL if size is SMALL else 2048)
        small = ["--small"] if size is SMALL else []
        ways = [subprocess.Popen(
            [sys.executable, SCRIPT, "--part", "sharer", "--socket", str(session.socket),
             "--index", str(i), "--count", str(4 * each // processes), *small],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for i in range(processes)]
        try:
            for way in ways:
                assert way.stdout
                if not any(line == "READY\n" for line in iter(way.stdout.readline, "")):
                    raise RuntimeError("a process ended before it was ready")
            for way in ways:
                assert way.stdin
                way.stdin.write("go\n")
                way.stdin.flush()
            every = []
            for way in ways:
                assert way.stdout
                every.append(gpu_measure.result_of(next(
                    line for line in iter(way.stdout.readline, "") if "RESULT" in line)))
        finally:
            for way in ways:
                way.kill()
                way.wait()
            session.close()
        took = max(one["ended"] for one in every) - min(one["started"] for one in every)
        rates[processes] = 4 * each * STEPS / took
        rows.append((f"attached_share: {processes} processes", rates[processes], "tok/s", "", None))
        if processes == 4:
            common = (256 if size is SMALL else COMMON) // 32
            apart = 4 * common + max(one["used"] for one in every) - common
            share = max(one["used"] for one in every) / apart
            rows.append(("attached_share: KV memory over separate pools", share, "", "<= 0.3",
                         share <= 0.3 if size is not SMALL else None))
    rows.append(("attached_share: tokens/s over one process", rates[4] / rates[1], "", "", None))
    return rows


def haunter(size: Size, socket: str) -> None:
    """Lease blocks, and keep a kernel that will write to them for seconds, until killed."""
    torch = cuda()
    _session, cache = attach_to(size, "kills", socket, layers=2)
    text = cache.sequence(range(320), publish=False)
    plan = cache.plan([text])
    slots = torch.as_tensor(plan.arrays.slot_mapping, device="cuda")
    block, offset = slots // cache.block_size, slots % cache.block_size
    torch.cuda.synchronize()
    torch.cuda._sleep(6_000_000_000)  # clocks: some seconds
    for layer in cache.layers:
        layer[block, 0, :, offset] = 7
    print("READY", flush=True)
    time.sleep(600)


def attached_kills(size: Size) -> list[Row]:
    """Kill attached processes whose kernels run; their blocks come back, others stay right."""
    torch, own = cuda(), kernels()
    session, cache = attach_to(size, "kills", layers=2)
    cache.attach()
    text = cache.sequence(range(64), publish=False)
    plan = cache.plan([text])
    k, v = (torch.randn((64, size.kv_heads, size.dim), device="cuda", dtype=torch.float16)
            for _ in range(2))
    for layer in cache.layers:
        own.write(layer, plan.tables().slot_mapping, k, v)
    plan.wrote()
    cache.attach().report()
    before = cache.state()["free_blocks"]
    slowest, wrong = 0.0, 0
    for _ in range(5 if size is not SMALL else 2):
        process = subprocess.Popen(
            [sys.executable, SCRIPT, "--part", "haunter", "--socket", str(session.socket),
             *(["--small"] if size is SMALL else [])], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if process.stdout.readline() != "READY\n":
            raise RuntimeError("the process has ended before it was killed")
        if cache.state()["free_blocks"] >= before:
            raise RuntimeError("the process has leased nothing")
        process.send_signal(signal.SIGKILL)
        started = time.perf_counter()
        while cache.state()["free_blocks"] < before and time.perf_counter() - started < 30:
            time.sleep(0.001)
        slowest = max(slowest, time.perf_counter() - started)
        process.wait()
        # Everything that was free is written by this process, and must stay so.
        with cache.sequence(range(before * cache.block_size), publish=False) as rest:
            slots = torch.as_tensor(cache.plan([rest]).arrays.slot_mapping, device="cuda")
            block, offset = slots // cache.block_size, slots % cache.block_size
            for layer in cache.layers:
                layer[block, 0, :, offset] = 3
            torch.cuda.synchronize()
            time.sleep(1)
            wrong += sum(int((layer[block, 0, :, offset] != 3).sum()) for layer in cache.layers)
        cache.attach().report()
    slots = torch.as_tensor(plan.arrays.slot_mapping, device="cuda")
    block, offset = slots // cache.block_size, slots % cache.block_size
    same = all(torch.equal(layer[block, 0, :, offset], k) for layer in cache.layers)
    return [("attached_kills: until the blocks are free", slowest * 1e3, "ms", "< 30000",
             slowest < 30),
            ("attached_kills: values that a dead process has overwritten", float(wrong), "", "0",
             wrong == 0),
            ("attached_kills: blocks of another process are as they were", float(same), "", "1",
             same)]


def example(size: Size) -> list[Row]:
    """Run the example by the Triton kernel: two processes that share a system prompt."""
    return _example(size, "triton")


def _example(size: Size, kernel: str) -> list[Row]:
    small = ["--layers=2", "--system=128", "--new=8"] if size is SMALL else []
    done = subprocess.run([sys.executable, str(ROOT / "examples/python/attached.py"),
                           "--kernel", kernel, *small], capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr[-4000:])
    print(done.stdout)
    rates = [float(line.split()[2]) for line in done.stdout.splitlines() if "tokens/s" in line]
    hits = [int(line.split("hits ")[1].split()[0]) for line in done.stdout.splitlines()
            if "hits" in line]
    system = 128 if size is SMALL else 512
    good = done.returncode == 0 and len(hits) == 2
    # Of 2 x 4 prompts one computes the system prompt.
    return [(f"example, {kernel}: two processes, exit code", float(done.returncode), "", "0", good),
            (f"example, {kernel}: system prompts found, of 8", sum(hits) / system, "", ">= 7",
             good and sum(hits) >= 7 * system),
            (f"example, {kernel}: tokens/s of both", sum(rates), "tok/s", "", None)]


def flashinfer(size: Size) -> list[Row]:
    """Decode with FlashInfer over the pool: exactness, time, the example. It compiles first."""
    torch, own = cuda(), kernels()
    if importlib.util.find_spec("flashinfer") is None:
        raise RuntimeError("flashinfer is not installed here")
    started = time.perf_counter()
    wrapper = own.FlashInfer(size.heads, size.kv_heads, size.dim)
    _session, cache = attach_to(size, "flashinfer", blocks=POOL_SMALL, layers=2)
    rows = Rows()
    counts = (1, 31, 32, 45, 300)  # keys of each sequence
    with contextlib.ExitStack() as stack:
        texts = [stack.enter_context(cache.sequence([i] * count, publish=False))
                 for i, count in enumerate(counts)]
        plan = cache.plan(texts)
        tables = plan.tables()
        k, v = (torch.randn((sum(counts), size.kv_heads, size.dim), device="cuda",
                            dtype=torch.float16) for _ in range(2))
        own.write(cache.layers[1], tables.slot_mapping, k, v)
        q = torch.randn((len(counts), size.heads, size.dim), device="cuda", dtype=torch.float16)
        attention = wrapper.attention(plan.arrays, cache.block_size, torch.float16)
        out = attention(q, cache.layers[1])
        rows.append(("flashinfer: first call, which compiles", time.perf_counter() - started, "s",
                     "", None))
        worst = 0.0
        for i, part in enumerate(plan.rows):
            keys, values = (x[part] for x in (k, v))
            wide = q[i].expand(len(keys), -1, -1)  # the last row sees all keys
            worst = max(worst, float((out[i].double() - right(torch, wide, keys, values)[-1])
                                     .abs().max()))
        rows.append(("flashinfer: largest error against float64", worst, "", "<= 0.002",
                     worst <= 2e-3))
        plan.wrote()
        cache.attach().report()
    rows.extend(_example(size, "flashinfer"))
    return rows


PARTS: dict[str, Callable[[Size], list[Row]]] = {
    "attached_exact": attached_exact, "attached": attached, "attached_share": attached_share,
    "attached_kills": attached_kills, "example": example, "flashinfer": flashinfer}
