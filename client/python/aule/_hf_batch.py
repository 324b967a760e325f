# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""transformers' generate_batch over a cache in the daemon, which processes share.

transformers schedules, and keeps no K and V: its manager gets the paged cache of _hf_paged. The
manager overrides public methods of transformers' own, and a model gets it by its own
`init_continuous_batching`. Nothing of transformers is patched.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from . import errors
from ._hf_attention import (
    BATCH_NAME,
    HARMLESS,
    NAME,
    OF_BATCHES,
    SERVED,
    of_one_type,
    options_of,
)
from ._hf_geometry import check_batches
from ._hf_identity import check_model
from .cache import Cache
from .session import Session

TESTED = "5.23.0"

try:
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.continuous_api import (
        ContinuousBatchingManager,
        ContinuousBatchProcessor,
    )
    from transformers.generation.continuous_batching.initialization import (
        update_cb_config_after_cache_creation,
    )
    from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

    from ._hf_paged import PagedCache
except ImportError as reason:
    raise errors.UnsupportedError(
        f"generate_batch of transformers {transformers.__version__} is not the one that aule knows "
        f"({reason}); aule was tested with {TESTED}") from None

# What this module overrides or calls. Another transformers may schedule in another way.
NEEDED = {
    PagedAttentionCache: ("can_store_request_tokens", "search_prefix_match", "free_blocks",
                          "extend_read_and_write_indices", "count_new_complete_blocks",
                          "mark_complete_blocks", "compute_free_capacity", "evict_cached_blocks",
                          "count_storable_requests", "prepare_fork_request",
                          "perform_cache_copy", "free_all_requests", "reset"),
    ContinuousBatchingManager: ("switch_to_cb_friendly_attn", "warmup", "start", "stop",
                                "destroy"),
}


def check_version() -> None:
    """Raise UnsupportedError if this transformers has not what this module needs."""
    missing = [f"{cls.__name__}.{name}" for cls, names in NEEDED.items() for name in names
               if not callable(getattr(cls, name, None))]
    if not hasattr(ContinuousBatchingConfig(), "page_size"):
        missing.append("ContinuousBatchingConfig.page_size")
    if missing:
        raise errors.UnsupportedError(
            f"transformers {transformers.__version__} has no {', '.join(missing)}; aule's "
            f"generate_batch was tested with {TESTED}")


def batch_attention_forward(module: Any, query: Any, key: Any, value: Any,
                            attention_mask: Any = None, dropout: float = 0.0,
                            scaling: float | None = None, cache: Any = None,
                            **options: Any) -> tuple[Any, None]:
    """Compute one layer of generate_batch; returns (out [1, T, Hq, D], None)."""
    if not isinstance(cache, PagedCache):
        raise errors.UnsupportedError(
            f"{type(module).__name__} does not hand generate_batch's cache to its attention: "
            f"generate() with a SharedCache may serve the model; {BATCH_NAME!r} is for "
            "generate_batch inside of aule.hf.share_batches()")
    run = options_of(module, (query, key, value), dropout, scaling, options,
                     SERVED | HARMLESS | OF_BATCHES)
    tensors = of_one_type((query, key, value))
    return cache.attend(module, *tensors, attention_mask, options.get("sliding_window"), run), None


