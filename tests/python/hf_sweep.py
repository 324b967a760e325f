# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""`eager` against `aule` for a tiny model of each class that transformers generates text with.

    python hf_sweep.py [CLASS...] [--json FILE] [--markdown FILE] [--jobs N]

Each class has a process of its own, so one that hangs or fails stops no other. The environment is
that of the tests: AULE_DAEMON names the daemon's program. SWEEP_TRACE=1 prints tracebacks.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import json
import logging
import os
import re
import resource
import select
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import aule
import aule.hf
import torch
import transformers
from aule import _hf_forward
from aule.daemon import PrivateDaemon
from hf_tiny import (
    BLOCK,
    EXTRA,
    FIRST_SPECIAL,
    MAPPINGS,
    PROMPT,
    QUERIES,
    VOCAB,
    WITHOUT_IDS,
    NotBuilt,
    build,
    classes,
    eager_model,
    image_inputs,
    said,
)
from transformers.models.auto import modeling_auto

# ---- comparison ----

BOUND, NEW, PAD = 2e-3, 4, 7  # of logits' size; new tokens; padding
MOST_BYTES = 32 << 30  # of address space: torch and the threads' stacks take some of it
TIMEOUT_S = 90
LATE = "not built: not done in time"  # a loaded machine is no error of the class
MODES = ("forward", "padding", "generate", "shared", "batch", "image", "image_shared")
OWN = "its own attention"  # aule was not called
UNSUPPORTED = re.compile(r"(?i)attn_implementation|attention implementation|attention.*support")
calls = [0]  # of aule's attention function
sentences: set[str] = set()  # of every AuleError; generate_batch hands on the text only


def refused(error: BaseException) -> bool:
    return isinstance(error, aule.AuleError) or (
        isinstance(error, ValueError) and bool(UNSUPPORTED.search(str(error))))


def distance(got: Any, right: Any) -> float:
    """Return the largest difference, as a part of the largest value; 2: one is no number."""
    if got.shape != right.shape or not torch.isfinite(got).all():
        return 2.0
    seen = right > -1e30  # some models rule tokens out
    return float((got - right)[seen].abs().max() / right[seen].abs().max().clamp(min=1e-9))


def verdict_of(size: float, note: str = "") -> str:
    return f"differs: {size:.1e}{note}" if size > BOUND else f"equal{note}"


