# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The paged cache that aule gives transformers' continuous batching: its requests are sequences.

A prefix match is a look-up in the daemon, and admission a reservation there. It overrides public
methods of transformers' cache. The thread of the manager calls it.
"""

from __future__ import annotations

from typing import Any, cast

from transformers.generation.continuous_batching.cache import PagedAttentionCache

from . import errors
from ._hf_attention import BATCH_NAME
from ._hf_geometry import check_rope, check_shape, check_window, windows_of
from ._hf_mask import pattern_of_batch
from .cache import Cache
from .sequence import Sequence, Step

MOST_TOKENS = 8192  # of a batch, as in transformers


class _Layers:
    """What transformers asks of a group of layers. Here all layers of a model are one group."""

    index = 0
    layer_type = "full_attention"
    read_trash_index = write_trash_index = 0
    blocks_per_sector = 1

    def __init__(self, owner: PagedCache) -> None:
        self._owner = owner
        self.tokens_per_page = owner.cache.block_size
        self.bytes_per_block = owner.cache.state()["block_bytes"]
        self.num_blocks = owner.num_blocks
        self.block_table: dict[str, list[int]] = {}  # the daemon has them

    def get_seqlen_k(self, past_length: int, query_length: int) -> int:
        """Return the number of keys."""
        return past_length + query_length

    def needs_new_blocks(self, request_id: str, past_length: int, query_length: int) -> int:
        """Return how many blocks the next tokens of a request need that it has not."""
        sequence = self._owner.sequences.get(request_id)
        had = sequence.num_blocks if sequence is not None else 0
        return max(0, -(-(past_length + query_length) // self.tokens_per_page) - had)


class _Pool:
    """What transformers asks of free memory; blocks need no sectors here."""

    def try_to_free_sectors(self) -> None:
        """Do nothing."""


class PagedCache(PagedAttentionCache):
    """A paged cache whose requests are sequences over a cache of aule. It allocates no tensor."""

    def __init__(self, cache: Cache, config: Any, batching: Any, device: Any, dtype: Any, *,
                 forks: bool, publish: bool, extra_key: bytes | str,
                 timeout: float | None) -> None:
        # Not that of the base class, which allocates K and V.
        self.cache = cache
        self.config, self.device, self.dtype = config, device, dtype
        self.forks = forks  # prompts have several texts each
        self.publish, self.extra_key, self.timeout = publish, extra_key, timeout
        self.sequences: dict[str, Sequence] = {}
        self.found = self.asked = 0  # tokens of prompts
        self._counted: set[str] = set()  # requests whose prompts are in these, until they end
        self._delayed: set[str] = set()  # requests that are about to be put back into the queue
        self._entries: list[tuple[Sequence, int]] = []  # of the next forward pass
        self._step: Step | None = None
        self._given: dict[int, tuple[Any, Any]] = {}  # K and V of each layer of this step
        self._windows = windows_of(config)
        self._key: bytes | None = None  # with one look at the weights for this round
        self._full = False  # in this round of the scheduler no block was free
        state = cache.state()
        self.num_blocks = state["limit_blocks"]
        self.bytes_per_sector = state["block_bytes"]
        self.allow_block_sharing = self.use_prefix_sharing = batching.allow_block_sharing
        self.max_batch_tokens = batching.max_batch_tokens or self._most_tokens()
        # The block table's way is FlashAttention's. Reads need no index, so they cost no budget.
        self.max_blocks_per_request = self.max_decode_fast_path_length = 0
        self.read_cache_limit, self.max_tokens_read = 0, 1
        self.pool = cast(Any, _Pool())
        self.cache_allocators = cast(Any, {_Layers.layer_type: _Layers(self)})

    def _most_tokens(self) -> int:
        """Return how many tokens of a layer fit in half of the arena, up to MOST_TOKENS."""
        geometry = self.cache._geometry
        heads = 2 * self.config.num_attention_heads + 2 * geometry.num_kv_heads
        row = heads * geometry.head_dim * self.dtype.itemsize
        return int(max(1, min(MOST_TOKENS, self.cache.session.info["arena_size"] // 2 // row)))

    # ---- what the scheduler asks ----

    def check_request(self, state: Any) -> None:
        """Raise for a request that could never end. Its other requests would wait with it.

        InvalidError: it has no tokens. NoBlocksError: it is larger than the pool.
        UnsupportedError: its length changes the rotation of K.
        """
        prompt, new = len(state.initial_tokens), state.max_new_tokens or 1
        if not prompt:
            raise errors.InvalidError(f"request {state.request_id} has no tokens")
        blocks = -(-(prompt + new) // self.cache.block_size)
        if blocks > self.num_blocks:
            raise errors.NoBlocksError(
                f"request {state.request_id} needs {blocks} blocks for {prompt} tokens and {new} "
                f"new ones; the pool has {self.num_blocks} at most: lower max_new_tokens, or see "
                "--max-blocks and --memory-fraction of aule-daemon")
        check_rope(self.config, prompt + new)

    def compute_free_capacity(self, relative: bool = True) -> float:
        """Return the free part of the pool. Each round of the scheduler begins with this call."""
        self._full = False
        self._key = None
        self._entries.clear()
        state = self.cache.state()
        free = state["available_blocks"]
        return free / max(1, state["limit_blocks"]) if relative else free * state["block_bytes"]

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        """Make the sequence of a request; returns how many of its tokens are in the cache."""
        if self._full:
            return 0
        self._end(request_id)  # it waited; meanwhile others may have published blocks
        if self._key is None:
            self._key = self.cache._extra(self.extra_key)
        sequence = self.cache.sequence(prompt_ids, publish=self.publish, extra_key=self._key)
        self.sequences[request_id] = sequence
        # transformers holds the last token back until it has forked the request. A batch of such
        # requests alone would have no token, and models cannot compute that.
        if self.forks and 0 < sequence.computed == len(prompt_ids) - 1:
            sequence.truncate(len(prompt_ids) - 2)
        return sequence.computed

    def can_store_request_tokens(self, state: Any, request_len: int, dry_run: bool = False) -> bool:
        """Reserve blocks for the next tokens of a request. False: none are free."""
        if dry_run:
            available: int = self.cache.state()["available_blocks"]
            return request_len <= available * self.cache.block_size
        sequence = self.sequences.get(state.request_id)
        if sequence is None:
            if self._full:
                return False
            sequence = self.cache.sequence((), publish=False)
            self.sequences[state.request_id] = sequence
        past = state.current_len()
        _extend(sequence, state, past + request_len)
        # If only this request holds blocks here, other processes have the others: they may end.
        alone = not any(other.num_blocks for name, other in self.sequences.items()
                        if name != state.request_id)
        if not (self._reserve(sequence, request_len, 0)
                or (self._rest() and self._reserve(sequence, request_len, 0))
                or (alone and self._reserve(sequence, request_len, self.timeout))):
            self._full = True
            return False
        if state.request_id not in self._counted:
            self._counted.add(state.request_id)
            self.found, self.asked = self.found + past, self.asked + len(state.initial_tokens)
        return True

    def _reserve(self, sequence: Sequence, count: int, timeout: float | None) -> bool:
        try:
            self.cache.reserve([(sequence, count)], timeout=timeout)
        except (errors.NoBlocksError, errors.QuotaError):
            return False
        return True

    def _rest(self) -> bool:
        """Let go of the last step, whose batch still names blocks of requests that have ended."""
        step, self._step = self._step, None
        if step is not None:
            step.close()
            self.cache._forget(None)
        return step is not None

    def count_storable_requests(self, list_blocks_needed: list[dict[str, int]]) -> int:
        """Count the first requests that get all their blocks."""
        free = self.cache.state()["available_blocks"]
        for i, needed in enumerate(list_blocks_needed):
            free -= sum(needed.values())
            if free < 0:
                return i
        return len(list_blocks_needed)

    def count_new_complete_blocks(self, state: Any, request_len: int) -> dict[str, int]:
        """Return nothing: the next step publishes full blocks."""
        return {}

    def mark_complete_blocks(self, state: Any, complete_blocks: dict[str, int]) -> None:
        """Do nothing: the next step publishes full blocks."""

    def evict_cached_blocks(self) -> bool:
        """Return False: a reservation evicts what it needs."""
        return False

    def prepare_fork_request(self, src_state: Any, dst_req_ids: list[str],
                             copy_src_and_dst: Any) -> list[str]:
        """Fork a request; a shared block is copied when it is written."""
        for request_id in dst_req_ids:
            self.sequences[request_id] = self.sequences[src_state.request_id].fork()
            self._counted.add(request_id)
        return dst_req_ids

    def perform_cache_copy(self, copy_src_and_dst: Any) -> None:
        """Do nothing."""

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        """End the sequence of a request; its full blocks stay in the daemon.

        no_cache: the request has to wait again. transformers then calls this once more.
        """
        self._end(request_id)
        if no_cache:
            self._delayed.add(request_id)
        elif request_id in self._delayed:
            self._delayed.remove(request_id)
        else:
            self._counted.discard(request_id)

    def _end(self, request_id: str) -> None:
        sequence = self.sequences.pop(request_id, None)
        if sequence is not None:
            self._entries = [entry for entry in self._entries if entry[0] is not sequence]
            sequence.close()

    def free_all_requests(self, clear_ledgers: bool = False) -> None:
        """End all sequences, and the step that still names their blocks."""
        for request_id in list(self.sequences):
            self._end(request_id)
        self._counted.clear()
        self._delayed.clear()
        self._rest()

    def reset(self) -> None:
        """End all sequences."""
        self.free_all_requests()

    # ---- a forward pass ----

    def extend_read_and_write_indices(self, request_id: str, past_length: int, query_length: int,
                                      read_index: Any, write_index: Any) -> None:
        """Note a request of the next forward pass. The order is that of its tokens."""
        sequence = self.sequences[request_id]
        if sequence.computed != past_length:
            raise errors.UnsupportedError(
                f"request {request_id} has {sequence.computed} computed tokens, and transformers "
                f"goes on behind {past_length}: the model does not hand generate_batch's cache to "
                "its attention; generate() with a SharedCache may serve it")
        check_rope(self.config, past_length + query_length)
        if query_length:  # 0: a prompt of one token that is to be forked
            self._entries.append((sequence, query_length))

    def update(self, *_args: Any, **_options: Any) -> Any:
        """Raise UnsupportedError: K and V are in the daemon, and only aule's attention reads it."""
        raise errors.UnsupportedError("a layer reads K and V of a cache of aule, and its "
                                      f"attention is not {BATCH_NAME!r}")

    def attend(self, module: Any, query: Any, key: Any, value: Any, mask: Any,
               window: int | None, run: dict[str, Any]) -> Any:
        """Compute a layer: query [1, Hq, T, D], key and value [1, Hkv, T, D].

        mask, window: as for `pattern_of_batch`.
        """
        if self._entries:
            self._step = self.cache.step(self._entries, timeout=self.timeout)
            self._entries, self._given = [], {}
        if self._step is None or query.shape[2] != self._step.num_tokens:
            raise errors.InvalidError(f"{type(module).__name__} has {query.shape[2]} tokens; the "
                                      f"batch has {self._step.num_tokens if self._step else 0}")
        pattern = pattern_of_batch(mask, window, [
            rows.stop - rows.start for rows in self._step.rows])
        layer = self._layer_of(module, key, value)
        check_shape(type(module).__name__, layer, self.cache._geometry, key, value)
        check_window(type(module).__name__, self._windows[layer], pattern,
                     max(self._step._lengths))
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return self._step.attend(layer, q, k, v, **pattern._asdict(), **run)[None]

    def _layer_of(self, module: Any, key: Any, value: Any) -> int:
        """Return the layer whose K and V these are; layers may share them."""
        layer: int = module.layer_idx
        for known, (its_key, its_value) in self._given.items():
            if its_key is key and its_value is value:
                return known
        if layer in self._given:
            raise errors.UnsupportedError(
                f"{type(module).__name__} computes layer {layer} twice in a forward pass, with "
                "other K and V; aule keeps one K and V for each token and layer")
        self._given[layer] = key, value
        return layer


def _extend(sequence: Sequence, state: Any, count: int) -> None:
    """Append tokens of the request to its sequence, until it has `count`."""
    known = len(sequence)
    if known < count:
        prompt = len(state.initial_tokens)
        sequence.append([*state.initial_tokens[known:count],
                         *state.generated_tokens[max(0, known - prompt):max(0, count - prompt)]])
