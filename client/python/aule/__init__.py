# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""aule: attention over one paged KV cache that several processes share through aule-daemon.

    with aule.connect() as session:
        cache = session.cache("my-model", num_layers=32, num_kv_heads=8, head_dim=128)
        with cache.sequence(prompt) as sequence:
            step = cache.step([sequence])
            for layer in range(32):
                out = step.attend(layer, q, k, v)

A session connects to one daemon. Sessions that open a cache of the same name share its blocks:
`sequence.cached` tokens of a prompt need no computing, because another process has published them.
`python -m aule` says what is installed and whether a daemon answers.
"""

from . import errors
from ._claim import Claim
from ._cuda import CudaCopies
from ._default import default_session
from ._native import version as library_version
from ._run import Rope
from ._tensors import Copied
from ._ticket import RunResult, Ticket
from .batch import Batch
from .cache import Cache, drop_cache
from .errors import AuleError
from .flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from .group import Group
from .paged import attn_paged, page_attention
from .sequence import Sequence, Step
from .session import Session, connect
from .vulkan import flash_attention

__version__ = library_version()
__all__ = [
    "AuleError",
    "Batch",
    "Cache",
    "Claim",
    "Copied",
    "CudaCopies",
    "Group",
    "Rope",
    "RunResult",
    "Sequence",
    "Session",
    "Step",
    "Ticket",
    "attn_paged",
    "connect",
    "default_session",
    "drop_cache",
    "errors",
    "flash_attention",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "library_version",
    "page_attention",
]
