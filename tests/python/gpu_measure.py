# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Measures the Python package on a machine with a GPU; one command, under five minutes.

    python3 tests/python/gpu_measure.py [--build build/release] [--wheels FOLDER] [--small]

It needs a build of aule-daemon and libaule-client, and numpy, cffi, torch, transformers and pytest
of this Python, but no network. --wheels: packages that this Python lacks, such as cffi, or
transformers in another version; they are unpacked for this call. With transformers 5.17 only the
rows of sdpa are measured; 5.23 measures all. --small: sizes for a CPU.

It runs the tests marked gpu. It times a decode step and a prefill of 32 layers with tensors in the
arena and with CUDA tensors, beside the kernels' own time. It runs generate_batch over aule and over
transformers' own cache, in one process and in four. A table and one line of JSON come last. A part
that fails or takes too long is named there, and the others go on.
Exit code: 0 all was measured, 1 something was not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT_S = 290  # of the whole call
KINDS = ("aule", "sdpa")
Row = tuple[str, float, str, str, bool | None]  # name, value, unit, target, whether it is met


class Size(NamedTuple):
    """What is measured. A decode step is over `seqs` sequences of `keys` tokens (D1)."""

    layers: int = 32
    seqs: int = 64
    keys: int = 4096
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    prefill: int = 8192
    repeats: int = 20
    warm_up: int = 20  # decode steps before, while shaders are compiled and tuned
    arena: int = 512 << 20  # a quarter of it for each process of generate_batch
    chunk: int = 8192  # tokens of a step that fills the cache
    # generate_batch, for each process
    model_layers: int = 16
    hidden: int = 2048
    model_heads: int = 16
    intermediate: int = 8192
    vocab: int = 32000
    requests: int = 32
    common: int = 1024  # tokens at the beginning of all prompts
    own: int = 256
    new: int = 64
    batch_tokens: int = 2048


SMALL = Size(layers=2, seqs=3, keys=32, heads=4, kv_heads=2, dim=32, prefill=64, repeats=2,
             warm_up=2, arena=16 << 20, chunk=48, model_layers=2, hidden=64, model_heads=4,
             intermediate=96, vocab=97, requests=6, common=40, own=9, new=4, batch_tokens=64)


def cuda() -> Any:
    """Return torch, which must have CUDA."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA device here")
    return torch


def daemon_options() -> list[str]:
    """Return options of a private daemon: parts share compiled shaders through one folder."""
    return ["--cache-folder", os.environ.get("AULE_MEASURE_CACHE", "none")]


def right(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """Causal attention of one sequence [tokens, heads, dim] in float64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    count = q.shape[1]
    later = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
    return (scores.masked_fill(later, float("-inf")).softmax(-1) @ v).transpose(0, 1)


