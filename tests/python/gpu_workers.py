# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""GPU workers on a machine with a GPU: exactness, kills and figures of both ways.

    python3 tests/python/gpu_workers.py [--parts exact,attached,...] [--build build/release]
        [--wheels FOLDER] [--small]

The device arena: exact, mempool, decode, prefill, kills, sessions. The attached pool:
attached_exact, attached, attached_share, attached_kills, example; these need triton, too, and
flashinfer needs FlashInfer. What the driver can do: readonly, order.

Each part takes less than five minutes and runs in a process of its own with a private daemon. It
needs a build of aule-daemon and libaule-client, and numpy, cffi and torch for CUDA of this Python,
but no network. --wheels: packages that this Python lacks, unpacked for this call. --small: small
sizes. A table and one line of JSON come last. A part that fails is named there, and the others go
on.
Exit code: 0 all was measured and right, 1 something was not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_measure
import gpu_pool
import gpu_probe
from gpu_measure import SMALL, Layers, Row, Rows, Size, cuda, right, say

ROOT = Path(__file__).resolve().parent.parent.parent
DEVICE_ARENA = 1 << 30
SWITCH_US = 350  # of one layer: two changes of the GPU between processes, and a margin


class Worker(Layers):
    """A worker that has a device arena, too; `where` may be "device"."""

    def __init__(self, size: Size, socket: str | None = None,
                 device_arena: int = DEVICE_ARENA) -> None:
        import aule

        self.size, self.torch, self.device = size, cuda(), "cuda"
        self.session = aule.connect(
            socket, autostart=socket is None, arena_size=size.arena,
            device_arena_size=device_arena,
            daemon_options=gpu_measure.daemon_options() if socket is None else ())
        self.cache = self.session.cache("measure", num_layers=size.layers,
                                        num_kv_heads=size.kv_heads, head_dim=size.dim)

    def tensors(self, count: int, where: str, heads: int = 0) -> list[Any]:
        """Random q, k, v and out: "device", "arena" or "copied" (by a session without device)."""
        if where != "device":
            return super().tensors(count, where, heads)
        size, torch = self.size, self.torch
        shapes = [(count, n, size.dim) for n in (heads or size.heads, size.kv_heads, size.kv_heads)]
        inside = [self.session.empty(shape, torch.float16, device="cuda")
                  for shape in (*shapes, shapes[0])]
        for tensor in inside:
            tensor.normal_()
        return inside


# ---- parts ----

def exact(size: Size) -> list[Row]:
    """Compare with float64, and with the bits of the host arena."""
    torch = cuda()
    rows = Rows()
    worker = Worker(size)
    session = worker.session
    count = 300 if size is not SMALL else 50
    for dtype, most in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        cache = session.cache(f"exact {dtype}", num_layers=1, num_kv_heads=size.kv_heads,
                              head_dim=size.dim, dtype=dtype)
        wide = size.heads + 2 * size.kv_heads
        fused = session.empty((count, wide, size.dim), dtype, device="cuda")
        fused.normal_()
        q, k, v = fused.split([size.heads, size.kv_heads, size.kv_heads], 1)
        host = [session.empty(x.shape, dtype) for x in (q, k, v)]
        for target, source in zip(host, (q, k, v), strict=True):
            target.copy_(source)
        before = session.device_copied
        outs = []
        for given in ((q, k, v), tuple(host)):
            with cache.sequence(range(count), publish=False) as text:
                outs.append(cache.step([text]).attend(0, *given))
        torch.cuda.synchronize()
        worst = float((outs[0].double() - right(torch, q, k, v)).abs().max())
        name = str(dtype).removeprefix("torch.")
        rows.append((f"{name}: largest error against float64", worst, "", f"<= {most:g}",
                     worst <= most))
        same = torch.equal(outs[0].cpu(), outs[1])
        rows.append((f"{name}: bits as from the host arena", float(same), "", "1", same))
        copied = sum(session.device_copied) - sum(before)
        rows.append((f"{name}: bytes copied", float(copied + sum(session.copied)), "B", "0",
                     copied + sum(session.copied) == 0))
    return rows