class Case:
    """One class: its eager model, models with aule's attention, and inputs."""

    def __init__(self, name: str, session: aule.Session) -> None:
        self.name, self.session = name, session
        self.cls = getattr(transformers, name)
        self.models: dict[str, Any] = {}
        self.config, self.eager = eager_model(self.cls)
        self.takes = inspect.signature(self.cls.forward).parameters
        parts = (self.config, self.config.get_text_config(decoder=True))
        self.is_encoder_decoder = "decoder_input_ids" in self.takes and any(
            getattr(part, "is_encoder_decoder", False) for part in parts)
        self.takes_ids = "input_ids" in self.takes and name not in WITHOUT_IDS
        self.ids = torch.randint(10, FIRST_SPECIAL, (2, PROMPT),
                                 generator=torch.Generator().manual_seed(3))
        self.ids[:, 1:1 + QUERIES.get(name, 0)] = VOCAB - 1
        try:
            self.right = self.logits(self.eager)
            self.check()
        except NotBuilt:
            raise
        except Exception as error:
            raise NotBuilt(f"eager fails: {said(error)}") from error

    def check(self) -> None:
        """Raise NotBuilt if a wrong attention would not be seen in the logits."""
        if not torch.isfinite(self.right).all():
            raise NotBuilt("eager gives numbers that are not finite")
        ids = self.ids[:1].clone()
        ids[:, QUERIES.get(self.name, 0) + 1:-1] = ids[:, QUERIES.get(self.name, 0) + 1:-1].flip(1)
        if distance(self.logits(self.eager, ids)[:, -1], self.right[:, -1]) > 5 * BOUND:
            return
        raise NotBuilt("the last logits do not depend on earlier tokens")

    def inputs(self, ids: Any, **more: Any) -> dict[str, Any]:
        made = {**EXTRA.get(self.name, lambda rows: {})(len(ids)), **more}
        if self.takes_ids:
            made["input_ids"] = ids
        if self.is_encoder_decoder:
            made["decoder_input_ids"] = self.ids.flip(1)[:len(ids)] if self.takes_ids else ids
        return made

    def logits(self, model: Any, ids: Any = None, **more: Any) -> Any:
        ids = self.ids[:1] if ids is None else ids
        return model(**self.inputs(ids, **more)).logits.float()

    def model(self, how: str = "from_config") -> Any:
        """Return a model with aule's attention: by from_config, or set later."""
        if how not in self.models:
            if how == "from_config":
                model = build(self.cls, self.config, "aule", self.eager.state_dict())
            else:
                model = build(self.cls, self.config, "eager", self.eager.state_dict())
                model.set_attn_implementation("aule")
            self.models[how] = model
        return self.models[how]

    # ---- modes ----

    def forward(self) -> str:
        sizes, missed = {}, []
        for how in ("from_config", "set_attn_implementation"):
            before = calls[0]
            sizes[how] = distance(self.logits(self.model(how)), self.right)
            missed += [how] if calls[0] == before else []
        wrong = [how for how, size in sizes.items() if size > BOUND]
        note = f" by {wrong[0]}" if len(wrong) == 1 else ""
        note += f" ({OWN}{f', {missed[0]}' if len(missed) == 1 else ''})" if missed else ""
        return verdict_of(max(sizes.values()), note)

    def padding(self) -> str:
        """Compare with sdpa, too: eager sees all keys where a query's mask hides all of them."""
        ids, mask = self.ids.clone(), torch.ones_like(self.ids)
        ids[1, :PAD], mask[1, :PAD] = 0, 0
        name = "attention_mask" if self.takes_ids else "decoder_attention_mask"
        pad = PAD if not self.is_encoder_decoder or not self.takes_ids else 0

        def rows(model: Any) -> Any:
            first, second = self.logits(model, ids, **{name: mask})
            return torch.cat([first, second[pad:]])

        right = self.eagerly(lambda: rows(self.eager))
        got = rows(self.model())
        size = distance(got, right)
        if size > BOUND:
            sdpa = build(self.cls, self.config, "sdpa", self.eager.state_dict())
            size = min(size, distance(got, rows(sdpa)))
        return verdict_of(size)

    def eagerly(self, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except Exception as error:
            raise NotBuilt(f"eager fails: {said(error)}") from error

    def texts(self, model: Any, ids: Any, past: Any = None, **more: Any) -> tuple[Any, Any]:
        """Generate greedily; returns the tokens, and the logits of each."""
        given = self.inputs(ids, **more)
        given.pop("decoder_input_ids", None)
        if past is not None:
            given["past_key_values"] = past
        if not self.is_encoder_decoder:
            given["attention_mask"] = torch.ones_like(ids)
        out = model.generate(**given, max_new_tokens=NEW, do_sample=False, num_beams=1,
                             output_logits=True, return_dict_in_generate=True, use_cache=True)
        count = len(out.logits)
        return out.sequences[0, -count:].tolist(), [row[0].float() for row in out.logits]

    def wanted(self, row: int = 0) -> Any:
        return self.eagerly(lambda: self.texts(self.eager, self.ids[row:row + 1]))

    def generate(self) -> str:
        right = self.wanted()
        return verdict_of(compared(self.texts(self.model(), self.ids[:1]), right))

    def cache(self, what: str) -> Any:
        return aule.hf.open_cache(self.session, self.model(), f"{self.name} {what} {os.getpid()}",
                                  block_size=BLOCK)

    def shared(self) -> str:
        right = self.wanted()
        model, ids = self.model(), self.ids[:1]
        sizes = []
        with self.cache("shared") as cache:
            for _ in range(2):
                with aule.hf.SharedCache(cache, model, ids) as past:
                    found = past.cached
                    sizes.append(compared(self.texts(model, ids, past), right))
        note = "" if found else " (the second request finds nothing)"
        note += " (the first request is equal)" if sizes[0] <= BOUND < sizes[1] else ""
        return verdict_of(max(sizes), note)

    def batch(self) -> str:
        """Generate for a prompt that a SharedCache has computed, if it could, and for another."""
        if self.name in EXTRA:
            raise NotBuilt("the model needs more than token ids")
        rights, model = [self.wanted(0), self.wanted(1)], self.model()
        greedy = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False,
                                               eos_token_id=-1, pad_token_id=0)
        batching = transformers.ContinuousBatchingConfig(
            max_batch_tokens=64, num_blocks=64, page_size=32, return_logprobs=True)
        with self.cache("batch") as cache, aule.hf.share_batches(cache, model):
            with contextlib.suppress(Exception), \
                    aule.hf.SharedCache(cache, model, self.ids[:1]) as past:
                model(input_ids=self.ids[:1], past_key_values=past)
            outputs = model.generate_batch(
                self.ids.tolist(), generation_config=greedy, continuous_batching_config=batching,
                progress_bar=False).values()
        for error in [output.error for output in outputs if output.error]:
            kind = "refused" if error in sentences else "error"
            return f"{kind}: {' '.join(error.split())[:400]}"
        return verdict_of(max(compared_logprobs(output, right)
                              for output, right in zip(outputs, rights, strict=True)))

    # ---- images ----

    def pictured(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Return token ids with an image, and the image's arguments."""
        options, count = image_inputs(self.eager, self.config, seed)
        token = getattr(self.config, "image_token_id", None)
        token = self.config.image_token_index if token is None else token
        ids = torch.cat([self.ids[:1, :3], torch.full((1, count), token), self.ids[:1, 3:]], 1)
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in self.takes:
                options[name] = (ids == token).long()
        return ids, options

    def image(self) -> str:
        (ids, one), (_, two) = self.pictured(1), self.pictured(2)
        right = self.eagerly(lambda: self.logits(self.eager, ids, **one))
        other = self.eagerly(lambda: self.logits(self.eager, ids, **two))
        if distance(other, right) <= 5 * BOUND:
            raise NotBuilt("the logits do not depend on the image")
        return verdict_of(distance(self.logits(self.model(), ids, **one), right))

    def image_shared(self) -> str:
        """Generate with an image, again with this one, and with another one of the same size."""
        model = self.model()
        with self.cache("image") as cache:
            for what, seed in (("first", 1), ("second", 1), ("other image's", 2)):
                ids, options = self.pictured(seed)
                right = self.eagerly(functools.partial(self.texts, self.eager, ids, **options))
                try:
                    with aule.hf.SharedCache(cache, model, ids) as past:
                        size = compared(self.texts(model, ids, past, **options), right)
                except Exception as error:
                    kind = "refused" if refused(error) else "error"
                    return f"{kind}: {said(error)} (the {what} request)"
                if size > BOUND:
                    return verdict_of(size, f" (the {what} request)")
        return "equal"


def compared(got: Any, right: Any) -> float:
    """Return the largest difference of logits, up to the first token that is another."""
    size = 0.0
    for mine, theirs, token, other in zip(got[1], right[1], got[0], right[0], strict=False):
        size = max(size, distance(mine, theirs))
        if token != other:
            return size
    return size if len(got[0]) == len(right[0]) else 2.0


def compared_logprobs(output: Any, right: Any) -> float:
    size = 0.0
    for token, logprob, other, row in zip(output.generated_tokens, output.logprobs, *right,
                                          strict=False):
        size = max(size, abs(float(row.log_softmax(-1)[token]) - logprob) / float(row.abs().max()))
        if token != other:
            return size
    return size if len(output.generated_tokens) == len(right[0]) else 2.0


def examine(name: str, socket: str) -> Iterator[tuple[str, str]]:
    """Yield each mode and its verdict."""
    torch.set_num_threads(1)
    watch_errors()
    with aule.connect(socket, name=name, arena_size=1 << 24) as session, torch.no_grad():
        aule.hf.register(session)
        count_calls()
        has_images = name in getattr(modeling_auto, MAPPINGS[1]).values()
        try:
            case = Case(name, session)
        except NotBuilt as why:
            yield from ((mode, f"not built: {why}") for mode in MODES)
            return
        for mode in MODES:
            yield mode, verdict(getattr(case, mode)) if has_images or "image" not in mode else NONE


NONE = "none"


def verdict(mode: Callable[[], str]) -> str:
    try:
        return mode()
    except NotBuilt as why:
        return f"not built: {why}"
    except Exception as error:
        if os.environ.get("SWEEP_TRACE"):
            traceback.print_exc()
        return f"{'refused' if refused(error) else 'error'}: {said(error)}"


def count_calls() -> None:
    inner = _hf_forward._attend

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return inner(*arguments, **options)

    _hf_forward._attend = counted


def watch_errors() -> None:
    inner = aule.AuleError.__init__

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        inner(self, *arguments, **options)
        sentences.add(str(self))

    aule.AuleError.__init__ = noted  # type: ignore[method-assign]


# ---- a process for each class ----


class Child:
    """A forked process that examines one class, and says each verdict as a line of JSON."""

    def __init__(self, name: str, socket: str) -> None:
        self.name, self.text = name, b""
        self.end = time.monotonic() + TIMEOUT_S
        self.pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _work(name, socket, write)
        os.close(write)

    def read(self) -> bool:
        """Take what the child has said; False: it has ended."""
        part = os.read(self.pipe, 1 << 16)
        self.text += part
        return bool(part)

    def finish(self, late: bool) -> dict[str, str]:
        """End the child; returns the verdict of each mode."""
        os.close(self.pipe)
        if late:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        found = dict(json.loads(line) for line in self.text.decode().splitlines())
        why = LATE if late else f"error: wait status {status}"
        why = found.pop("end", why)
        return {mode: found.get(mode, why) for mode in MODES}


def _work(name: str, socket: str, pipe: int) -> None:
    """Be the child; does not return."""
    def say(*pair: str) -> None:
        os.write(pipe, json.dumps(pair).encode() + b"\n")

    try:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        transformers.logging.set_verbosity(transformers.logging.CRITICAL)
        logging.disable(logging.CRITICAL)
        for pair in examine(name, socket):
            say(*pair)
    except BaseException as error:
        say("end", f"error: {said(error)}")
    finally:
        os._exit(0)


def sweep(names: Iterable[str], socket: str, jobs: int = 1,
          tell: Callable[[str, dict[str, str]], None] | None = None) -> dict[str, dict[str, str]]:
    """Examine classes, each in a process of its own; returns the verdict of each mode."""
    waiting, running = list(names), {}
    found: dict[str, dict[str, str]] = {name: {} for name in waiting}
    while waiting or running:
        while waiting and len(running) < jobs:
            child = Child(waiting.pop(0), socket)
            running[child.pipe] = child
        ready, _, _ = select.select(list(running), [], [], 0.2)
        for pipe, child in list(running.items()):
            ended = pipe in ready and not child.read()
            if ended or time.monotonic() > child.end:
                del running[pipe]
                found[child.name] = child.finish(late=not ended)
                if tell:
                    tell(child.name, found[child.name])
    return found


# ---- the table of the documents ----

COLUMNS = {"forward": ("forward", "generate"), "padding": ("padding",),
           "`SharedCache`": ("shared",), "`generate_batch`": ("batch",), "image": ("image",),
           "image, `SharedCache`": ("image_shared",)}
KINDS = ("error", "differs", "refused", "not built", "equal", NONE)  # the first one counts
SHOWN = {"not built": "not tried", NONE: ""}


def kind_of(verdict: str) -> str:
    return next(kind for kind in KINDS if verdict.startswith(kind))


def worst(modes: dict[str, str], names: Iterable[str]) -> str:
    return min((modes[name] for name in names), key=lambda verdict: KINDS.index(kind_of(verdict)))


def cells(modes: dict[str, str]) -> list[str]:
    """Return what the table says of a class, without numbers of notes."""
    kinds = [kind_of(worst(modes, names)) for names in COLUMNS.values()]
    own = modes["forward"].endswith(f"({OWN})")  # however the model was given its attention
    return ["own" if own and kind == "equal" else SHOWN.get(kind, kind) for kind in kinds]


def note_of(verdict: str) -> str:
    """Return the sentence of a verdict, without the names, places and numbers of one model."""
    sentence = verdict.partition(": ")[2]
    for pattern, instead in NOTE_FORMS:
        sentence = re.sub(pattern, instead, sentence)
    return textwrap.shorten(sentence.replace("|", "/").replace("`", "'"), NOTE, placeholder=" ...")


NOTE_FORMS = (
    (r" \((\w+\.py:\d+|the [\w' ]+ request|aten[\w.]+)\)", ""),
    (r"^(eager fails: |no image: )?\w+(Error|Exception): ", r"\1"),
    (r"\b\w*[A-Z]\w*(For[A-Z]\w+|LMHead\w*|Attention\w*|Model|Decoder|Config|_V3)\b", "CLASS"),
    (r"^\w+: its", "CLASS: its"), (r"\b\d+\b", "N"),
    (r"layers of the kind [\w, ]+:", "layers of the kind KIND:"))
NOTE = 84  # characters of a note


def markdown(found: dict[str, dict[str, str]]) -> str:
    """Return the table, one line for all classes with the same cells, and the notes below it."""
    return laid_out({name: [(cell, note_of(worst(modes, names)) if cell == "refused" else "")
                            for cell, names in zip(cells(modes), COLUMNS.values(), strict=True)]
                     for name, modes in found.items()})


def laid_out(rows: dict[str, list[tuple[str, str]]]) -> str:
    """Lay out each class's cells and notes. A class's numbers are those of its notes."""
    notes: dict[str, int] = {}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, row in sorted(rows.items()):
        own = dict.fromkeys(notes.setdefault(note, len(notes) + 1) for _, note in row if note)
        numbers = f" ({', '.join(map(str, own))})" if own else ""
        groups.setdefault(tuple(cell for cell, _ in row), []).append(name + numbers)
    lines = [f"| {' | '.join(COLUMNS)} | classes |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [f"| {' | '.join(row)} | {', '.join(names)} |"
              for row, names in sorted(groups.items(), key=lambda group: -len(group[1]))]
    listed = [textwrap.fill(f"{number}. `{note}`", 98, subsequent_indent="   ",
                            break_long_words=False) for note, number in notes.items()]
    return "\n".join([*lines, "", *listed]) + "\n"


def write_table(path: str, found: dict[str, dict[str, str]]) -> None:
    """Put the table between the two marks of a document."""
    text = Path(path).read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    Path(path).write_text(f"{text[:begin]}\n\n{markdown(found)}\n{text[end:]}")


BEGIN, END = "<!-- the sweep's table -->", "<!-- end of the table -->"


def main() -> int:
    parser = argparse.ArgumentParser(description="eager against aule, for tiny models")
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    parser.add_argument("--json", metavar="FILE", help="write all verdicts")
    parser.add_argument("--markdown", metavar="FILE",
                        help=f"put the table between the two marks of FILE: {BEGIN} {END}")
    parser.add_argument("--jobs", type=int, default=1, help="classes at the same time (1)")
    options = parser.parse_args()
    daemon = PrivateDaemon(["--cache-folder", "none"])
    try:
        found = sweep(options.classes or classes(), daemon.socket, options.jobs, lambda name, modes:
                      print(name, *(modes[mode][:160] for mode in MODES), sep=" | ", flush=True))
    finally:
        daemon.stop()
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    if options.markdown:
        write_table(options.markdown, found)
    return int(any(kind_of(verdict) in ("differs", "error")
                   for modes in found.values() for verdict in modes.values()))


if __name__ == "__main__":
    sys.exit(main())