class Rows(list[Row]):
    """Rows of a part. Each is printed when it is known, so a part that is ended early has shown it.
    """

    def append(self, row: Row) -> None:
        """Add a row and print it."""
        super().append(row)
        line = f"ROW {row[0]:56}{row[1]:14.6g} {row[2]:5} {row[3]}\n"
        os.write(int(os.environ.get("AULE_MEASURE_ROWS", "2")), line.encode())

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows and print them."""
        for row in rows:
            self.append(row)


def say(result: dict[str, Any]) -> None:
    """Print the result of a part, for the process that started it."""
    print("RESULT " + json.dumps(result), flush=True)


# ---- a decode step and a prefill ----


class Layers:
    """One worker with a cache of many layers, and a private daemon."""

    def __init__(self, size: Size) -> None:
        import aule
        import torch

        self.size, self.torch = size, torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.session = aule.connect(autostart=True, arena_size=size.arena,
                                    daemon_options=daemon_options())
        self.cache = self.session.cache("measure", num_layers=size.layers,
                                        num_kv_heads=size.kv_heads, head_dim=size.dim)

    def tensors(self, count: int, where: str, heads: int = 0) -> list[Any]:
        """Random q, k, v, and out or None: "arena" or "copied"."""
        size, torch = self.size, self.torch
        shapes = [(count, n, size.dim) for n in (heads or size.heads, size.kv_heads, size.kv_heads)]
        made = [torch.randn(shape, device=self.device, dtype=torch.float16) for shape in shapes]
        if where != "arena":
            return [*made, None]
        inside = [self.session.empty(shape, torch.float16) for shape in (*shapes, shapes[0])]
        for target, source in zip(inside[:3], made, strict=True):
            target.copy_(source)
        return inside

    def wait(self) -> None:
        """Wait for CUDA."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def run(self, step: Any, tensors: list[Any]) -> tuple[float, float]:
        """Run all layers of a step; returns seconds, and the kernels' seconds."""
        *qkv, out = tensors
        kernels = 0
        self.wait()
        started = time.perf_counter()
        for layer in range(self.size.layers):
            ticket = step.submit(layer, *qkv, out)
            ticket.wait()
            kernels += ticket.result.gpu_ns
        self.wait()
        return time.perf_counter() - started, kernels / 1e9

    @staticmethod
    def row(name: str, runs: list[tuple[float, float]], warm_up: int) -> dict[str, Any]:
        """Return the medians of runs, without the first ones, which compile and are tuned."""
        first, runs = runs[:3], runs[warm_up:]
        took, kernels = (statistics.median(run[i] for run in runs) for i in (0, 1))
        return {"name": name, "time_us": took * 1e6, "kernels_us": kernels * 1e6,
                "first_us": statistics.mean(run[0] for run in first) * 1e6,
                "ratio": took / kernels if kernels else None, "runs": len(runs)}

    def fill(self) -> list[Any]:
        """Return sequences with K and V in all layers, none of them shared."""
        size = self.size
        texts = [self.cache.sequence([i] * size.keys, publish=False) for i in range(size.seqs)]
        each = max(1, size.chunk // size.seqs)
        for begin in range(0, size.keys, each):
            count = min(each, size.keys - begin)
            step = self.cache.step([(text, count) for text in texts])
            if begin == 0 or count != each:
                tensors = self.tensors(step.num_tokens, "arena", size.kv_heads)
            for layer in range(size.layers):
                *qkv, out = tensors
                step.attend(layer, *qkv, out, window=0)  # K and V are written; little is read
        return texts

    def decode(self, texts: list[Any], where: str, name: str) -> dict[str, Any]:
        """Time steps that compute one token of each sequence."""
        tensors = self.tensors(len(texts), where)
        runs = []
        for _ in range(self.size.repeats + self.size.warm_up):
            for text in texts:
                text.append(1)
            runs.append(self.run(self.cache.step(texts), tensors))
            for text in texts:
                text.truncate(self.size.keys)
        return self.row(name, runs, self.size.warm_up)

    def prefill(self, where: str, name: str) -> dict[str, Any]:
        """Time prefills of one sequence."""
        count = self.size.prefill
        tensors = self.tensors(count, where)
        runs = []
        for _ in range(max(3, self.size.repeats // 4) + 3):
            with self.cache.sequence(range(count), publish=False) as text:
                runs.append(self.run(self.cache.step([text]), tensors))
        return self.row(name, runs, 3)

    def own_us(self, texts: list[Any]) -> tuple[float, float]:
        """Time submit() with tensors in the arena.

        Return the medians of its CPU time, and of libaule-client's part of it, in us.
        """
        from aule import _run

        *qkv, out = self.tensors(len(texts), "arena")
        costs: list[float] = []
        inner: list[float] = []
        real = _run._submit

        def timed(*arguments: Any) -> Any:
            started = time.thread_time()
            status = real(*arguments)
            inner.append(time.thread_time() - started)
            return status

        for _ in range(self.size.repeats + 2):
            for text in texts:
                text.append(1)
            step, tickets = self.cache.step(texts), []
            for layer in range(self.size.layers):
                # Every second call times the library, which adds to the call's own time.
                _run._submit = timed if layer % 2 else real
                started = time.thread_time()
                tickets.append(step.submit(layer, *qkv, out))
                if layer % 2 == 0:
                    costs.append(time.thread_time() - started)
            for ticket in tickets:
                ticket.wait()
            for text in texts:
                text.truncate(self.size.keys)
        _run._submit = real
        return statistics.median(costs) * 1e6, statistics.median(inner) * 1e6


def layers(size: Size) -> None:
    """Measure a decode step and a prefill: tensors in the arena, and CUDA's, copied."""
    worker = Layers(size)
    session = worker.session
    started = time.perf_counter()
    texts = worker.fill()
    filled = time.perf_counter() - started
    rows = [worker.decode(texts, "arena", "decode, in the arena"),
            worker.decode(texts, "copied", "decode, copied")]
    rows += [worker.prefill("arena", "prefill, in the arena"),
             worker.prefill("copied", "prefill, copied")]
    own_us = worker.own_us(texts)
    copies = session.cuda
    if worker.device == "cuda":  # what a worker gets whose arena CUDA refuses
        session._arena.close()
        rows += [worker.decode(texts, "copied", "decode, copied plainly"),
                 worker.prefill("copied", "prefill, copied plainly")]
    say({"device": session.info["device_name"], "torch": worker.torch.__version__,
         "tensors": worker.device, "fill_s": filled, "cuda": copies._asdict(), "own_us": own_us,
         "rows": rows})


# ---- generate_batch ----


def model_of(size: Size, kind: str) -> Any:
    """Make a Llama with random weights, the same in each process."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.LlamaConfig(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.intermediate,
        num_hidden_layers=size.model_layers, num_attention_heads=size.model_heads,
        num_key_value_heads=size.model_heads // 2, head_dim=size.hidden // size.model_heads,
        max_position_embeddings=8192, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1,
        eos_token_id=None)
    torch.manual_seed(5)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=kind,
            dtype=torch.float16 if device == "cuda" else torch.float32)
    return model.to(device).eval()


class Generator:
    """One process that generates; lines on its standard input say when."""

    def __init__(self, size: Size, kind: str, socket: str, index: int) -> None:
        self.size, self.index = size, index
        self.state: Any = None
        self.shared: Any = None
        if kind == "aule":
            import aule.hf

            aule.hf.register()
        self.model = model_of(size, kind)
        if kind == "aule":
            session = aule.connect(socket, arena_size=size.arena // 4, name=f"measure {index}")
            cache = aule.hf.open_cache(session, self.model, "measure")
            self.shared, self.state = aule.hf.share_batches(cache, self.model), cache.state

    def prompts(self) -> list[list[int]]:
        """Make prompts whose first tokens are common to all processes."""
        import random

        size = self.size
        common = random.Random(1).choices(range(2, size.vocab), k=size.common)
        return [common + random.Random(1000 * self.index + i + 7).choices(
            range(2, size.vocab), k=size.own) for i in range(size.requests)]

    def generate(self, prompts: list[list[int]], new: int) -> int:
        """Generate greedily; returns the number of new tokens."""
        import transformers

        size = self.size
        # A page is transformers' block; its name has changed since 5.17.
        names = vars(transformers.ContinuousBatchingConfig())
        page = "page_size" if "page_size" in names else "block_size"
        batching = transformers.ContinuousBatchingConfig(
            max_batch_tokens=size.batch_tokens, num_blocks=self.pages(), **{page: 32})
        greedy = transformers.GenerationConfig(max_new_tokens=new, do_sample=False,
                                               eos_token_id=-1, pad_token_id=0)
        outputs = self.model.generate_batch(prompts, generation_config=greedy,
                                            continuous_batching_config=batching,
                                            persistent_manager=True)
        failures = [output.error for output in outputs.values() if output.error]
        if failures or len(outputs) != len(prompts):
            raise RuntimeError(f"generate_batch failed: {failures[:1]}")
        return sum(len(output.generated_tokens) for output in outputs.values())

    def pages(self) -> int:
        """Return the pages of 32 tokens that transformers' own cache gets: for all requests."""
        size = self.size
        return (-(-(size.common + size.own + size.new) // 32) + 1) * size.requests

    def serve(self) -> None:
        """Warm up, wait for the start, generate, and say what came of it."""
        size = self.size
        self.generate([[3] * (size.own // 2 + 1), [4] * 5], 4)
        before = (self.shared.cached, self.shared.prompted) if self.shared else (0, 0)
        print("READY", flush=True)
        sys.stdin.readline()
        peak, over = [0], threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                state = self.state()
                used = (state["leased_blocks"] + state["held_blocks"] + state["evictable_blocks"])
                peak[0] = max(peak[0], used * state["block_bytes"])

        watcher = threading.Thread(target=watch)
        if self.state is not None:
            watcher.start()
        started = time.time()
        tokens = self.generate(self.prompts(), size.new)
        ended = time.time()
        over.set()
        config = self.model.config
        reserved = (self.pages() * 32 * 2 * config.num_hidden_layers * config.num_key_value_heads
                    * config.head_dim * self.model.dtype.itemsize)
        if self.state is not None:
            watcher.join()
            self.shared.close()  # counts what was found
        say({"tokens": tokens, "started": started, "ended": ended,
             "cache_bytes": peak[0] if self.state is not None else reserved,
             "found": self.shared.cached - before[0] if self.shared else 0,
             "prompted": self.shared.prompted - before[1] if self.shared else 0,
             "parameters": self.model.num_parameters()})
        sys.stdout.flush()
        os._exit(0)  # threads of managers may go on


def batch(size: Size, kind: str, processes: int, options: list[str]) -> None:
    """Start processes that generate at the same time, and add up."""
    import aule

    session = aule.connect(autostart=True, daemon_options=daemon_options()) \
        if kind == "aule" else None
    socket = session.socket or "" if session else ""
    ways = [subprocess.Popen(
        [sys.executable, __file__, "--part", "process", "--kind", kind, "--socket", socket,
         "--index", str(i), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for i in range(processes)]
    try:
        for way in ways:
            assert way.stdout
            if not any(line == "READY\n" for line in iter(way.stdout.readline, "")):
                raise SystemExit(f"a process with {kind} ended before it was ready")
        for way in ways:
            assert way.stdin
            way.stdin.write("go\n")
            way.stdin.flush()
        every = [result_of(way.communicate()[0]) for way in ways]
    finally:
        for way in ways:
            way.kill()
            way.wait()
        if session:
            session.close()
    took = max(one["ended"] for one in every) - min(one["started"] for one in every)
    memory = [one["cache_bytes"] for one in every]
    say({"name": f"{kind}, {processes} process{'es' if processes > 1 else ''}",
         "tokens_per_s": sum(one["tokens"] for one in every) / took, "seconds": took,
         "cache_bytes": max(memory) if kind == "aule" else sum(memory),
         "found": sum(one["found"] for one in every),
         "prompted": sum(one["prompted"] for one in every),
         "parameters": every[0]["parameters"]})


# ---- the whole ----


def result_of(text: str) -> dict[str, Any]:
    """Return what `say` has printed."""
    for line in text.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    raise RuntimeError("a process ended without a result")


class Whole:
    """Starts the parts one by one, each in a process of its own."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.small = arguments.small
        self.ends = time.monotonic() + LIMIT_S
        self.failures: list[str] = []
        build = Path(arguments.build).resolve()
        site = folder / "site"
        for wheel in sorted(Path(arguments.wheels).glob("*.whl")) if arguments.wheels else []:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        env = {**os.environ, "PYTHONPATH": f"{folder}:{site}", "PYTHONDONTWRITEBYTECODE": "1",
               "AULE_DAEMON": str(build / "daemon/aule-daemon"),
               "AULE_CTL": str(build / "tools/ctl/aule-ctl"),
               "AULE_MEASURE_CACHE": str(folder / "cache")}
        (folder / "cache").mkdir(exist_ok=True)
        env.pop("AULE_SOCKET", None)
        self.env = env
        subprocess.run([sys.executable, ROOT / "client/python/packaging/aule_packaging.py", "stage",
                        folder, build / "client/libaule-client.so"], env=env, check=True,
                       stdout=subprocess.DEVNULL)

    def start(self, what: str, command: list[str], seconds: float) -> str:
        """Run a part; returns its standard output, or "" with a failure noted."""
        print(f"gpu_measure: {what} ...", file=sys.stderr, flush=True)
        left = min(seconds, self.ends - time.monotonic())
        if left < 5:
            self.failures.append(f"{what}: there was no time left")
            return ""
        # The part's own processes and daemon are in its group, and end with it. `shown`: where it
        # prints its rows at once.
        shown = os.dup(2)
        part = subprocess.Popen([sys.executable, *command], cwd=HERE, text=True,
                                env={**self.env, "AULE_MEASURE_ROWS": str(shown)},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(shown,),
                                start_new_session=True)
        os.close(shown)
        try:
            out, err = part.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            os.killpg(part.pid, 9)
            out, err = part.communicate()
            self.failures.append(f"{what}: not done after {left:.0f} s")
        else:
            if part.returncode:
                lines = [line for line in (out + err).splitlines() if line.strip()]
                reasons = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
                why = (reasons or lines or [f"it ended with {part.returncode}"])[-1]
                self.failures.append(f"{what}: {why}")
                sys.stderr.write((out + err)[-8000:])
        return out

    def part(self, what: str, options: list[str], seconds: float) -> dict[str, Any] | None:
        """Run a part of this file."""
        small = ["--small"] if self.small else []
        out = self.start(what, [__file__, *options, *small], seconds)
        try:
            return result_of(out)
        except RuntimeError:
            return None

    def tests(self) -> str:
        """Run the tests marked gpu; returns pytest's last line."""
        files = [str(path) for path in sorted(HERE.glob("test_*.py"))
                 if "pytest.mark.gpu" in path.read_text()]
        out = self.start("tests", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu",
                                   "-rs", *files], 120)
        lines = out.strip().splitlines()
        return lines[-1] if lines else "not run"

    def run(self, processes: list[int]) -> int:
        """Run all parts and print the table and the JSON."""
        tests = self.tests()
        measured = self.part("layers", ["--part", "layers"], 120) or {"rows": []}
        batches = [self.part(f"generate_batch with {kind}, {count} processes",
                             ["--part", "batch", "--kind", kind, "--count", str(count)], 90)
                   for count in processes for kind in KINDS]
        rows = [row for row in batches if row]
        print(f"\ntests marked gpu: {tests}")
        print(f"device: {measured.get('device')}, tensors on {measured.get('tensors')}, "
              f"{measured.get('cuda')}")
        print(f"\n{'':28}{'time, us':>12}{'kernels, us':>13}{'ratio':>7}")
        for row in measured["rows"]:
            ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
            print(f"{row['name']:28}{row['time_us']:12.0f}{row['kernels_us']:13.0f}{ratio:>7}")
        if "own_us" in measured:
            whole, inner = measured["own_us"]
            print(f"submit(): {whole:.1f} us of CPU time, of which libaule-client takes "
                  f"{inner:.1f}")
        print(f"\n{'generate_batch':28}{'tokens/s':>12}{'cache, MiB':>13}{'found':>15}")
        for row in rows:
            print(f"{row['name']:28}{row['tokens_per_s']:12.1f}{row['cache_bytes'] / 2**20:13.1f}"
                  f"{row['found']:7}/{row['prompted']}")
        print("cache: with aule, blocks in use at most, of all processes; with sdpa, reserved")
        for failure in self.failures:
            print(f"NOT MEASURED: {failure}")
        print(json.dumps({"tests": tests, "layers": measured, "batches": rows,
                          "failures": self.failures}))
        return int(bool(self.failures))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build/release", help="the build folder")
    parser.add_argument("--wheels", help="a folder of wheels to unpack")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--processes", default="1,4",
                        help="of generate_batch, default: 1,4; 0: none")
    for name in ("part", "kind", "socket", "index", "count"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = SMALL if arguments.small else Size()
    options = ["--small"] if arguments.small else []
    if arguments.part == "layers":
        layers(size)
    elif arguments.part == "batch":
        batch(size, arguments.kind, int(arguments.count), options)
    elif arguments.part == "process":
        Generator(size, arguments.kind, arguments.socket, int(arguments.index)).serve()
    else:
        with tempfile.TemporaryDirectory() as folder:
            counts = [int(count) for count in arguments.processes.split(",")]
            return Whole(arguments, Path(folder)).run([count for count in counts if count])
    return 0


if __name__ == "__main__":
    sys.exit(main())