def mempool(size: Size) -> list[Row]:
    """Let torch allocate q, k, v and out in the device arena, through a MemPool."""
    import gc

    torch = cuda()
    rows = Rows()
    worker = Worker(size)
    session, count = worker.session, 300 if size is not SMALL else 50
    wide = size.heads + 2 * size.kv_heads
    x = torch.randn((count, 64), device="cuda", dtype=torch.float16)
    weights = torch.randn((64, wide * size.dim), device="cuda", dtype=torch.float16) / 8
    (x @ weights).sum()  # cuBLAS keeps the workspace of its first call, outside of the pool
    pool = session.mem_pool()
    before = sum(session.device_copied) + sum(session.copied)
    with torch.cuda.use_mem_pool(pool):
        qkv = (x @ weights).view(count, wide, size.dim)
        out = torch.empty((count, size.heads, size.dim), device="cuda", dtype=torch.float16)
    q, k, v = qkv.split([size.heads, size.kv_heads, size.kv_heads], 1)
    inside = session.in_arena(qkv) and session.in_arena(out)
    rows.append(("mempool: results of torch lie in the arena", float(inside), "", "1", inside))
    with worker.cache.sequence(range(count), publish=False) as text:
        worker.cache.step([text]).attend(0, q, k, v, out)
    torch.cuda.synchronize()
    worst = float((out.double() - right(torch, q, k, v)).abs().max())
    rows.append(("mempool: largest error against float64", worst, "", "<= 0.004", worst <= 4e-3))
    copied = sum(session.device_copied) + sum(session.copied) - before
    rows.append(("mempool: bytes copied", float(copied), "B", "0", copied == 0))
    with torch.cuda.use_mem_pool(pool):
        try:
            torch.empty(2 * DEVICE_ARENA, dtype=torch.uint8, device="cuda")
            full = 0.0
        except torch.OutOfMemoryError:
            full = 1.0
    rows.append(("mempool: a full arena is torch's OutOfMemoryError", full, "", "1", full == 1))
    del q, k, v, qkv, out, pool
    gc.collect()
    torch.cuda.empty_cache()
    whole = session.empty((DEVICE_ARENA - 4096,), torch.int8, device="cuda")
    rows.append(("mempool: the pool's end gives all memory back", float(whole.is_cuda), "", "1",
                 bool(whole.is_cuda)))
    return rows


def _figures(worker: Worker, make: Callable[[str, str], dict[str, Any]],
             ways: list[str], name: str) -> list[Row]:
    rows = Rows()
    for where in ways:
        before = sum(worker.session.copied)
        row = make(where, name)
        host = sum(worker.session.copied) - before
        layers = worker.size.layers
        per_layer = (row["time_us"] - row["kernels_us"]) / layers
        rows.extend([(f"{name}, {where}: time", row["time_us"], "us", "", None),
                     (f"{name}, {where}: the first three runs", row["first_us"], "us", "", None),
                     (f"{name}, {where}: kernels", row["kernels_us"], "us", "", None),
                     (f"{name}, {where}: over kernels, a layer", per_layer, "us",
                      f"<= {SWITCH_US}" if where == "device" and name == "decode" else "",
                      per_layer <= SWITCH_US if where == "device" and name == "decode" else None),
                     (f"{name}, {where}: bytes through host memory", float(host), "B",
                      "0" if where == "device" else "", host == 0 if where == "device" else None)])
        if where == "device" and name == "prefill":
            ratio = row["time_us"] / row["kernels_us"] if row["kernels_us"] else 0.0
            rows.append((f"{name}, {where}: ratio", ratio, "", "<= 1.1", ratio <= 1.1))
    return rows


def decode(size: Size) -> list[Row]:
    """Time a decode step of all layers: device arena and host arena, then copied."""
    worker = Worker(size)
    texts = worker.fill()
    rows = _figures(worker, lambda where, name: worker.decode(texts, where, name),
                    ["device", "arena"], "decode")
    plain = Worker(size, worker.session.socket, 0)
    plain.cache = plain.session.cache("copied", num_layers=size.layers,
                                      num_kv_heads=size.kv_heads, head_dim=size.dim)
    for text in texts:
        text.close()
    texts = plain.fill()
    return rows + _figures(plain, lambda where, name: plain.decode(texts, where, name),
                           ["copied"], "decode")


def prefill(size: Size) -> list[Row]:
    """Time a prefill of all layers: device arena and host arena, then copied."""
    worker = Worker(size)
    rows = _figures(worker, worker.prefill, ["device", "arena"], "prefill")
    plain = Worker(size, worker.session.socket, 0)
    return rows + _figures(plain, plain.prefill, ["copied"], "prefill")


def victim(size: Size, socket: str) -> None:
    """Keep a kernel on the device arena that runs for seconds, and runs in flight, until killed."""
    worker = Worker(size, socket, 64 << 20)
    torch = worker.torch
    q, k, v, out = worker.tensors(64, "device")
    with worker.cache.sequence(range(64), publish=False) as text:
        step = worker.cache.step([text])
        tickets = [step.submit(layer, q, k, v, out) for layer in range(size.layers)]
        torch.cuda._sleep(6_000_000_000)  # clocks: some seconds
        out.fill_(7)
        print("READY", flush=True)
        for ticket in tickets:
            ticket.wait()
        time.sleep(600)


