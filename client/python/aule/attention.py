# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Attention over contiguous tensors: no cache, no batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import dtypes, errors
from ._args import choice, int32, pack_mask
from ._native import NULL, ffi, lib, milliseconds
from ._run import Geometry, Rope, Runs, Window, _at
from ._tensors import Array, array_of
from ._ticket import Ticket

if TYPE_CHECKING:
    from .session import Session

PATHS = {"auto": lib.AULE_PATH_AUTO, "contiguous": lib.AULE_PATH_CONTIGUOUS,
         "paged": lib.AULE_PATH_PAGED}
LAYOUTS = ("bshd", "bhsd")


class _Contiguous(Runs):
    """Fills the run inside one struct aule_attention_params."""

    def __init__(self, session: Session, geometry: Geometry) -> None:
        super().__init__(session._open(), session, geometry)
        self.whole = ffi.new("struct aule_attention_params *")
        self._params = ffi.addressof(self.whole[0], "run")
        self._bytes = ffi.buffer(self._params)

    def place(self, name: str, array: Array, order: tuple[int, ...], keep: list[Any]) -> bool:
        """Fill in an input of four dimensions; returns whether it lies in the arena."""
        arena = self._session._arena
        found = arena.look(array)
        if found.offset < 0:
            array = arena.copy_in(self._session._open(), array, found.code, name)
        self._write(name, array, order, keep)
        return found.offset >= 0

    def _write(self, name: str, array: Array, order: tuple[int, ...], keep: list[Any]) -> None:
        arena = self._session._arena
        found = arena.look(array)
        strides = tuple(found.strides[i] for i in order)
        packed = arena.pack(found, strides, name)
        self._bytes[_at[name]:_at[name] + len(packed)] = packed
        if array.shape[0] > 1:
            getattr(self._params, name).outer_stride = strides[0]
        keep.append(array)

    def place_output(self, array: Array, shape: tuple[int, ...], order: tuple[int, ...],
                     code: int, keep: list[Any], back: list[tuple[Array, Array]]) -> None:
        """Fill in `out`."""
        self._write("out", self._output("out", array, shape, code, back), order, keep)


def submit(session: Session, q: Array, k: Array, v: Array, out: Array | None = None, *,
           layout: str = "bshd", path: str = "auto", causal: bool = True, window: Window = None,
           soft_cap: float = 0.0, sinks: Any = None, alibi_slopes: Any = None, mask: Any = None,
           scale: float | None = None, lse: Array | bool | None = None, q_lens: Any = None,
           kv_lens: Any = None, num_splits: int = 0, rope: Rope | None = None,
           attention_chunk: int = 0, timeout: float | None = 10.0) -> Ticket:
    """Queue what `attention` does, and return its ticket; `ticket.path` says the way taken."""
    choice(layout, "layout", LAYOUTS)
    choice(path, "path", PATHS)
    session._sweep()
    tensors = [array_of(value, name) for value, name in ((q, "q"), (k, "k"), (v, "v"))]
    for name, value in zip("qkv", tensors, strict=True):
        if len(value.shape) != 4:
            raise errors.InvalidError(f"{name} has shape {tuple(value.shape)}; layout {layout} "
                                      "has 4 dimensions")
    order = (0, 1, 2, 3) if layout == "bshd" else (0, 2, 1, 3)
    sizes = [tuple(value.shape[i] for i in order) for value in tensors]
    (num, q_len, heads, dim), (num_k, kv_len, kv_heads, dim_k), (_, _, _, dim_v) = sizes
    if num_k != num or dim_k != dim or sizes[2][:3] != (num, kv_len, kv_heads):
        raise errors.InvalidError(
            f"q {sizes[0]}, k {sizes[1]} and v {sizes[2]} do not fit: [batch, length, heads, dim]")
    runs = _Contiguous(session, Geometry(kv_heads, dim, dim_v, dim_v, 1))
    runs._set_options((causal, window, soft_cap, scale, num_splits, 0.0, 0.0, rope,
                       attention_chunk))
    whole = runs.whole
    # Without sequences the run is that of one without queries and keys: all else is checked.
    whole.num_seqs, whole.q_len, whole.kv_len = (num, q_len, kv_len) if num else (1, 0, 0)
    whole.num_kv_heads, whole.head_dim, whole.head_dim_v = kv_heads, dim, dim_v
    whole.path = PATHS[path]
    whole.run.num_heads = heads
    keep: list[Any] = [runs, session._open()]
    lens = [(name, length, int32(given, name) if given is not None else None)
            for name, length, given in (("q_lens", q_len, q_lens), ("kv_lens", kv_len, kv_lens))]
    for name, _, array in lens:
        if array is not None:
            if array.shape != (num,):
                raise errors.InvalidError(f"{name} has {len(array)} entries for {num} sequences")
            keep.append(array)
            setattr(whole, name, ffi.from_buffer("int32_t[]", array) if num else NULL)
    if mask is not None:
        keys = lens[1][2]
        packed = pack_mask(mask, [(q_len, kv_len if keys is None else int(keys[i]))
                                  for i in range(num)])
        keep.append(packed)
        whole.mask, whole.mask_size = ffi.from_buffer(packed), len(packed)
    try:
        in_place, *_ = [runs.place(name, array, order, keep)
                        for name, array in zip("qkv", tensors, strict=True)]
    finally:
        session._arena.arrive()
    back: list[tuple[Array, Array]] = []
    shape = tuple((num, q_len, heads, dim_v)[i] for i in order)
    code = dtypes.code_of(tensors[0].dtype)
    target = runs._target(tensors[0], out, shape, in_place, code)
    runs.place_output(target, shape, order, code, keep, back)
    output: Any = target
    if lse is not None and lse is not False:
        output = target, runs._set_lse(tensors[0], lse, (num * q_len, heads),
                                       in_place, keep, back, None)
    runs._set_arrays(sinks, alibi_slopes, ())
    handle = session._open()
    ticket = Ticket(session, output, keep, back)
    ticket._queue(lambda ms, native: lib.aule_attention_submit_sized(
        handle.pointer, whole, ffi.sizeof(whole[0]), ms, native), timeout, session._open)
    return ticket


def attention(session: Session, q: Array, k: Array, v: Array, out: Array | None = None, *,
              wait: float | None = None, **options: Any) -> Any:
    """Compute attention over contiguous K and V, and return the output.

    layout "bshd": q [batch, q_len, num_heads, head_dim], k and v [batch, kv_len, num_kv_heads,
    head_dim]; "bhsd": heads before lengths. out as q, with V's head_dim. path: "contiguous" reads
    K and V in place, "paged" copies them into blocks of the pool; "auto": paged from the session's
    paged_threshold on. Both give the same bits. q_lens, kv_lens: [batch], rows that count; None:
    all. lse: True, or f32 [batch * q_len, num_heads]. wait: seconds; None: for ever. Other
    options: as in `Step.attend`. Queries are aligned with the last keys.

    Source: aule_attention() in aule.h.
    """
    milliseconds(wait, "wait")
    return submit(session, q, k, v, out, **options).wait(wait)