class _Manager(ContinuousBatchingManager):
    """A manager of transformers with a cache of aule."""

    def __init__(self, owner: SharedBatches, batching: Any, **options: Any) -> None:
        self._owner = owner
        self._made: PagedCache | None = None
        super().__init__(continuous_batching_config=_checked(batching), **options)
        if self.distributed_helper.tp_size > 1:
            raise errors.UnsupportedError(
                f"the model lies on {self.distributed_helper.tp_size} devices: aule serves one")

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        """Switch to the attention that reads the batch; transformers makes no mask for it."""
        model.set_attn_implementation(BATCH_NAME)

    def warmup(self) -> None:
        """Make the batch processor. There are no graphs to capture."""
        self._prepare()
        self.warmed_up = True

    def start(self) -> None:
        """Start the thread that generates."""
        self._prepare()
        super().start()

    def stop(self, block: bool = True, timeout: float | None = None,
             keep_for_next_session: bool = False, hard_stop: bool = False) -> None:
        """End the thread. No manager is kept for later: a new one costs nothing."""
        super().stop(block=block, timeout=timeout, hard_stop=hard_stop)
        if not self.is_running():
            self._settle()

    def destroy(self) -> None:
        """End the thread, and what stop() has left because the thread went on."""
        super().destroy()
        if self._made is not None:
            self._settle()

    def _settle(self) -> None:
        """Undo what _prepare() has done. The thread has ended."""
        self.model.set_attn_implementation(self._owner._attentions)
        self.batch_processor = None
        made, self._made = self._made, None
        if made is not None:
            self._owner._done(made)

    def _prepare(self) -> None:
        if self.batch_processor is not None or self.is_running():
            return
        self._settle()  # for a thread that stop() did not wait for
        try:
            self.switch_to_cb_friendly_attn(self.model)
            self.batch_processor = self._processor()
        except BaseException:
            self._settle()
            raise

    def _processor(self) -> ContinuousBatchProcessor:
        batching = self.continuous_batching_config
        cache = self._made = self._owner._paged(self.model, batching,
                                                forks=self.num_return_sequences > 1)
        self._use_prefix_sharing = cache.use_prefix_sharing
        update_cb_config_after_cache_creation(cb_config=batching, num_blocks=cache.num_blocks,
                                              max_batch_tokens=cache.max_batch_tokens)
        scheduler_of: Any = _checking(SCHEDULER_MAPPING[batching.scheduler_type])
        scheduler = scheduler_of(
            cache=cache, safety_margin=batching.safety_margin,
            max_requests_per_batch=batching.max_requests_per_batch)
        return ContinuousBatchProcessor(
            cache=cache, config=self.model.config.get_text_config(),
            generation_config=self.generation_config, continuous_batching_config=batching,
            logit_processor=self.logit_processor, input_queue=self.input_queue,
            cancel_queue=self.cancel_queue, output_router=self.output_router,
            background_thread_status=self.background_thread_status,
            model_device=self.model.device, model_dtype=self.model.dtype, scheduler=scheduler,
            distributed_helper=self.distributed_helper)


def _attentions(model: Any) -> dict[str, str]:
    """Return what `set_attn_implementation` takes to give each part its own attention."""
    config = model.config
    parts = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    return {"": config._attn_implementation,
            **{name: part._attn_implementation for name, part in parts.items()
               if part is not None and part._attn_implementation is not None}}


def _checking(scheduler: Any) -> Any:
    """Return a scheduler that refuses a request which the cache cannot serve; the others go on."""

    class Scheduler(scheduler):
        """A scheduler of transformers."""

        def add_waiting_request(self, state: Any) -> None:
            """Take a request. An exception is this request's error."""
            self.cache.check_request(state)
            super().add_waiting_request(state)

    return Scheduler


def _checked(batching: Any) -> Any:
    """Return a configuration without what aule cannot serve.

    UnsupportedError: it was asked for. InvalidError: there is no such scheduler.
    """
    batching = copy.deepcopy(batching) if batching is not None else ContinuousBatchingConfig()
    graphs = batching.use_cuda_graph
    wrong = {"use_cuda_graph": any(graphs) if isinstance(graphs, tuple) else graphs,
             "use_async_batching": batching.use_async_batching,
             "cpu_offload_space": batching.cpu_offload_space,
             "default_compile_level": batching.default_compile_level,
             "varlen_compile_config": batching.varlen_compile_config,
             "decode_compile_config": batching.decode_compile_config,
             "q_padding_interval_size": batching.q_padding_interval_size,
             "kv_padding_interval_size": batching.kv_padding_interval_size}
    given = [f"{name} = {value}" for name, value in wrong.items() if value]
    if given:
        raise errors.UnsupportedError(
            f"{', '.join(given)}: aule's steps need the ids of all tokens and no padding; leave it "
            "out of continuous_batching_config")
    if batching.scheduler_type not in SCHEDULER_MAPPING:
        raise errors.InvalidError(f"scheduler_type = {batching.scheduler_type!r} is none of "
                                  f"{', '.join(SCHEDULER_MAPPING)}")
    batching.use_cuda_graph = batching.use_async_batching = False
    batching.cpu_offload_space = 0.0
    batching.max_blocks_per_request = 0
    return batching