def kills(size: Size) -> list[Row]:
    """Kill workers whose kernels and runs are under way; others must be right, memory flat."""
    torch = cuda()
    worker = Worker(size, device_arena=64 << 20)
    tensors = worker.tensors(64, "device")
    wanted = right(torch, *tensors[:3])
    wrong = 0
    slowest = 0.0
    free = 0
    rounds = 4 if size is not SMALL else 2
    for index in range(rounds):
        process = subprocess.Popen(
            [sys.executable, __file__, "--part", "victim", "--socket",
             str(worker.session.socket), *(["--small"] if size is SMALL else [])],
            stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if process.stdout.readline() != "READY\n":
            raise RuntimeError("the victim has ended before it was killed")
        process.send_signal(signal.SIGKILL)
        process.wait()
        started = time.perf_counter()
        with worker.cache.sequence(range(64), publish=False) as text:
            worker.cache.step([text]).attend(0, *tensors)
        slowest = max(slowest, time.perf_counter() - started)
        wrong += not torch.allclose(tensors[3].double(), wanted, atol=2e-3, rtol=0)
        torch.cuda.synchronize()
        if index == rounds // 2 - 1:
            free = torch.cuda.mem_get_info()[0]
    lost = free - torch.cuda.mem_get_info()[0]
    for _ in range(50):  # the driver frees a dead process's memory a moment later
        if lost <= 0:
            break
        time.sleep(0.2)
        lost = free - torch.cuda.mem_get_info()[0]
    return [("kills: wrong results of another worker", float(wrong), "", "0", wrong == 0),
            ("kills: longest run of another worker", slowest * 1e3, "ms", "", None),
            ("kills: GPU memory lost in half of them", lost / 2**20, "MiB", "<= 4",
             lost <= 4 << 20)]


def sessions(size: Size) -> list[Row]:
    """Open and close sessions with device arenas; time them; memory must be flat."""
    import aule

    torch = cuda()
    base = Worker(size, device_arena=0)
    count = 2000 if size is not SMALL else 20
    took: list[float] = []
    marks: list[tuple[int, int, int]] = []
    for index in range(count):
        started = time.perf_counter()
        with aule.connect(base.session.socket, arena_size=1 << 20,
                          device_arena_size=16 << 20) as session:
            tensor = session.empty((1024,), torch.float32, device="cuda")
            took.append(time.perf_counter() - started)
            tensor.fill_(index)
            if float(tensor[-1]) != index:
                raise RuntimeError(f"session {index} reads {float(tensor[-1])}")
            del tensor
        # A driver may take 64 KiB once, within the first 1,000.
        if index in (count // 2, count - 1):
            time.sleep(0.5)  # the driver frees the last session's memory a moment later
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
            marks.append((torch.cuda.mem_get_info()[0], len(os.listdir("/proc/self/fd")), resident))
    (free, fds, resident), (free_end, fds_end, resident_end) = marks
    return [("sessions: attach, p50", statistics.median(took[1:]) * 1e3, "ms", "< 5",
             statistics.median(took[1:]) < 5e-3),
            ("sessions: GPU memory lost", (free - free_end) / 2**20, "MiB", "<= 0",
             free_end >= free),
            ("sessions: descriptors lost", float(fds_end - fds), "", "0", fds_end <= fds),
            ("sessions: host memory lost", (resident_end - resident) / 2**20, "MiB", "<= 4",
             resident_end - resident <= 4 << 20)]


PARTS: dict[str, Callable[[Size], list[Row]]] = {
    "exact": exact, "mempool": mempool, "decode": decode, "prefill": prefill, "kills": kills,
    "sessions": sessions, **gpu_pool.PARTS, **gpu_probe.PARTS}


# ---- the whole ----

def whole(arguments: argparse.Namespace, folder: Path) -> int:
    """Run the parts and print the table and the JSON."""
    gpu_measure.LIMIT_S = 290 * len(arguments.parts)
    runner = gpu_measure.Whole(arguments, folder)
    rows: list[Row] = []
    small = ["--small"] if arguments.small else []
    for part in arguments.parts:
        out = runner.start(part, [str(Path(__file__).resolve()), "--part", part, *small], 290)
        try:
            rows += [tuple(row) for row in gpu_measure.result_of(out)["rows"]]
        except RuntimeError:
            runner.failures += [] if any(f.startswith(f"{part}:") for f in runner.failures) else [
                f"{part}: it ended without a result"]
    missed = [row[0] for row in rows if row[4] is False]
    print(f"\n{'figure':46}{'value':>14} {'unit':5}{'target':>10}")
    for name, value, unit, target, met in rows:
        verdict = {True: "  met", False: "  MISSED", None: ""}[met]
        print(f"{name:46}{value:14.6g} {unit:5}{target:>10}{verdict}")
    for failure in runner.failures:
        print(f"NOT MEASURED: {failure}")
    print(json.dumps({"rows": rows, "missed": missed, "failures": runner.failures}))
    return int(bool(runner.failures or missed))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="default: all")
    parser.add_argument("--build", default=ROOT / "build/release", help="the build folder")
    parser.add_argument("--wheels", help="a folder of wheels to unpack")
    parser.add_argument("--small", action="store_true", help="small sizes")
    for name in ("part", "socket", "index", "count"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = SMALL if arguments.small else Size()
    if arguments.part == "victim":
        victim(size, arguments.socket)
    elif arguments.part == "haunter":
        gpu_pool.haunter(size, arguments.socket)
    elif arguments.part == "sharer":
        gpu_pool.sharer(size, arguments.socket, int(arguments.index), int(arguments.count))
    elif arguments.part:
        say({"rows": PARTS[arguments.part](size)})
    else:
        arguments.parts = arguments.parts.split(",")
        unknown = [part for part in arguments.parts if part not in PARTS]
        if unknown:
            parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
        with tempfile.TemporaryDirectory() as folder:
            return whole(arguments, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
