# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""vLLM's metadata of a step as aule's. No attention backend: that needs vLLM to be tested.

`arrays_of` takes the CommonAttentionMetadata of vllm/v1/attention/backend.py, or whatever has its
fields. It imports nothing of vLLM. Any thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import errors

FIELDS = ("query_start_loc", "seq_lens", "num_reqs", "num_actual_tokens", "max_query_len",
          "max_seq_len", "block_table_tensor", "slot_mapping")


class StepArrays(NamedTuple):
    """`arrays` are keyword arguments of `cache.batch` and `session.batch`; `options` of `attend`.

    num_tokens: rows of q, k, v and out that count; vLLM may pad these tensors behind them.
    """

    arrays: dict[str, Any]
    options: dict[str, Any]
    num_tokens: int


def arrays_of(metadata: Any) -> StepArrays:
    """Convert vLLM's CommonAttentionMetadata.

    query_start_loc [num_reqs + 1], seq_lens [num_reqs], block_table_tensor [num_reqs, columns] and
    slot_mapping [num_actual_tokens] may be longer: graphs pad them. The counts may be those of a
    padded step, too: the last entry of query_start_loc says how many tokens there are, and padded
    requests have none. Arrays of the CPU are taken where the metadata has them. Blocks have the
    cache's block_size on both sides.

        step = aule.vllm.arrays_of(metadata)
        rows = slice(step.num_tokens)
        with cache.batch(**step.arrays) as batch:
            out[rows] = batch.attend(layer, q[rows], k[rows], v[rows], **step.options)

    InvalidError: a field is missing, or shorter than its counts say; or more tokens than
    num_actual_tokens.
    """
    missing = [name for name in FIELDS if getattr(metadata, name, None) is None]
    if missing:
        raise errors.InvalidError(f"{type(metadata).__name__} has no {', '.join(missing)}; vLLM's "
                                  "CommonAttentionMetadata has")
    seqs, most = int(metadata.num_reqs), int(metadata.num_actual_tokens)
    starts = _first(_host(metadata, "query_start_loc"), seqs + 1, "query_start_loc")
    tokens = int(starts[seqs])
    if tokens > most:
        raise errors.InvalidError(f"query_start_loc[{seqs}] = {tokens} is above num_actual_tokens "
                                  f"= {most}")
    arrays = {"cu_seqlens_q": starts,
              "seq_lens_kv": _first(_host(metadata, "seq_lens"), seqs, "seq_lens"),
              "block_table": _first(metadata.block_table_tensor, seqs, "block_table_tensor"),
              "slot_mapping": _first(metadata.slot_mapping, tokens, "slot_mapping"),
              "max_seqlen_q": int(metadata.max_query_len),
              "max_context_len": int(metadata.max_seq_len)}
    return StepArrays(arrays, {"causal": bool(getattr(metadata, "causal", True))}, tokens)


def _host(metadata: Any, name: str) -> Any:
    """Return the CPU's copy of an array if the metadata has one: reading it waits for no GPU."""
    copied = getattr(metadata, f"{name}_cpu", None)
    return getattr(metadata, name) if copied is None else copied


def _first(array: Any, count: int, name: str) -> Any:
    if len(array) < count:
        raise errors.InvalidError(f"{name} has {len(array)} entries; the metadata's counts need "
                                  f"{count}")
    return array[:count]