class SharedBatches:
    """generate_batch of one model over a cache in the daemon; `aule.hf.share_batches` makes it.

    One generate_batch at a time. close() or `with` gives the model its own generate_batch back.
    """

    def __init__(self, cache: Cache, owns_cache: bool, model: Any, publish: bool,
                 extra_key: bytes | str, timeout: float | None) -> None:
        check_version()
        check_batches(model)
        check_model(cache, model)
        if "init_continuous_batching" in model.__dict__:
            raise errors.InvalidError("this model's generate_batch is shared already: close what "
                                      "share_batches() returned first")
        if model.config._attn_implementation != NAME:
            raise errors.InvalidError(
                f"the model's attention is {model.config._attn_implementation!r}: call "
                f"aule.hf.register() and model.set_attn_implementation({NAME!r})")
        self._cache, self._owns_cache, self._model = cache, owns_cache, model
        self._attentions = _attentions(model)  # as they were, of all parts of the model
        self._options: dict[str, Any] = {"publish": publish, "extra_key": extra_key,
                                         "timeout": timeout}
        self._found = self._asked = 0
        model.init_continuous_batching = self._init

    @property
    def cached(self) -> int:
        """How many tokens of the prompts needed no computing, of all calls that have ended."""
        return self._found

    @property
    def prompted(self) -> int:
        """How many tokens the prompts had."""
        return self._asked

    def _init(self, generation_config: Any = None, continuous_batching_config: Any = None,
              workload_hints: Any = None) -> _Manager:
        """Be the model's init_continuous_batching."""
        config = self._model.generation_config if generation_config is None else generation_config
        if config.eos_token_id is None:
            config = copy.deepcopy(config)
            config.eos_token_id = -1  # what transformers takes for none
        before = _attentions(self._model)  # others if a manager is running
        try:
            with torch.no_grad():
                return _Manager(self, continuous_batching_config, model=self._model,
                                generation_config=config, workload_hints=workload_hints)
        except BaseException:
            self._model.set_attn_implementation(before)
            raise

    def _paged(self, model: Any, batching: Any, forks: bool) -> PagedCache:
        options = {**self._options, "publish": self._options["publish"]
                   and batching.allow_block_sharing}
        return PagedCache(self._cache, model.config.get_text_config(decoder=True), batching,
                           model.device, model.dtype, forks=forks, **options)

    def _done(self, cache: Any) -> None:
        cache.free_all_requests()
        self._found += cache.found
        self._asked += cache.asked

    def close(self) -> None:
        """Give the model its own generate_batch back. A second call does nothing."""
        if self._model.__dict__.get("init_continuous_batching") == self._init:
            del self._model.init_continuous_batching
            if self._model.config._attn_implementation == BATCH_NAME:  # a manager was not stopped
                self._model.set_attn_implementation(self._attentions)
        if self._owns_cache:
            self._cache.close()

    def __enter__(self) -> SharedBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def share(where: Session | Cache, model: Any, **options: Any) -> SharedBatches:
    """Do what `aule.hf.share_batches` says."""
    from ._hf_cache import open_cache

    owns = isinstance(where, Session)
    cache = open_cache(where, model) if isinstance(where, Session) else where
    try:
        return SharedBatches(cache, owns, model, **options)
    except BaseException:
        if owns:
            cache.close()
        raise
