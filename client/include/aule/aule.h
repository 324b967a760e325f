/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The aule authors */

/*
 * aule.h - attention and a paged KV cache that several processes share through aule-daemon.
 *
 * The usual order of calls:
 *   at the start   aule_session_open(), aule_cache_open(), aule_tensor_create()
 *   a prompt       aule_prefix_lookup() takes the blocks that exist, aule_blocks_lease() the others
 *   a step         aule_batch_create() or, from the second step on, aule_batch_advance()
 *   a layer        write q, k and v into the arena, aule_run(), read `out` from the arena
 *   a full block   aule_prefix_publish() lets other sessions find it
 *   at the end     aule_batch_destroy(), aule_cache_close(), aule_session_close()
 * aule_run_layers() runs several layers by one call. K and V that lie in the arena need no cache:
 * aule_batch_create_local(), aule_attention(). sequence.h does the bookkeeping of blocks and steps.
 * Whole programs: examples/ and tools/worker.
 *
 * Chapters: statuses, element types, session, arena and tensors, device arena, caches, attached
 * pool, blocks, prefix cache, batches, runs, contiguous tensors, merging, blocks and K/V on the
 * GPU, monitor. Each begins with "---- ".
 *
 * Shapes are written [outer, ..., inner]; the innermost dimension is contiguous. Lengths count
 * tokens; sizes, offsets and strides count bytes.
 *
 * Status: a function that can fail returns an enum aule_status. aule_error() then has a sentence
 * with the values that were wrong. The comment of a call names its own statuses; those that many
 * calls share are explained below.
 *
 * Ownership: `open` and `create` give an object, which the caller ends by `close` or `destroy`.
 * Both take NULL. The end of a session ends everything that the session holds in the daemon. Close
 * or destroy its objects all the same, before or after the session: this frees the client's memory.
 *
 * Threads: any thread may call any function. One thread may close or destroy what another one uses:
 *   a call that has begun   keeps the memory of its objects until it returns. Closing the session
 *                           ends all its calls with AULE_DAEMON_GONE; closing a monitor does so,
 *                           too. Closing the session's last handle of a cache ends waits for blocks
 *                           and claims with AULE_NOT_FOUND. Runs of a batch that is destroyed
 *                           finish first. A sequence or a step ends when its call has returned.
 *   a call that begins      is refused: AULE_NO_SESSION for a session, AULE_INVALID for any other
 *                           object. Closing a second time does nothing. But a later object may get
 *                           the same address, as with file descriptors; so tell your other threads
 *                           before you close.
 * Pointers into the arena are invalid as soon as the session is closed or reconnects.
 *
 * Fork: in a child process, calls on objects that were opened before fork() return AULE_FORKED.
 * Closing such an object in the child frees memory, and the child's copy of the connection. The
 * child may open sessions of its own.
 *
 * The library never prints, never exits and installs no signal handler.
 */

/* Laid out by hand, one thought a line. */
/* clang-format off */
#ifndef AULE_AULE_H
#define AULE_AULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define AULE_API __attribute__((visibility("default")))
#else
#define AULE_API
#endif

/*
 * Struct sizes. A newer version of aule appends fields to its structs. Older programs run with the
 * newer library without a rebuild. To make that work, each function marked AULE_INLINE passes the
 * sizes of the program's structs to the function of the same name with _sized (sized.h).
 *   If the library is newer than the program, it writes no byte behind the program's struct. Fields
 *   that the program does not have count as 0, the default.
 *   If the library is older, it sets fields that it does not know to 0. A call that gives such a
 *   field another value returns AULE_UNSUPPORTED.
 * Before 1.0 the soname carries the minor version. The loader refuses to start a program whose
 * version the library no longer serves.
 *
 * To add a field, append it behind the struct's last byte, padding included. Its value 0 must mean
 * what older programs meant. These structs are members of others and never change: aule_tensor,
 * aule_ticket, aule_claim, aule_window, aule_rope, aule_table_entry. aule_run_params stays the last
 * member of aule_attention_params and aule_warm_params, and aule_batch_params the first of two of
 * aule_metadata.
 */
#define AULE_INLINE static inline

#ifdef __cplusplus
extern "C" {
#endif

#define AULE_VERSION_MAJOR 0
#define AULE_VERSION_MINOR 2
#define AULE_VERSION_PATCH 0

/* The library's version, such as "0.2.0". A static string. */
AULE_API const char *aule_version(void);

/* ---- statuses ---- */

enum aule_status {
    AULE_OK = 0,              /* success */
    AULE_INVALID = 1,         /* an argument is out of its range */
    AULE_UNSUPPORTED = 2,     /* this library, daemon or device does not do it */
    AULE_DENIED = 3,          /* the caller may not do this */
    AULE_NO_MEMORY = 4,       /* out of host, shared or device memory */
    AULE_NO_BLOCKS = 5,       /* the pool has no free block */
    AULE_QUOTA = 6,           /* the session's own limit is reached */
    AULE_NOT_HELD = 7,        /* a block is not held by this session */
    AULE_SEALED = 8,          /* a block is sealed; sealed contents never change */
    AULE_UNWRITTEN = 9,       /* a slot is needed that no run has written in its layer */
    AULE_DUPLICATE_SLOT = 10, /* a slot occurs twice in one batch */
    AULE_OUT_OF_RANGE = 11,   /* an id, a length or an offset points outside what it indexes */
    AULE_MISALIGNED = 12,     /* an offset or a stride is no multiple of 16 bytes (LSE: 4) */
    AULE_MISMATCH = 13,       /* the object exists with another identity, shape or element type */
    AULE_NOT_FOUND = 14,      /* no such object */
    AULE_LIMIT = 15,          /* a limit is reached; the sentence names its option */
    AULE_BUSY = 16,           /* too many unreaped tickets, or the object is in use */
    AULE_TIMEOUT = 17,        /* the deadline passed; the work may go on */
    AULE_MALFORMED = 18,      /* a message was truncated, corrupt or oversized */
    AULE_VERSION = 19,        /* the protocol versions do not match */
    AULE_NO_SESSION = 20,     /* the connection has no such session */
    AULE_EPOCH = 21,          /* the handle belongs to an earlier life of the daemon */
    AULE_DAEMON_GONE = 22,    /* the daemon is gone or cannot be reached */
    AULE_DEVICE_LOST = 23,    /* the GPU stopped; reopen the session */
    AULE_FORKED = 24,         /* the object was opened before fork(); a child must open its own */
    AULE_STOPPING = 25,       /* the daemon is stopping and takes no new work */
    AULE_INTERNAL = 26        /* a defect in aule; please report it */
};

/*
 * Statuses that every call on a session, a cache, a batch or a ticket may return:
 *   AULE_INVALID       a pointer is NULL or was closed, or timeout_ms is below -1
 *   AULE_NO_MEMORY     this process, the arena or the daemon has no memory for the call
 *   AULE_TIMEOUT       the daemon did not answer within the session's grace (see "deadlines")
 *   AULE_DAEMON_GONE   the connection is lost, or the last reconnect failed: reconnect
 *   AULE_NO_SESSION    the session was closed before the call, or an operator ended it
 *   AULE_EPOCH         the object is from before the last reconnect: close it
 *   AULE_STOPPING, AULE_DEVICE_LOST, AULE_FORKED, AULE_MALFORMED, AULE_INTERNAL: as above
 *
 * timeout_ms, in each of these calls: milliseconds to wait. 0: do not wait. -1: wait for ever.
 */

/* "NOT_HELD", and "a block is not held by this session". "UNKNOWN" for other values. Static. */
AULE_API const char *aule_status_name(enum aule_status status);
AULE_API const char *aule_status_text(enum aule_status status);

/*
 * The sentence of the calling thread's last failing call; "" if none has failed. The library owns
 * the string, which is valid until the thread's next call.
 */
AULE_API const char *aule_error(void);

/* ---- element types ---- */

enum aule_dtype {
    AULE_F32 = 1,
    AULE_F16 = 2,
    AULE_BF16 = 3,
    AULE_FP8_E4M3 = 4,
    AULE_FP8_E5M2 = 5,
    AULE_INT8 = 6
};
AULE_API const char *aule_dtype_name(enum aule_dtype dtype); /* "f16"; "unknown" for other values */
AULE_API size_t aule_dtype_size(enum aule_dtype dtype);      /* bytes; 0 for other values */

/* ---- session: the connection to one daemon, and its arena ---- */

struct aule_session;

struct aule_session_params {
    const char *socket;       /* path of the daemon's socket; NULL: $AULE_SOCKET, else the rule in
                                 docs/operating.md */
    const char *name;         /* shown by aule-ctl, up to 255 bytes; NULL: the process's name */
    const char *tenant;       /* up to 240 bytes; sessions share prefixes only with sessions of the
                                 same tenant and user id; NULL: "" */
    uint64_t arena_size;      /* bytes of shared memory for tensors; 0: 64 MiB */
    int timeout_ms;           /* for the whole handshake; also the grace for later answers (see
                                 "deadlines"); 0: 10 s; -1: for ever */
    uint32_t paged_threshold; /* keys: aule_attention() copies K and V into the pool if a sequence
                                 has more; 0: 2048 */
    int ring_spin_us;         /* ring lane only: microseconds, up to 1000000, that a waiting thread
                                 polls before it sleeps. One thread of a session polls at a time.
                                 0: $AULE_RING_SPIN, else 50 if the process may use 3 cores or
                                 more, else no polling; -1: no polling */
    uint64_t device_arena_size; /* bytes of GPU memory for tensors, which this process imports (see
                                 "device arena"); 0: none */
};

/*
 * Lanes. Two lanes lead to the daemon. They differ only in speed.
 *   ring lane   the commands that a step needs (schema/README.md lists them). They go over rings in
 *               the session's shared memory. There the library has 128 KiB of its own behind the
 *               arena, for commands other than runs and waits. The daemon must offer the lane, and
 *               the doorbell, a socket beside the daemon's, must be reachable.
 *   nng lane    all other commands go as messages over the daemon's socket. Commands of the ring
 *               lane also go this way if the ring or these 128 KiB are full.
 *
 * $AULE_LANE forces a lane. With "nng" the session uses messages only. With "ring" a session that
 * cannot have the ring lane is not opened:
 *   AULE_UNSUPPORTED   the daemon does not offer it
 *   AULE_VERSION       the daemon's rings have another version
 *   AULE_DAEMON_GONE   the doorbell cannot be reached
 *   AULE_NO_MEMORY     no file descriptor is left
 * Any other value, or a bad value of $AULE_RING_SPIN, is AULE_INVALID.
 *
 * Deadlines. A call waits for the daemon's answer for the session's grace, plus the call's own
 * timeout_ms if it has one.
 *   If a lease, a submission or a wait uses up its own timeout_ms, the daemon answers so, and the
 *   session goes on.
 *   If aule_cache_state() gets no answer, it returns AULE_TIMEOUT, and the session goes on.
 *   If any other call gets no answer, the daemon may have carried it out, and the result is lost.
 *   So the call ends the session, and the daemon takes back everything that the session has. The
 *   call returns AULE_TIMEOUT, and its sentence says so. The same happens after an answer that the
 *   library cannot read (AULE_MALFORMED) or has no memory for (AULE_NO_MEMORY). Pending calls of
 *   other threads and later calls return AULE_DAEMON_GONE until aule_session_reconnect().
 */

/*
 * Call this once a process; more sessions are allowed. Connects, shakes hands and maps the
 * session's shared memory. params may be NULL: all defaults. Ends with aule_session_close().
 * On any status but AULE_OK *session is NULL.
 * AULE_DAEMON_GONE: nothing listens at the path. AULE_TIMEOUT: the daemon is there, but the
 * handshake was not over after timeout_ms. AULE_DENIED: the daemon serves another user,
 * or what listens is neither this user's, root's nor $AULE_DAEMON_UID's (docs/operating.md).
 * AULE_VERSION: the sentence has both versions. AULE_LIMIT: --max-connections, --max-sessions or
 * --max-arena, --device-arenas. AULE_UNSUPPORTED: a device arena, and the device exports no
 * memory. AULE_NO_MEMORY: /dev/shm or the GPU's memory is too small, or this process has no file
 * descriptor left.
 * AULE_INVALID: timeout_ms, ring_spin_us or the path. AULE_MISMATCH, AULE_MALFORMED: the peer is no
 * daemon of this version. AULE_STOPPING. AULE_FORKED.
 */
AULE_INLINE enum aule_status aule_session_open(const struct aule_session_params *params,
                                               struct aule_session **session);

/*
 * Ends the session and frees it. Takes NULL. Pending calls of other threads return AULE_DAEMON_GONE
 * first; a pending aule_session_reconnect() returns AULE_NO_SESSION once its handshake is over. If
 * the daemon is there but does not answer, this waits for at most ten seconds.
 */
AULE_API void aule_session_close(struct aule_session *session);

/*
 * Call this after AULE_DAEMON_GONE. Connects and shakes hands anew, with the parameters of the
 * open, its timeout_ms included. A session that still lives is ended first, as by
 * aule_session_close().
 * Everything from before is gone. Calls with its caches, batches, tickets and tensors return
 * AULE_EPOCH; close or destroy them. Pointers into the arena are invalid.
 * Statuses: those of aule_session_open(). After a failure, except AULE_FORKED, the session has no
 * daemon and no arena. Calls on it return AULE_DAEMON_GONE; reconnect again, or close it.
 * If several threads call this, each makes a reconnect of its own, one after another.
 */
AULE_API enum aule_status aule_session_reconnect(struct aule_session *session);

struct aule_session_info {
    uint64_t session, epoch;
    uint64_t arena_size;      /* bytes */
    bool arena_imported;      /* the GPU uses the arena in place; else it is copied for each run */
    uint32_t max_tickets;     /* unreaped tickets */
    uint32_t max_batches;     /* live batches */
    uint64_t quota_blocks;    /* leased and held blocks; 0: the session has no limit of its own */
    uint64_t max_message;     /* bytes */
    uint32_t protocol_major, protocol_minor;
    char device_name[256];
    uint8_t device_uuid[16];
    uint32_t ring_entries;    /* requests in flight in the ring lane; 0: no ring lane */
    uint64_t device_arena_size; /* bytes; 0: no device arena */
};
/*
 * What the handshake said. The daemon is not asked, so this also works after the daemon has gone.
 * AULE_DAEMON_GONE: the last reconnect failed. AULE_FORKED. On failure *info is untouched.
 */
AULE_INLINE enum aule_status aule_session_info(struct aule_session *session,
                                               struct aule_session_info *info);

/* ---- arena and tensors ---- */

/*
 * A view of elements in the session's arena. Offset and strides are in bytes and multiples of 16,
 * so a slice of a fused QKV tensor works. In an LSE tensor they are multiples of 4.
 *
 * outer_stride is 0, or the distance between two sequences or two blocks. The call that takes the
 * tensor says which:
 *   0               [num_tokens, num_heads, head_dim]: the tokens of all sequences, one sequence
 *                   after another. Element (t, h, d) lies at offset + t * token_stride +
 *                   h * head_stride + d * aule_dtype_size(dtype).
 *   of a sequence   [num_seqs, ...]: token i of sequence s begins at
 *                   offset + s * outer_stride + i * token_stride.
 *   of a block      [num_blocks, ...]: token i of block b begins at
 *                   offset + b * outer_stride + i * token_stride.
 *
 * num_rows is how many tokens there are from `offset` on, in all sequences, blocks and layers. A
 * call that would use more is refused with both numbers (AULE_OUT_OF_RANGE), and nothing is queued.
 * num_rows 0, as in a tensor made by hand, says nothing: then a run is refused only if it would
 * leave the arena. If you change a tensor's offset or token_stride, set its num_rows anew, or to 0;
 * dimensions may change their order.
 * Not checked: `keys` and `values` of a run whose K and V are contiguous. They are only read.
 * The caller owns the bytes. A run reads or writes them until its ticket is done.
 */
enum aule_memory {
    AULE_MEMORY_ARENA = 0,    /* the session's arena of shared memory */
    AULE_MEMORY_DEVICE = 1    /* its device arena */
};
struct aule_tensor {
    uint32_t memory;          /* enum aule_memory; all tensors of a run lie in one */
    enum aule_dtype dtype;
    uint64_t offset;
    uint64_t token_stride, head_stride;
    uint32_t life;            /* which life of the session, counted from 1: set by
                                 aule_tensor_create(); 0: made by hand, valid in any life */
    uint32_t num_rows;        /* tokens; set by aule_tensor_create(); 0: unknown */
    uint64_t outer_stride;    /* 0: there is no outer dimension */
};

/*
 * Allocates `size` bytes of the arena, aligned to 256 bytes. Contents are undefined. `offset` may
 * be NULL; else *offset becomes the offset for a tensor that begins there. Ends with
 * aule_arena_free() or with the session.
 * AULE_NO_MEMORY: the arena has no gap of this size; the sentence says what is free. AULE_INVALID:
 * size is 0.
 */
AULE_API enum aule_status aule_arena_alloc(struct aule_session *session, uint64_t size, void **data,
                                           uint64_t *offset);
/*
 * Frees one allocation. Takes NULL. A pointer that is not the start of an allocation is ignored,
 * and aule_error() says so. Never pass a pointer from before a reconnect: another allocation may
 * begin there.
 */
AULE_API void aule_arena_free(struct aule_session *session, void *data);
/* Where offset 0 lies in this process. NULL after a failed reconnect and in a forked child. */
AULE_API void *aule_arena_base(struct aule_session *session);

/*
 * Allocates a dense [num_tokens, num_heads, head_dim] tensor as aule_arena_alloc() does. Rows of
 * head_dim elements must be multiples of 16 bytes; num_tokens may be 0.
 * Ends with aule_tensor_destroy() or with the session.
 * AULE_INVALID, AULE_MISALIGNED, AULE_OUT_OF_RANGE: the shape is not allowed. AULE_NO_MEMORY: as
 * aule_arena_alloc().
 */
AULE_API enum aule_status aule_tensor_create(struct aule_session *session, enum aule_dtype dtype,
                                             uint32_t num_tokens, uint32_t num_heads,
                                             uint32_t head_dim, struct aule_tensor *tensor);
/*
 * The same for an LSE tensor: f32 [num_rows, num_heads], for the `lse` of runs and the `lses` of
 * merges. num_heads may be any number above 0.
 */
AULE_API enum aule_status aule_tensor_create_lse(struct aule_session *session, uint32_t num_rows,
                                                 uint32_t num_heads, struct aule_tensor *tensor);
/* The tensor's first byte in this process. NULL if it is from before a reconnect. */
AULE_API void *aule_tensor_data(struct aule_session *session, const struct aule_tensor *tensor);
/*
 * Frees the memory of a tensor of aule_tensor_create() and zeroes *tensor. Takes NULL and a zeroed
 * tensor. Memory from before a reconnect is gone already. A tensor made by hand (life 0) is left
 * alone: the caller frees its memory.
 */
AULE_API void aule_tensor_destroy(struct aule_session *session, struct aule_tensor *tensor);

/* ---- device arena ---- */

/*
 * A session opened with device_arena_size has an arena in the GPU's memory. The daemon's kernels and
 * this process's kernels (CUDA's, or another Vulkan device's) use it in place, and nothing passes
 * through host memory. docs/gpu-workers.md says when that pays.
 *
 * Pattern: aule_device_map_cuda() once. For a tensor, aule_device_alloc() and a struct aule_tensor
 * by hand with memory = AULE_MEMORY_DEVICE; the CPU cannot reach its bytes. New memory is zeroed.
 *
 * Order: submit a run only after the work that writes its inputs, and the work that reads what its
 * outputs held before, has ended: wait for your stream or for an event. The daemon cannot see
 * streams. The outputs are there when the run's ticket is done; work that is launched afterwards
 * sees them.
 *
 * The memory stays valid in a process that has imported it, also after the daemon has died. It goes
 * back to the device when the session and all imports have ended.
 */

struct aule_device_export {
    int fd;                   /* OPAQUE_FD of Vulkan; the caller closes it */
    bool dedicated;           /* the import must say that the allocation is a dedicated one */
    uint64_t size;            /* bytes of the arena, which begins at byte 0 */
    uint64_t allocated;       /* bytes of the allocation, which the import must give as its size */
    uint8_t device_uuid[16];  /* import on the Vulkan or CUDA device of this UUID only */
};
/*
 * Opens a descriptor of the device arena, for importers other than CUDA. Each call opens another
 * one.
 * AULE_NOT_FOUND: the session has no device arena. AULE_DENIED, AULE_DAEMON_GONE: the export socket,
 * beside the daemon's, cannot be reached. AULE_MISMATCH: the daemon's name of this socket is not
 * valid; opening the session does not check it. On failure *export_ is untouched.
 */
AULE_INLINE enum aule_status aule_device_export(struct aule_session *session,
                                                struct aule_device_export *export_);

/*
 * Maps the device arena into this process's CUDA, in the primary context of a device, which torch
 * and the CUDA runtime use. A second call returns the same address. The mapping ends with the
 * session, which waits for the context's kernels. libcuda is loaded at run time.
 * cuda_device: as CUDA counts in this process; -1: the one that the daemon has. *base becomes the
 * device address of offset 0. mapped_device may be NULL; else *mapped_device is the CUDA device.
 * AULE_UNSUPPORTED: there is no libcuda, it is too old, or CUDA refuses the memory. AULE_MISMATCH:
 * the device is another GPU than the daemon's; the sentence has both UUIDs. AULE_NOT_FOUND and
 * others: as aule_device_export().
 */
AULE_API enum aule_status aule_device_map_cuda(struct aule_session *session, int cuda_device,
                                               void **base, int *mapped_device);

/*
 * Allocates `size` bytes of the device arena, aligned to 256 bytes; *offset is where they begin.
 * Contents are undefined. Ends with aule_device_free() or with the session. Free memory only after
 * your own kernels have passed: the next tensor may get it.
 * AULE_NO_MEMORY: the sentence says what is free. AULE_NOT_FOUND: the session has no device arena.
 */
AULE_API enum aule_status aule_device_alloc(struct aule_session *session, uint64_t size,
                                            uint64_t *offset);
/* An offset at which no allocation begins is ignored, and aule_error() says so. */
AULE_API void aule_device_free(struct aule_session *session, uint64_t offset);

/*
 * Lets frameworks allocate in the mapped device arena: aule_torch_alloc() and aule_torch_free() have
 * the form of torch's CUDAPluggableAllocator, behind a torch.cuda.MemPool. One session at a time may
 * do so for each CUDA device of the process. Ends with aule_torch_end() or with the session; memory
 * that is still allocated then stays mapped until it is freed.
 * AULE_NOT_FOUND: the arena is not mapped, see aule_device_map_cuda(). AULE_BUSY: another session
 * does so for this device; the sentence names the device.
 */
AULE_API enum aule_status aule_torch_begin(struct aule_session *session);
AULE_API void aule_torch_end(struct aule_session *session); /* does nothing if it has not begun */
/* NULL: no session has begun on this device, or its arena is full; aule_error() says which. */
AULE_API void *aule_torch_alloc(ptrdiff_t size, int cuda_device, void *stream);
AULE_API void aule_torch_free(void *pointer, ptrdiff_t size, int cuda_device, void *stream);

/* ---- caches ---- */

struct aule_cache;

/*
 * What a stored element of fp8 or int8 stands for. f32, f16 and bf16 take no scale.
 *   NONE             its own value
 *   PER_TENSOR       its value times k_scale or v_scale of the run
 *   PER_TOKEN_HEAD   its value times a scale of its token and KV head, which the block stores. The
 *                    write computes the scale so that the row's largest finite magnitude becomes
 *                    the type's largest.
 * A write divides by the scale and rounds to nearest, ties to even. 8-bit types saturate: e4m3 at
 * 448, e5m2 at 57344, int8 at 127 (and -127, never -128). f16 and bf16 overflow to infinity. NaN
 * stays NaN; in int8 it becomes 0.
 */
enum aule_scale_mode {
    AULE_SCALE_NONE = 0,
    AULE_SCALE_PER_TENSOR = 1,
    AULE_SCALE_PER_TOKEN_HEAD = 2
};

/*
 * The identity of a KV cache. Sessions of a tenant that open the same name must agree in every
 * field. Another tenant may give the name to another cache.
 */
struct aule_cache_params {
    const char *name;             /* 1 to 255 bytes */
    uint32_t num_layers;          /* 1 to 1024 */
    uint32_t num_kv_heads;
    uint32_t head_dim;            /* of K; a multiple of 8 up to 576 */
    uint32_t head_dim_v;          /* a multiple of 8 up to 512; 0: as head_dim */
    bool v_is_k_prefix;           /* MLA: V is the first head_dim_v elements of K and not stored */
    enum aule_dtype k_dtype, v_dtype; /* any; 0: f16 */
    enum aule_scale_mode scale_mode;
    uint32_t block_size;          /* tokens; a power of two from 8 to 256; 0: 32 */
    const void *fingerprint;      /* names the model, its revision and its RoPE; NULL: none */
    size_t fingerprint_size;      /* bytes, up to 64 */
    /*
     * Not 0: the cache has opaque blocks of so many bytes each, a multiple of 16. They are for an
     * engine that keeps K and V in pages of its own, and lets the daemon keep copies: the daemon
     * finds, shares, evicts and stores blocks, and never looks into them. All numbers above but
     * block_size are 0 then. Tokens are the words of keys: block_size of them (0: 8, a SHA-256) are
     * the key of one block. The tokens of a prefix are the keys of its blocks, one behind the other.
     * aule_blocks_import() and aule_blocks_export() move the bytes. Batches, and so runs, are
     * AULE_UNSUPPORTED, and so is aule_cache_attach().
     */
    uint64_t block_bytes;
};

/*
 * Opens the cache of this name, or creates it. A session may open one cache several times. Ends
 * with aule_cache_close().
 * AULE_MISMATCH: the name exists with another identity; the sentence has both values.
 * AULE_UNSUPPORTED: no shader for this shape or type. AULE_LIMIT: --max-caches, num_layers, or
 * block_bytes for --memory-fraction. AULE_INVALID: block_bytes, or what opaque blocks do not have.
 */
AULE_INLINE enum aule_status aule_cache_open(struct aule_session *session,
                                             const struct aule_cache_params *params,
                                             struct aule_cache **cache);
/*
 * Closes one handle. Takes NULL. When a session closes its last handle of a cache, it also releases
 * all its blocks and destroys all its batches of this cache. Published blocks stay cached in the
 * daemon.
 */
AULE_API void aule_cache_close(struct aule_cache *cache);

/* For admission control. free + leased + held + evictable + quarantined = total. */
struct aule_cache_state {
    uint64_t total_blocks;        /* the cache has memory for these now */
    uint64_t free_blocks;
    uint64_t leased_blocks;       /* one writer each */
    uint64_t held_blocks;         /* sealed; one holder or more */
    uint64_t evictable_blocks;    /* sealed; no holder ("cached"). A look-up or an eviction may take
                                     them */
    uint64_t quarantined_blocks;  /* the holder died while the GPU still used them */
    uint64_t limit_blocks;        /* what the cache could have if no other cache used the pool */
    uint64_t available_blocks;    /* what a lease could get now: free, evictable and growth */
    uint64_t block_bytes;         /* one block, all layers, K and V */
};
/*
 * The counts of one moment; other sessions may change them before this returns.
 * AULE_TIMEOUT: no answer within the grace; the session goes on, ask again. On failure *state is
 * untouched.
 */
AULE_INLINE enum aule_status aule_cache_state(struct aule_cache *cache,
                                              struct aule_cache_state *state);

/* ---- attached pool ---- */

/*
 * If the daemon runs with --export-pool, a process of its user can map the memory of a cache, and
 * its own kernels (CUDA's, or another Vulkan device's) read and write blocks in place. The daemon
 * keeps leases, the prefix cache, quotas and lifetimes. docs/gpu-workers.md says when that pays,
 * and what a process must not do: nothing stops it from writing blocks of others.
 *
 * Pattern: aule_cache_attach() once, and aule_cache_map_cuda() or aule_cache_export(). Lease blocks
 * or make steps as always. Launch kernels that write K and V into leased blocks and read held ones.
 * When they have ended, aule_cache_report() tells what was written; then it can be published.
 *
 * From aule_cache_attach() on, blocks that the session releases stay its own until it reports that
 * its kernels have passed. They count against its quota until then. So report regularly. Closing the
 * cache or the session says it, too: wait for your kernels before. Report what is written before
 * you fork a sequence, because the daemon copies the blocks that forks share.
 */

/* Where a block lies. All offsets and strides are bytes. */
struct aule_pool_info {
    uint32_t num_parts;           /* allocations that have the layers, for aule_cache_export() */
    uint32_t num_layers, num_blocks, block_size, num_kv_heads;
    uint32_t head_dim_k, head_dim_v;
    enum aule_dtype k_dtype, v_dtype;
    uint64_t block_stride;        /* from a block of a layer to the next one */
    /* Inside a block: K as [kv_head][token][dim] from its first byte, V likewise from v_offset. */
    uint64_t k_head_stride, k_token_stride;
    uint64_t v_offset, v_head_stride, v_token_stride;   /* v_offset 0: V is the first head_dim_v
                                                           elements of K */
    uint64_t scales_offset;       /* f32 [kv_head][token] of K, then of V; 0: there are none */
    uint8_t device_uuid[16];      /* import on the Vulkan or CUDA device of this UUID only */
};
/*
 * Attaches the session to the cache; a second call does nothing more. Waits until the memory is
 * made.
 * AULE_UNSUPPORTED: the daemon runs without --export-pool, or cannot watch this process.
 * AULE_DENIED: the process is of another user than the daemon. AULE_NO_MEMORY: the device has no
 * memory for the cache. AULE_BUSY: the memory was not made in time, or blocks are being zeroed; ask
 * again. On failure *info is untouched.
 */
AULE_INLINE enum aule_status aule_cache_attach(struct aule_cache *cache,
                                               struct aule_pool_info *info);

struct aule_pool_part {
    int fd;                       /* OPAQUE_FD of Vulkan; the caller closes it */
    bool dedicated;               /* the import must say that the allocation is a dedicated one */
    uint32_t first_layer, num_layers;
    uint64_t layer_stride;        /* bytes; layer first_layer + i begins at i * layer_stride */
    uint64_t allocated;           /* bytes of the allocation, which the import must give */
};
/*
 * Attaches the session, and opens a descriptor of allocation `part`, for importers other than CUDA.
 * AULE_OUT_OF_RANGE: there is no such part. AULE_DAEMON_GONE: the export socket cannot be reached.
 * Other statuses: those of aule_cache_attach(). On failure *part_info is untouched.
 */
AULE_INLINE enum aule_status aule_cache_export(struct aule_cache *cache, uint32_t part,
                                               struct aule_pool_part *part_info);
/*
 * Attaches the session, and maps all layers into this process's CUDA, as aule_device_map_cuda()
 * does. layers[0 .. num_layers) become the device addresses of block 0 of each layer. A second call
 * returns the same ones. The mapping ends with this handle of the cache, which waits for the
 * context's kernels; so close it after the last use of the memory.
 * Statuses: those of aule_cache_export() and aule_device_map_cuda().
 */
AULE_API enum aule_status aule_cache_map_cuda(struct aule_cache *cache, int cuda_device,
                                              void **layers, int *mapped_device);

#define AULE_PASSED_ALL UINT64_MAX
struct aule_report {
    const int64_t *slots;         /* [num_slots] written; negative ones are ignored */
    uint64_t num_slots;
    uint32_t first_layer, num_layers;   /* in these layers; num_layers 0: in all from first_layer */
    uint64_t passed;              /* a mark of an earlier report, 0, or AULE_PASSED_ALL */
};
/*
 * Reports what this process's kernels have done. Wait for them first (your stream, or an event):
 * the daemon believes it.
 * Slots: their K and V are there. Until all slots of a block are reported in all layers, the block
 * cannot be published, and runs that would read it are refused (AULE_UNWRITTEN).
 * passed: AULE_PASSED_ALL if no kernel of this process can still read a block that was released
 * before this call. A process that launches ahead uses marks instead: *mark stands for the releases
 * before this call. Give it as `passed` of a later report, when all kernels that were launched
 * before this call have ended. `mark` may be NULL.
 * AULE_INVALID: the session is not attached, or `passed` is no mark. AULE_OUT_OF_RANGE,
 * AULE_NOT_HELD, AULE_SEALED: a slot that the session may not write; nothing is reported then. Slots
 * of a block that was released, and has not passed yet, are allowed.
 * AULE_LIMIT: more slots than fit a message.
 */
AULE_INLINE enum aule_status aule_cache_report(struct aule_cache *cache,
                                               const struct aule_report *report, uint64_t *mark);

/* ---- blocks ---- */

/*
 * Leases `count` blocks of `cache` for this session; their contents are undefined.
 * timeout_ms: how long to wait for other sessions to release blocks; 0: do not wait (memory that
 * the pool is adding right now still counts); -1: for ever.
 * On AULE_OK block_ids[0..count) belong to this session until aule_blocks_release() or its end. On
 * any other status nothing is leased, and block_ids is untouched.
 * AULE_NO_BLOCKS: too few blocks came free in time. AULE_QUOTA: the session's own limit; this does
 * not wait. AULE_LIMIT: more than the pool can ever have, or than one message holds. AULE_INVALID:
 * count is 0.
 */
AULE_API enum aule_status aule_blocks_lease(struct aule_cache *cache, uint32_t count,
                                            int timeout_ms, int32_t *block_ids);

/*
 * Call with 1 before each part of a longer wait, and with 0 before the last: the daemon then counts
 * only the last refusal. Without it, the daemon counts and logs each part that is refused with
 * AULE_NO_BLOCKS. It holds for the calling thread. Returns the value that was set before.
 */
AULE_API int aule_wait_goes_on(int goes_on);

/*
 * Releases `count` blocks, leased or held. A block that two look-ups took needs two releases; one
 * call may name it twice. A released block stays in use until the last batch that names it, and the
 * last run over such a batch, is gone.
 * AULE_NOT_HELD, AULE_OUT_OF_RANGE: nothing was released; the sentence names the first bad id.
 */
AULE_API enum aule_status aule_blocks_release(struct aule_cache *cache, uint32_t count,
                                              const int32_t *block_ids);

/* ---- prefix cache ---- */

/* Whether to load blocks that the daemon keeps outside the GPU (--host-tier, --tier). */
enum aule_load {
    AULE_LOAD_AUTO,               /* if that is estimated to take less time than computing them */
    AULE_LOAD_ALWAYS,
    AULE_LOAD_NEVER
};
struct aule_prefix {
    const int32_t *tokens;        /* [num_tokens] */
    uint32_t num_tokens;
    const void *extra_key;        /* must be equal, too: LoRA, image hash, ...; NULL: none */
    size_t extra_key_size;        /* bytes, up to 256 */
    enum aule_load load;          /* only for look-ups */
};

/*
 * Call this once a prompt, before the lease. Finds the longest chain of full blocks that begins
 * `prefix` and that a session of the same tenant and user id has published. Looks at no more than
 * max_tokens tokens (0: all). Token ids are compared, not hashes alone.
 * block_ids has room for num_tokens / block_size ids. The first *num_blocks are filled; this
 * session now holds each of them, and releases it like any other.
 * If the whole prompt is found, run its last token again with slot -1 to get its output.
 * If the daemon loads blocks of the prompt from outside the GPU, the call returns once they are
 * there, or after two seconds with those that are. aule_prefix_claim() returns at once instead.
 * AULE_QUOTA: the session's own limit. On failure *num_blocks is 0 and nothing is held.
 */
AULE_INLINE enum aule_status aule_prefix_lookup(struct aule_cache *cache,
                                                const struct aule_prefix *prefix,
                                                uint32_t max_tokens, int32_t *block_ids,
                                                uint32_t *num_blocks);

enum aule_keep {
    AULE_KEEP_NORMAL,             /* evicted when memory is short, least recently used first */
    AULE_KEEP_PREFERRED,          /* evicted after all normal blocks of the tenant */
    AULE_KEEP_PINNED              /* not evicted; counts as held against the tenant's limit. The
                                     pin ends --tenant-timeout after the tenant's last session
                                     closed. */
};
/*
 * Says how the cached part of a prefix is kept from now on, also after this session. A block is
 * kept as the strictest keep among the prefixes that it is part of.
 * *num_tokens: tokens of the cached part; 0 if nothing of the prefix is cached. Without
 * AULE_OK it is 0. A later call with the same prefix replaces the keep; make it when as much of the
 * prefix is cached. Evicting or dropping the blocks ends it.
 * AULE_QUOTA: the pin would exceed the tenant's limit, or --tenant-pinned.
 */
AULE_INLINE enum aule_status aule_prefix_keep(struct aule_cache *cache,
                                              const struct aule_prefix *prefix,
                                              enum aule_keep keep, uint32_t *num_tokens);

/*
 * Claims let workers that get the same prompt at the same time compute it once. The first claim of
 * a block computes it, and the other claims wait for it. A claim covers the blocks that its look-up
 * has not found. Prompts that begin alike wait only for the blocks that they share. A claim ends:
 *   - when its session has published all of its blocks and their writes are done;
 *   - when aule_claim_wait() has returned all of them;
 *   - by aule_claim_release(), with the session, or with its last aule_cache_close().
 * Then the next oldest claim inherits each block.
 * A claim waits only for older claims, so claims alone cannot deadlock. A thread that waits with
 * one claim while another thread waits for its other claim needs the deadline. After it, compute
 * the blocks: nothing is wrong if two sessions compute the same block.
 * aule/sequence.h does all of this for sequences.
 */
struct aule_claim {
    uint64_t id;                  /* 0: nothing is claimed */
    uint32_t max_blocks;          /* full blocks of the prompt, as far as they are claimed */
    uint32_t num_blocks;          /* the first ones, which this session has got so far */
    uint32_t num_promised;        /* behind these: blocks that come without this session's help.
                                     Those after them are this session's to compute and publish */
};

/*
 * aule_prefix_lookup() that also claims the full blocks that are missing; claim->num_blocks is the
 * number of those found. Blocks that the daemon kept outside the GPU count as promised while it
 * loads them; if a load fails, they are the claim's to compute. If claim->id is 0, nothing is
 * missing. Otherwise: if claim->num_promised is not 0, call aule_claim_wait(), then compute the
 * rest and publish it. Until then the session may compute blocks behind the promised ones, or
 * anything else.
 * AULE_LIMIT also: the session's claims exceed --max-claimed-blocks. On failure *claim is zeroed.
 */
AULE_INLINE enum aule_status aule_prefix_claim(struct aule_cache *cache,
                                               const struct aule_prefix *prefix,
                                               uint32_t max_tokens, int32_t *block_ids,
                                               struct aule_claim *claim);

/*
 * Waits until the next block is there, or until it is this session's to compute because the claim
 * before has ended; at most timeout_ms milliseconds, 0 asks once, -1 waits for ever. The new blocks
 * are written to block_ids[claim->num_blocks] and behind, held, and counted in *claim. So
 * block_ids is the array of the look-up, with room for claim->max_blocks ids. A call returns as
 * soon as one block has come; call it again while claim->num_promised is not 0.
 * Call it before this session publishes blocks under the claim: it would get these, too.
 * AULE_TIMEOUT: no block came; the claim stays. AULE_NOT_FOUND: the claim has ended. AULE_QUOTA.
 * On failure *claim is as it was. Any thread, but one at a time for the same claim.
 */
AULE_API enum aule_status aule_claim_wait(struct aule_cache *cache, struct aule_claim *claim,
                                          int timeout_ms, int32_t *block_ids);

/*
 * Gives up the claim of the blocks from `num_blocks` on; 0 ends the claim. Blocks that the session
 * holds stay held. A claim that has ended is no error.
 */
AULE_API enum aule_status aule_claim_release(struct aule_cache *cache, struct aule_claim *claim,
                                             uint32_t num_blocks);

/*
 * Call this after the runs of all layers were submitted; there is no need to wait for them. Seals
 * the num_tokens / block_size full blocks of a prompt under their tokens. Look-ups find a block as
 * soon as its last write is done; if a write fails, they never find it. Sealed blocks can never be
 * written again.
 * block_ids names all blocks in order, those of the look-up included. The first ones may be -1: the
 * blocks that are published under these tokens. The session need not hold those, and gets no hold of
 * them; their entries stay -1. So an engine that lets a prefix go can publish what comes behind it.
 * If look-ups already find another block for the same tokens, block_ids[i] becomes that block, with
 * the same bits: this session now holds it, and the call has released the given one, once.
 * *num_existing (may be NULL) counts the exchanged blocks. If two sessions publish the same tokens
 * before their writes are done, each keeps its own blocks, and look-ups find one of the two.
 * AULE_NOT_FOUND: a block of a -1 is not published, or no longer. AULE_UNWRITTEN: a slot was not
 * written in every layer. AULE_NOT_HELD: not this session's. AULE_INVALID: a block occurs twice, or
 * is published under other tokens. AULE_QUOTA. On failure nothing is sealed, with one exception: if a
 * list of more than 2048 blocks names one that is published under other tokens, or a run of the
 * session fails or a block of a -1 is evicted meanwhile, blocks before that one may
 * be sealed. The session holds what it held before.
 */
AULE_INLINE enum aule_status aule_prefix_publish(struct aule_cache *cache,
                                                 const struct aule_prefix *prefix,
                                                 int32_t *block_ids, uint32_t *num_existing);

/* ---- batches ---- */

struct aule_batch;

/*
 * The metadata of one model step. The usual step sets num_seqs, max_blocks, cu_seqlens_q,
 * seq_lens_kv, block_table and slot_mapping, and leaves the rest 0. All arrays are copied. Arrays
 * that are too large for a message travel through the arena, which then needs room for them during
 * the call.
 * aule_metadata_varlen(), aule_metadata_tokens() and aule_metadata_append() make this struct from
 * other forms.
 *
 * T = cu_seqlens_q[num_seqs] is the number of rows of all sequences. q_len is the number of queries
 * of a sequence: its rows, or its entry of q_lens. seq_len is its entry of seq_lens_kv, which
 * counts the tokens that this batch's runs write, too.
 *
 * num_seqs 0 is refused (AULE_INVALID): skip such a step. A sequence without queries or without
 * keys is padding, which is allowed.
 * q_len may exceed seq_len only if all slots of the sequence are -1; otherwise AULE_INVALID. With
 * bottom-right alignment the first queries of such a sequence stand before key 0, so a causal run
 * gives them no key.
 * A position may be seq_len or more. Such a query still sees at most the seq_len keys, and a left
 * window hides more of them. ALiBi and RoPE use the position as given; RoPE uses it for the K that
 * the token writes, too. A negative position is AULE_OUT_OF_RANGE.
 * All keys must be written, in the layer of a run, from the first that a query of the sequence sees
 * to the last: by this run itself, by an earlier run, import or copy of the session, or before the
 * block was published. Otherwise the run is refused (AULE_UNWRITTEN). So is a gather or an export,
 * which reads seq_len keys of each sequence. Work counts from its submission on, and no more once
 * it has failed; zeroed slots do not count. A mask may hide any key, so runs of a batch with a mask
 * are not checked. There, and in K and V that lie in the arena, an unwritten key is read as it is:
 * its contents are undefined.
 */
struct aule_batch_params {
    uint32_t num_seqs;            /* at least 1 */
    uint32_t max_blocks;          /* columns of block_table */
    const int32_t *cu_seqlens_q;  /* [num_seqs + 1] sequence s has tokens cu_seqlens_q[s] up to
                                     cu_seqlens_q[s + 1]; begins with 0, never falls. Token t is row
                                     t, or row token_rows[t] */
    const int32_t *seq_lens_kv;   /* [num_seqs] keys of each sequence */
    const int32_t *block_table;   /* [num_seqs, max_blocks] block ids, -1: none; NULL if max_blocks
                                     is 0. A row may begin with -1 if each run has a left window
                                     that hides those keys from all its queries */
    const int64_t *slot_mapping;  /* [T] where each token's K and V go: block * block_size + offset;
                                     -1: nowhere; NULL: write nothing */
    const int32_t *positions;     /* [T] where each query stands among its sequence's keys; NULL:
                                     bottom-right aligned, query i at seq_len - q_len + i */
    const void *mask;             /* custom mask, which replaces causal; NULL: none. One part for
                                     each sequence, one after another, ceil(rows * seq_len / 8)
                                     bytes each. Bit i * seq_len + j of a part (least significant
                                     bit first) lets query i see key j */
    size_t mask_size;             /* bytes of all parts */
    uint32_t max_context_len;     /* no seq_len of this call may exceed it; later steps may; 0: no
                                     bound */
    uint32_t max_seqlen_q;        /* no q_len may exceed it; 0: no bound */
    const int32_t *q_lens;        /* [num_seqs] the first q_lens[s] rows of sequence s are queries.
                                     The others get out 0 and LSE -inf, and bottom-right alignment
                                     does not count them; NULL: all rows */
    const int32_t *token_rows;    /* [T] a permutation, for tokens that lie interleaved: the row of
                                     token t in q, k, v, out, lse, slot_mapping and positions; NULL:
                                     t. Excludes q_lens and outer strides */
    const int32_t *kv_starts;     /* [num_seqs] first row of each sequence in ragged K and V; only
                                     with contiguous K and V */
    const struct aule_batch *beside; /* this batch is another form of the step of that one, such as
                                        with a mask for some layers, and may write the same slots;
                                        NULL: none */
};

/*
 * Call this for the first step, and whenever sequences come or go; aule_batch_advance() does the
 * steps between. Checks the metadata once and keeps a reference on every block that it names. Ends
 * with aule_batch_destroy().
 * AULE_NOT_HELD: a block is not held by this session. AULE_SEALED: a slot lies in a sealed block.
 * AULE_DUPLICATE_SLOT: a slot occurs twice, or another live batch, not `beside`, writes it and has
 * not run yet. Once a batch has run, others may write its slots again, because runs of a session
 * are ordered. aule_kv_import() writes any slot at any time.
 * AULE_OUT_OF_RANGE, AULE_INVALID: an entry or a length; the sentence names it and its value.
 * AULE_INVALID also if `beside` is a batch of another session. AULE_EPOCH: also if `beside` was
 * made before a reconnect. AULE_NOT_FOUND: the daemon has no such cache or batch `beside`.
 * AULE_LIMIT: --max-batches, --max-batch-memory or --max-metadata.
 */
AULE_INLINE enum aule_status aule_batch_create(struct aule_cache *cache,
                                               const struct aule_batch_params *params,
                                               struct aule_batch **batch);
/* Takes NULL. Runs of the batch that are queued or in flight finish first, in the daemon. */
AULE_API void aule_batch_destroy(struct aule_batch *batch);

/* block_table[seq][column] becomes `block`; -1: none. */
struct aule_table_entry { uint32_t seq, column; int32_t block; };
/*
 * What changes from one step of the same sequences to the next. The number of sequences, the rows
 * of each, q_lens, token_rows, kv_starts and the shape of the table stay.
 */
struct aule_advance {
    const int32_t *seq_lens_kv;   /* [num_seqs]; NULL: each grows by its number of queries */
    const int64_t *slot_mapping;  /* [T]; NULL only for a batch without slots */
    const struct aule_table_entry *entries; /* [num_entries]; for one place the last entry counts */
    uint32_t num_entries;         /* at most as many as the table has */
    const int32_t *positions;     /* [T], for a batch with positions; NULL: each grows as its
                                     sequence does */
};

/*
 * Call this once a step, then aule_run() for each layer. Turns `batch` into the batch of the next
 * step. Runs that are queued or in flight keep the step before, so there is no need to wait for
 * them. Until these runs are over, the batch also keeps its references to the blocks that only the
 * step before names.
 * The cost grows with the sequences, tokens and entries given, not with the table. There are two
 * exceptions. A batch's first advance looks at the whole table. Replacing an entry that unfinished
 * runs can still read copies the table, unless the new entry is -1.
 * AULE_INVALID: the batch has a custom mask or no keys.
 * Other statuses: as aule_batch_create(). On failure the batch is as it was.
 * Threads: no other call may use the batch meanwhile.
 */
AULE_INLINE enum aule_status aule_batch_advance(struct aule_batch *batch,
                                                const struct aule_advance *advance);

/*
 * How K and V lie in the session's own arena. A batch over them needs no cache. Each run gives them
 * as its tensors `keys` and `values`, in one of two forms:
 *   block tensors   block_size is not 0. [num_blocks, block_size, num_kv_heads, head_dim]; the
 *                   outer stride is that of a block. They are read through block_table and written
 *                   through slot_mapping.
 *   contiguous      block_size is 0. There is no block table and no slot mapping. Key j of sequence
 *                   s is row kv_starts[s] + j; with an outer stride it is row j of sequence s.
 */
struct aule_kv_layout {
    uint32_t num_kv_heads;
    uint32_t head_dim, head_dim_v; /* as in aule_cache_params */
    bool v_is_k_prefix;
    enum aule_dtype k_dtype, v_dtype; /* 0: f16 */
    enum aule_scale_mode scale_mode;  /* none, or per tensor */
    uint32_t block_size;          /* tokens; a power of two from 8 to 256; 0: contiguous */
    uint32_t num_blocks;          /* of the block tensors; block ids are checked against it */
};
/*
 * Creates a batch over K and V in the arena. Statuses: as aule_batch_create(), and AULE_UNSUPPORTED
 * for a shape or type that has no shader.
 */
AULE_INLINE enum aule_status aule_batch_create_local(struct aule_session *session,
                                                     const struct aule_kv_layout *layout,
                                                     const struct aule_batch_params *params,
                                                     struct aule_batch **batch);

/*
 * Other forms of a step's metadata, turned into aule_batch_params. Call one of the functions below,
 * change `params` if needed, and pass it to a create. `params` points into `owned` and into the
 * caller's arrays; both must live until the create returns. Then call aule_metadata_finish(), which
 * also takes a zeroed struct.
 * These functions need no session. AULE_INVALID and AULE_OUT_OF_RANGE name the bad entry. On
 * failure *metadata is zeroed.
 */
struct aule_metadata {
    struct aule_batch_params params;
    void *owned;                  /* malloc'd */
};
AULE_INLINE void aule_metadata_finish(struct aule_metadata *metadata);

/*
 * Ragged contiguous K and V: sequence s has rows cu_seqlens_k[s] up to cu_seqlens_k[s + 1], and its
 * queries likewise. cu_seqlens_q and cu_seqlens_k are [num_seqs + 1]. max_seqlen_q and max_seqlen_k
 * are bounds that are checked; 0: no bound.
 */
AULE_INLINE enum aule_status aule_metadata_varlen(uint32_t num_seqs, const int32_t *cu_seqlens_q,
                                                  const int32_t *cu_seqlens_k,
                                                  uint32_t max_seqlen_q, uint32_t max_seqlen_k,
                                                  struct aule_metadata *metadata);

/*
 * Flattened tokens in any order. Each token names its sequence, its position there and its slot.
 * The function groups the tokens by sequence and keeps their order inside it; q, k, v and out stay
 * as they are. Positions must rise by one from each token of a sequence to the next. A sequence
 * without a token is padding.
 * With `repeats` a position may also stay the same, as for the siblings of a token tree. Then
 * seq_lens_kv must be given, and a custom mask must follow: params.mask_size says its size, and a
 * create refuses the batch until params.mask is set.
 */
struct aule_token_form {
    uint32_t num_tokens, num_seqs;
    const int32_t *seq_ids;       /* [num_tokens] from 0 to num_seqs - 1 */
    const int32_t *positions;     /* [num_tokens] from 0 */
    const int64_t *slot_mapping;  /* [num_tokens] or NULL */
    const int32_t *block_table;   /* [num_seqs, max_blocks] */
    uint32_t max_blocks;
    const int32_t *seq_lens_kv;   /* [num_seqs]; NULL: the last position of each sequence + 1 */
    bool repeats;
};
AULE_INLINE enum aule_status aule_metadata_tokens(const struct aule_token_form *form,
                                                  struct aule_metadata *metadata);

/*
 * Decode with in-place append. Sequence s has cache_seqlens[s] tokens in its blocks and one new
 * token. A run writes the new K and V behind them and attends to all. cache_seqlens is [num_seqs],
 * block_table [num_seqs, max_blocks]. block_size is that of the cache or layout, in tokens.
 * AULE_OUT_OF_RANGE: the table has no block for a new token.
 */
AULE_INLINE enum aule_status aule_metadata_append(uint32_t num_seqs, const int32_t *cache_seqlens,
                                                  const int32_t *block_table, uint32_t max_blocks,
                                                  uint32_t block_size,
                                                  struct aule_metadata *metadata);

/* ---- runs ---- */

struct aule_window { bool enabled; int32_t left, right; }; /* in tokens; -1: unbounded */

/*
 * Rotary embedding (RoPE). A run rotates q when it reads it, and k when it writes it: blocks hold
 * rotated K. Pair n of a head's first `dim` elements turns by position * frequency n, in radians:
 * (x, y) becomes (x cos - y sin, x sin + y cos). frequency n = theta ^ (-2 n / dim). The result is
 * rounded to q's type, as if the worker had rotated q and k itself.
 */
struct aule_rope {
    uint32_t dim;                 /* elements of each head; even, up to head_dim; 0: no rotation */
    float theta;                  /* 0: 10000 */
    bool interleaved;             /* pairs are elements (2n, 2n + 1); false: (n, n + dim / 2), as in
                                     NeoX and Hugging Face's Llama */
    const double *frequencies;    /* [dim / 2] radians a position, in place of theta (scaled RoPE);
                                     NULL: by theta */
};

/*
 * One layer of a batch. T, q_len and seq_len are those of its aule_batch_params.
 *
 * Types: q, k, v and out have one element type, which is f32, f16 or bf16.
 * Overlap: `out` must not overlap q, nor may any tensor that the run writes overlap another of its
 * tensors (AULE_INVALID). An overlap goes unnoticed only if both tensors have gaps and their
 * strides differ. q, k and v may overlap each other.
 * Range: scale (also times k_scale), logits_soft_cap, slopes and sinks are multiplied by log2(e).
 * The products must be finite in f32, so the values are at most 2.3e38 (AULE_INVALID).
 * LSE: f32 [T, num_heads]. offset and token_stride are multiples of 4, head_stride is 0 or 4, and
 * there is no outer stride. aule_tensor_create_lse() makes such a tensor.
 */
struct aule_run_params {
    uint32_t layer;               /* from 0; 0 if K and V lie in the arena */
    uint32_t num_heads;           /* query heads; a multiple of num_kv_heads */
    struct aule_tensor q;         /* [T, num_heads, head_dim] */
    struct aule_tensor k, v;      /* the new K [T, num_kv_heads, head_dim] and V [..., head_dim_v];
                                     read only if the batch has a slot mapping. MLA: no v */
    struct aule_tensor out;       /* [T, num_heads, head_dim_v] */
    float scale;                  /* 0: 1 / sqrt(head_dim) */
    bool causal;                  /* the query at position p sees keys j <= p; a custom mask in the
                                     batch replaces this */
    struct aule_window window;    /* the query at position p sees keys p - left <= j <= p + right;
                                     causal or the mask holds as well */
    float logits_soft_cap;        /* s = cap * tanh(s / cap), after the scale and before ALiBi; 0:
                                     none, else at least 2^-126 */
    float mask_value;             /* changes nothing, because excluded keys weigh 0. Accepted: 0,
                                     -inf and values <= -1e30; others are AULE_INVALID */
    const float *alibi_slopes;    /* [num_heads]: s -= slope * |p - j|; NULL: none */
    const float *sinks;           /* [num_heads]: exp(sink) joins the row's sum, without a value;
                                     -inf: none for this head; NULL: none */
    struct aule_tensor lse;       /* natural log of the row's sum, its sink included; -inf for a row
                                     that sees no key and has no sink; dtype 0: not wanted */
    uint32_t num_splits;          /* split-KV: a sequence's keys are cut into parts, which run side
                                     by side and are merged. 0: by a rule of q_len and seq_len
                                     alone; 1: one part; n: at most n parts, whose length is rounded
                                     up to a multiple of 256 keys. The result's last bits depend on
                                     num_splits. AULE_LIMIT: the parts exceed --max-scratch, or one
                                     part exceeds --max-run-work */
    struct aule_rope rope;
    float k_scale, v_scale;       /* AULE_SCALE_PER_TENSOR: value = stored element * scale; 0: 1 */
    struct aule_tensor keys, values; /* K and V of all tokens, if they lie in the arena; the layout
                                        says shape and type */
    uint32_t max_queue_ms;        /* 0: no limit. Else: if the run has had its ticket for at least
                                     this long when the turn of its first layer comes, it ends with
                                     AULE_LIMIT, and writes and computes nothing */
    bool lse_base2;               /* `lse` is to base 2, as FlashInfer's functions return and merge
                                     it. AULE_INVALID without `lse` */
    uint32_t attention_chunk;     /* tokens; 0: none. Else the keys are cut into chunks of so many,
                                     from key 0, and a query sees only keys of the chunk that its
                                     position is in; causal, window and mask hold as well. As
                                     FlashAttention 3 and the local layers of Llama 4 have it. Only
                                     window.left allows table entries of -1 */
};

/* Where attention reads K and V. */
enum aule_path {
    AULE_PATH_AUTO = 0,           /* asked for: the library chooses; in a ticket: no attention */
    AULE_PATH_CONTIGUOUS = 1,     /* rows, in place */
    AULE_PATH_PAGED = 2           /* blocks, of the pool or of block tensors */
};

/* Queued work. May be copied freely; reap it once, by aule_ticket_wait(). */
struct aule_ticket {
    uint64_t id;
    enum aule_path path;          /* the way that was taken */
    enum aule_status fallback;    /* AULE_OK, or why aule_attention_submit() could not use the pool:
                                     AULE_NO_BLOCKS, AULE_QUOTA, AULE_LIMIT or AULE_NO_MEMORY */
    uint64_t before;              /* private: the copying of K and V, reaped with this; 0: none */
};

/*
 * Call this once a layer, then aule_ticket_wait(); aule_run() does both. Queues two things: first
 * all K and V go into the slots of the batch, then each query i attends to the keys j that it may
 * see:
 *   out_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij),   s_ij = scale * q_i . k_j
 * docs/features.md has the formula with all features. A row that sees no key gives zeros.
 * A row has the same bits alone, among others, at any place of the batch, and through any form of
 * the metadata.
 *
 * Runs of one session act as if they ran one after another: a later run of the session is done only
 * after this one. `ticket` may be NULL: then nothing can wait for this run or learn its failure.
 * timeout_ms: how long to wait for a free ticket if the session has info.max_tickets unreaped ones.
 * AULE_BUSY: none came free, and nothing was queued.
 *
 * Slopes, sinks, frequencies and scales of layers are copied through the arena. AULE_NO_MEMORY: the
 * arena has no room for these arrays. AULE_LIMIT: these arrays, the session's batches and its
 * unreaped tickets together exceed --max-batch-memory; or num_splits (see there).
 * AULE_INVALID, AULE_MISALIGNED, AULE_MISMATCH, AULE_OUT_OF_RANGE, AULE_UNSUPPORTED: the sentence
 * names the parameter or tensor.
 * AULE_UNWRITTEN: the run would read a key that nothing has written. The sentence names sequence,
 * position, block and layer. Nothing was queued and no ticket was given. aule_batch_params says
 * which keys must be written.
 */
AULE_INLINE enum aule_status aule_run_submit(struct aule_batch *batch,
                                             const struct aule_run_params *params, int timeout_ms,
                                             struct aule_ticket *ticket);

struct aule_run_result {
    uint64_t gpu_ns;              /* GPU time in ns of the dispatches that the run was in. Runs that
                                     share a dispatch all report its whole time. Where dispatches
                                     overlap, time is divided by the bytes that each moves. 0: the
                                     device has no timestamps */
    uint32_t num_runs;            /* runs in its dispatch, this one included */
    uint32_t num_sessions;        /* sessions in its dispatch, this one included */
};

/*
 * Call this once for each ticket. Waits until the work is done. Then `out` may be read, and the
 * ticket is gone. result may be NULL.
 * AULE_TIMEOUT: not done after timeout_ms. The ticket stays and the work goes on, unless the
 * sentence says that the session has ended (see "deadlines").
 * AULE_LIMIT, AULE_NO_MEMORY: the daemon has no room for one more waiting command of this session.
 * The ticket stays and the work goes on, unless the sentence says that the run failed.
 * AULE_NOT_FOUND: the ticket was reaped already, or never given.
 * Any other status: the run failed, `out` is undefined and the ticket is gone.
 */
AULE_INLINE enum aule_status aule_ticket_wait(struct aule_session *session,
                                              struct aule_ticket ticket, int timeout_ms,
                                              struct aule_run_result *result);

/*
 * aule_ticket_wait() for the one of several tickets that ends first. Tickets of a session end in
 * the order of their submission, so this is the oldest one, and the others have not ended before
 * it. Tickets from before a reconnect come first: they are AULE_EPOCH. result may be NULL.
 * *index says which one it is, also on failure, unless there is no ticket.
 * AULE_INVALID: num_tickets is 0; *index is not written. Other statuses: those of
 * aule_ticket_wait() for tickets[*index].
 */
AULE_INLINE enum aule_status aule_wait_any(struct aule_session *session,
                                           const struct aule_ticket *tickets, uint32_t num_tickets,
                                           int timeout_ms, uint32_t *index,
                                           struct aule_run_result *result);

/*
 * A descriptor for poll(), epoll or an event loop, on either lane. It is readable
 *   - while the session has a ticket that has ended and that no call has reaped yet;
 *   - while the session has no daemon, until aule_session_reconnect() succeeds.
 * So it becomes unreadable inside the aule_ticket_wait() or aule_wait_any() that reaps the last
 * ticket that has ended. It is level-triggered; with EPOLLET, reap until AULE_TIMEOUT. The usual
 * handler calls aule_ticket_wait() with timeout 0 for its tickets, oldest first, until one returns
 * AULE_TIMEOUT. If the daemon has no room for the library's own request or does not read it in
 * time, the descriptor is readable while any ticket is not reaped, and such a call may return
 * AULE_TIMEOUT. If this process has no memory to note a ticket, it stays readable until a
 * reconnect.
 * Only tickets count that were given after the first call of this function: call it behind
 * aule_session_open(). Detached work (`ticket` NULL) does not count.
 * Only the library reads and writes the descriptor. It belongs to the session, is the same in each
 * call and after a reconnect, and is closed by aule_session_close(): take it out of your loop
 * before. Any thread may poll it, and several may. Until the first call it costs nothing.
 * Afterwards the library sends one message each time the oldest ticket that it asked for has ended.
 * AULE_NO_MEMORY: also no descriptor. On failure *fd is -1.
 */
AULE_API enum aule_status aule_session_fd(struct aule_session *session, int *fd);

/*
 * aule_run_submit() and aule_ticket_wait() by one request. timeout_ms covers both together. result
 * may be NULL.
 * AULE_BUSY: no ticket came free in time; nothing was queued. AULE_TIMEOUT, or no room for the
 * wait: the run may go on, and nothing can wait for it.
 * The arrays that aule_run_submit() copies keep their room in the arena until the run ends. So
 * several threads at once need room for the arrays of each.
 */
AULE_INLINE enum aule_status aule_run(struct aule_batch *batch,
                                      const struct aule_run_params *params, int timeout_ms,
                                      struct aule_run_result *result);

/*
 * The same run for several layers whose q, k and v are all in the arena before the call. Layer n of
 * num_layers is run->layer + n * layer_step, and its tensors lie n strides behind those of `run`.
 * If layers differ, for example in their windows, call it once for each kind of layer.
 * Layers run one after another if one reads or writes what another writes. Otherwise they run in
 * any order, as many at once as the device takes.
 */
struct aule_layers {
    uint32_t num_layers;          /* 1 to 1024 */
    uint32_t layer_step;          /* 0: 1 */
    uint64_t q_stride, k_stride, v_stride, out_stride; /* bytes, multiples of 16; 0: one for all */
    uint64_t lse_stride;          /* bytes, a multiple of 4 */
    uint64_t keys_stride, values_stride; /* likewise; only if K and V lie in the arena */
    uint64_t slopes_stride, sinks_stride; /* bytes, multiples of 4; the arrays are num_layers - 1
                                             strides longer; 0: one for all layers */
    const float *k_scales, *v_scales; /* [num_layers], in place of the run's k_scale and v_scale;
                                         an entry 0: 1; NULL: the run's for all layers */
};

/*
 * aule_run_submit() for all these layers, with one ticket. All layers are checked before any is
 * queued. The ticket is done when all layers are done; its GPU time is the sum over the layers. If
 * a layer fails, the ticket has the status of the first layer that failed, and layers that have not
 * begun are left out.
 * --max-run-work limits each layer by itself. AULE_UNSUPPORTED: the daemon knows no layers, or no
 * k_scales and v_scales.
 */
AULE_INLINE enum aule_status aule_run_layers_submit(struct aule_batch *batch,
                                                    const struct aule_run_params *run,
                                                    const struct aule_layers *layers,
                                                    int timeout_ms, struct aule_ticket *ticket);
/* aule_run_layers_submit(), and waits for the ticket as aule_run() does. */
AULE_INLINE enum aule_status aule_run_layers(struct aule_batch *batch,
                                             const struct aule_run_params *run,
                                             const struct aule_layers *layers, int timeout_ms,
                                             struct aule_run_result *result);

/*
 * The shape of runs to come. Which shaders are compiled depends on the cache, on the types, options
 * and lengths of a run, and on what its batch has.
 */
struct aule_warm_params {
    uint32_t q_len, kv_len;       /* of a sequence; 1 <= q_len <= kv_len */
    bool positions, mask;         /* the batches have positions of their own, or a custom mask */
    struct aule_run_params run;   /* of its tensors only q.dtype and lse.dtype are read; arrays are
                                     as in a run */
};

/*
 * Compiles in advance what runs of this shape need, so that the first one takes no longer than
 * others. Call this once for each shape before the work begins: once for prefill, once for decode.
 * Returns when everything is compiled. A driver can take seconds for a shader.
 * The library leases one block and runs once over it. q, k, v and out of q_len rows need room in
 * the arena during the call. timeout_ms covers everything. AULE_TIMEOUT: the compiling goes on; the
 * tensors keep their room in the arena until the session ends.
 * AULE_INVALID: q_len, kv_len, run.q.dtype or timeout_ms; the sentence has the value.
 * AULE_OUT_OF_RANGE: the tensors have more than 2^64 bytes. AULE_NO_MEMORY: also no room in the
 * arena. AULE_BUSY: no ticket came free. AULE_LIMIT: those of the batch and of the run.
 * Other statuses: those of aule_blocks_lease(), aule_blocks_zero(), aule_batch_create() and
 * aule_run().
 */
AULE_INLINE enum aule_status aule_warm(struct aule_cache *cache,
                                       const struct aule_warm_params *params, int timeout_ms);

/* ---- contiguous tensors ---- */

/*
 * Attention over k and v that lie in the arena as rows. The caller needs no cache and no batch.
 * Strides give the order of dimensions: [num_seqs, len, heads, dim] or [num_seqs, heads, len, dim].
 *   run.q, run.out   q_len rows for each sequence, num_heads heads
 *   run.k, run.v     kv_len rows for each sequence, num_kv_heads heads: all keys, not only new ones
 *   run.lse          f32 [num_seqs * q_len, num_heads]: row s * q_len + i is query i of sequence s;
 *                    it never has an outer stride
 * A tensor's outer stride is that of a sequence. 0: the rows of all sequences follow one another,
 * q_len or kv_len for each.
 * q, k, v and out have one element type: f32, f16 or bf16. RoPE rotates q alone; k is read as it
 * lies. run.layer, run.keys and run.values are not used.
 */
struct aule_attention_params {
    uint32_t num_seqs, q_len, kv_len; /* num_seqs at least 1 */
    uint32_t num_kv_heads, head_dim, head_dim_v; /* head_dim_v 0: as head_dim */
    const int32_t *q_lens, *kv_lens; /* [num_seqs], at most q_len and kv_len; NULL: all rows. Rows
                                        of `out` beyond q_lens[s] become 0, of `lse` -inf */
    const void *mask;             /* as in aule_batch_params, over q_len rows and kv_lens[s] keys of
                                     each sequence; NULL: none */
    size_t mask_size;
    enum aule_path path;          /* AUTO: paged if some sequence has more keys than the session's
                                     paged_threshold, else contiguous */
    struct aule_run_params run;
};

/*
 * Queues attention by one of two ways, which give the same bits.
 *   contiguous   reads K and V where they lie
 *   paged        leases blocks of a cache of the library's own, copies K and V into them on the GPU
 *                and attends there. The blocks go back when the work is done or has failed.
 * AULE_PATH_AUTO takes the contiguous way if the pool has no blocks now, or if the copying finds no
 * room for its slots: 8 bytes a key, in the arena and in the daemon. ticket->fallback says why.
 * With AULE_PATH_PAGED this is a failure: AULE_NO_BLOCKS, AULE_QUOTA, AULE_LIMIT or AULE_NO_MEMORY.
 *
 * The call uses one batch while it lasts (info.max_batches). The copying may take a second ticket
 * (info.max_tickets), which the wait for this one reaps. The library opens one such cache for each
 * shape and type, at its first use, and keeps it until the session ends. Sessions share the cache,
 * not its blocks.
 * Other statuses, and `ticket` NULL: as aule_batch_create_local() and aule_run_submit().
 */
AULE_INLINE enum aule_status aule_attention_submit(struct aule_session *session,
                                                   const struct aule_attention_params *params,
                                                   int timeout_ms, struct aule_ticket *ticket);
/*
 * aule_attention_submit(), and waits for the ticket. timeout_ms holds for the submission, and again
 * for the wait. result and ticket may be NULL; *ticket is reaped already, and only says which way
 * was taken.
 */
AULE_INLINE enum aule_status aule_attention(struct aule_session *session,
                                            const struct aule_attention_params *params,
                                            int timeout_ms, struct aule_run_result *result,
                                            struct aule_ticket *ticket);

/* ---- merging ---- */

/*
 * Attention over parts of the keys, merged into attention over all of them by LSE. With
 * m = max_n lse_n:
 *   out = sum_n exp(lse_n - m) out_n / sum_n exp(lse_n - m),   lse = m + ln sum_n exp(lse_n - m)
 * Parts are added in their order, so the same parts give the same bits. A part with lse -inf counts
 * nothing, whatever its out holds. If all parts have lse -inf, out is 0 and lse -inf.
 */
struct aule_merge_params {
    uint32_t num_parts;           /* at least 1 */
    uint32_t num_tokens, num_heads, head_dim; /* head_dim: a multiple of 8 up to 512 */
    const struct aule_tensor *outs; /* [num_parts] of [num_tokens, num_heads, head_dim], all of the
                                       type of `out`: f32, f16 or bf16; no outer strides */
    const struct aule_tensor *lses; /* [num_parts] of f32 [num_tokens, num_heads], laid out as a
                                       run's `lse` */
    struct aule_tensor out;       /* may be one of the parts, at the same place */
    struct aule_tensor lse;       /* may be one of the parts; dtype 0: not wanted */
    bool lse_base2;               /* `lses` and `lse` are to base 2, as of runs with lse_base2 */
};
/*
 * Queued and waited for like a run. AULE_LIMIT: too many parts for one merge; merge in steps.
 */
AULE_INLINE enum aule_status aule_merge_submit(struct aule_session *session,
                                               const struct aule_merge_params *params,
                                               int timeout_ms, struct aule_ticket *ticket);

/* ---- blocks and K/V on the GPU ---- */
/* All of these are queued like runs, in the session's order. `ticket` may be NULL. */

/*
 * Copies block from[i] to to[i], all layers. The session must hold all of these blocks; to[i] must
 * be leased and not sealed. No block may be in `to` twice, or in both lists. A slot of to[i] counts
 * as written if the same slot of from[i] does.
 * AULE_LIMIT: the copy exceeds --max-run-work, one message, or --max-batch-memory. Until its ticket
 * is reaped, a copy takes about 24 bytes of --max-batch-memory for each block and layer.
 */
AULE_API enum aule_status aule_blocks_copy(struct aule_cache *cache, uint32_t count,
                                           const int32_t *from, const int32_t *to, int timeout_ms,
                                           struct aule_ticket *ticket);
/* Fills leased blocks with zeroes, all layers. Their slots then count as not written. */
AULE_API enum aule_status aule_blocks_zero(struct aule_cache *cache, uint32_t count,
                                           const int32_t *block_ids, int timeout_ms,
                                           struct aule_ticket *ticket);
/*
 * Copies whole blocks to the arena as their bytes are: all layers, K and V, and the scales that
 * blocks store. Block i begins at offset + i * block_bytes; aule_cache_state() has block_bytes.
 * Only aule_blocks_import() into a cache with the same identity reads these bytes.
 * AULE_NOT_HELD. AULE_UNWRITTEN: not all slots of a block are written in all layers.
 * AULE_MISALIGNED: offset is no multiple of 16. AULE_OUT_OF_RANGE: the bytes are not all in the
 * arena. AULE_LIMIT: as aule_blocks_copy(). AULE_UNSUPPORTED: the device does not use the arena in
 * place (info.arena_imported).
 */
AULE_API enum aule_status aule_blocks_export(struct aule_cache *cache, uint32_t count,
                                             const int32_t *block_ids, uint64_t offset,
                                             int timeout_ms, struct aule_ticket *ticket);
/*
 * The reverse: fills leased blocks, all of whose slots then count as written. The daemon cannot
 * tell whether the bytes are those of an export, so the session vouches for them. Other statuses:
 * AULE_SEALED, and AULE_INVALID if a block occurs twice.
 */
AULE_API enum aule_status aule_blocks_import(struct aule_cache *cache, uint32_t count,
                                             const int32_t *block_ids, uint64_t offset,
                                             int timeout_ms, struct aule_ticket *ticket);

/*
 * Writes K and V into blocks of the cache without attention: row r goes to slot_mapping[r].
 * k and v may be block tensors [blocks, block_size, heads, dim]. A dense block tensor is simply
 * rows, one after another. Any other block tensor has the outer stride of a block, and outer_rows
 * is its block size.
 */
struct aule_kv_import {
    uint32_t layer;
    uint32_t num_rows;            /* at least 1 */
    uint32_t outer_rows;          /* rows between two outer strides; 0: no outer stride */
    const int64_t *slot_mapping;  /* [num_rows]; -1: leave this row out */
    struct aule_tensor k, v;      /* f32, f16 or bf16, converted to the cache's types. MLA: no v */
    float k_scale, v_scale;       /* as in aule_run_params */
    struct aule_rope rope;        /* rotates k as a run does: the blocks get the same bits; dim 0: k
                                     is stored as it is */
    const int32_t *positions;     /* [num_rows] where each row stands in its sequence; only with
                                     rope, which needs it */
};
AULE_INLINE enum aule_status aule_kv_import(struct aule_cache *cache,
                                            const struct aule_kv_import *params, int timeout_ms,
                                            struct aule_ticket *ticket);

/*
 * The reverse: reads the keys and values of a batch's sequences, seq_lens_kv[s] rows each, one
 * sequence after another. k is [sum of seq_lens_kv, num_kv_heads, head_dim], v has head_dim_v. Both
 * are f32, f16 or bf16; stored elements come with their scales applied. MLA: no v.
 * AULE_UNWRITTEN: nothing has written one of these rows; see aule_batch_params.
 */
struct aule_kv_gather {
    uint32_t layer;
    struct aule_tensor k, v;
    float k_scale, v_scale;       /* as in aule_run_params */
    struct aule_tensor keys, values; /* as in aule_run_params; only if K and V lie in the arena */
};
AULE_INLINE enum aule_status aule_kv_gather(struct aule_batch *batch,
                                            const struct aule_kv_gather *params, int timeout_ms,
                                            struct aule_ticket *ticket);

/*
 * The reverse of aule_kv_import(): reads rows of blocks without a batch. Row i is the token at
 * offset i % block_size of block_ids[i / block_size]. k is [num_rows, num_kv_heads, head_dim]; v
 * has head_dim_v. The call uses one batch while it lasts (info.max_batches).
 * AULE_INVALID: the session does not hold a block. Other statuses: as aule_kv_gather().
 */
struct aule_kv_export {
    uint32_t layer;
    uint32_t num_rows;            /* at least 1 */
    const int32_t *block_ids;     /* [num_rows / block_size, rounded up] */
    struct aule_tensor k, v;      /* as in aule_kv_gather */
    float k_scale, v_scale;       /* as in aule_run_params */
};
AULE_INLINE enum aule_status aule_kv_export(struct aule_cache *cache,
                                            const struct aule_kv_export *params, int timeout_ms,
                                            struct aule_ticket *ticket);

/* ---- monitor: looking into a daemon without a session ---- */

/*
 * A monitor is a connection without a session. It holds nothing in the daemon and counts against no
 * limit of sessions. Any number of threads may use one monitor side by side. It uses the control
 * socket beside the daemon's, which has 32 places of its own, if this process may open it. If these
 * are taken, it uses the daemon's socket. Functions that change something need the control socket;
 * otherwise they return AULE_DENIED, or AULE_LIMIT while its places are taken. If the daemon closes a monitor
 * that has asked nothing for long (--idle-timeout), the next call connects anew by itself.
 *
 * Statuses of all its calls, beside those that a call names. On any but AULE_OK the output is
 * untouched.
 *   AULE_TIMEOUT       no answer within the monitor's timeout. Nothing ends; ask again.
 *   AULE_DAEMON_GONE   the connection is lost for good. Close the monitor and open another.
 *   AULE_DENIED        the daemon serves another user.
 *   AULE_LIMIT         --max-connections, or control places: the daemon closes this connection.
 *   AULE_NO_MEMORY     this process has no memory for the answer.
 *   AULE_MALFORMED     what came is no answer of this version.
 *   AULE_VERSION       the daemon's protocol has another major version; a ping still works.
 *   AULE_INVALID       a pointer is NULL.
 *   AULE_STOPPING, AULE_FORKED
 */
struct aule_monitor;

/*
 * Connects to the daemon at `socket` (NULL: as in aule_session_params) and asks nothing yet.
 * timeout_ms holds for the connection, and later for each answer; a list comes in several answers.
 * 0: 10 s; -1: for ever. Ends with aule_monitor_close(). On failure *monitor is NULL.
 * AULE_DAEMON_GONE: nothing listens at the path. AULE_DENIED: the permissions of the socket.
 * AULE_TIMEOUT: the daemon did not accept in time. AULE_NO_MEMORY: also if no file descriptor is
 * left. AULE_INVALID: timeout_ms or the path.
 */
AULE_API enum aule_status aule_monitor_open(const char *socket, int timeout_ms,
                                            struct aule_monitor **monitor);
/* Takes NULL. No call of another thread may be pending. */
AULE_API void aule_monitor_close(struct aule_monitor *monitor);

struct aule_ping_info {
    uint64_t epoch;
    uint64_t round_trip_ns;
    char version[32];
    uint32_t protocol_major, protocol_minor;
    uint64_t pid;                 /* of the daemon, in its own pid namespace */
    char socket[128];             /* the path that it listens at */
};
/* Asks which daemon answers, and measures the time from request to answer. */
AULE_INLINE enum aule_status aule_monitor_ping(struct aule_monitor *monitor,
                                               struct aule_ping_info *info);

/*
 * A counter or a gauge of the daemon. The daemon decides which ones exist, and a newer daemon may
 * have more. A counter starts at 0 with the daemon and only grows.
 */
enum aule_metric_kind { AULE_METRIC_COUNTER, AULE_METRIC_GAUGE };
struct aule_metric {
    char name[256];               /* as in Prometheus: "aule_runs_done_total",
                                     "aule_blocks{state=\"free\"}" */
    char unit[32];                /* "bytes", "seconds", "runs"; "": none */
    char help[256];               /* what it counts, in a few words */
    enum aule_metric_kind kind;
    uint64_t value;
};
/*
 * Fills *array with all metrics of one moment: *count entries, malloc'd; the caller frees it.
 */
AULE_INLINE enum aule_status aule_monitor_metrics(struct aule_monitor *monitor,
                                                  struct aule_metric **array, uint32_t *count);

struct aule_device_state {
    char name[256], driver[256], type[16], variant[64];
    uint8_t uuid[16];
    uint32_t index, api_version;
    bool software, host_import;
    uint64_t heap_bytes, budget_bytes, max_allocation_bytes, import_alignment;
    uint32_t subgroup_size, shared_memory_bytes, pipelines;
};
/* The Vulkan device that the daemon owns. Sizes are bytes. */
AULE_INLINE enum aule_status aule_monitor_device(struct aule_monitor *monitor,
                                                 struct aule_device_state *state);

/* An attention shader that the daemon knows. */
struct aule_variant_state {
    char name[32];
    char needs[256];              /* what a device must have */
    char missing[256];            /* what this device lacks; "": it can run this shader.
                                   * If it is used: the native kernels replaced by GLSL, and why */
    bool used;                    /* the first that this device can run, or the forced one */
};
/* Fills *array with all variants, best first: *count entries, malloc'd; the caller frees it. */
AULE_INLINE enum aule_status aule_monitor_variants(struct aule_monitor *monitor,
                                                   struct aule_variant_state **array,
                                                   uint32_t *count);

struct aule_session_state {
    uint64_t session, pid;
    uint32_t uid;
    char name[256], tenant[256];
    bool arena_imported, dead;
    uint64_t arena_bytes, blocks_held, quota_blocks;
    uint32_t batches, tickets_unreaped;
    uint64_t runs_done, tokens_attended;
    uint64_t gpu_ns;              /* GPU time in ns of its runs. Unlike in aule_run_result, a shared
                                     dispatch counts only by the bytes that these runs move */
    uint64_t lookup_tokens, hit_tokens, age_ms;
};
struct aule_cache_view {
    uint64_t cache;
    char name[256];
    uint32_t num_layers, num_kv_heads, head_dim, head_dim_v, block_size;
    enum aule_dtype k_dtype, v_dtype;
    enum aule_scale_mode scale_mode;
    bool v_is_k_prefix;
    uint32_t chunk_blocks, num_chunks, open_sessions;
    uint64_t block_bytes;
    uint64_t total_blocks, free_blocks, leased_blocks;
    uint64_t held_blocks, cached_blocks, quarantined_blocks;
    uint64_t published_blocks;    /* in the prefix cache and visible to look-ups */
    uint64_t pending_blocks;      /* in the prefix cache; their last write is not done yet */
    char fingerprint[129];        /* hexadecimal digits; "": none, or the daemon does not say */
};
enum aule_block_kind {
    AULE_BLOCK_FREE, AULE_BLOCK_LEASED, AULE_BLOCK_HELD, AULE_BLOCK_CACHED, AULE_BLOCK_QUARANTINED,
    AULE_BLOCK_ABSENT
};
struct aule_block_state {
    int32_t block;
    enum aule_block_kind state;
    uint32_t holders, batch_refs;
    uint64_t writer;              /* the session that writes it, if leased */
    uint64_t last_use;            /* the pool's use counter; smaller: unused for longer */
    int32_t depth;                /* in its prefix chain, from 0; -1: not published */
};
/*
 * Each fills *array with a list of *count entries, malloc'd; the caller frees it. An empty list is
 * NULL. A long list comes in pages, and the daemon goes on between two pages: an entry that appears
 * or goes meanwhile may be missing or occur twice.
 * AULE_NOT_FOUND, of aule_monitor_blocks(): there is no such cache.
 */
AULE_INLINE enum aule_status aule_monitor_sessions(struct aule_monitor *monitor,
                                                   struct aule_session_state **array,
                                                   uint32_t *count);
AULE_INLINE enum aule_status aule_monitor_caches(struct aule_monitor *monitor,
                                                 struct aule_cache_view **array, uint32_t *count);
AULE_INLINE enum aule_status aule_monitor_blocks(struct aule_monitor *monitor, uint64_t cache,
                                                 struct aule_block_state **array, uint32_t *count);

/* A block in the prefix index: K and V of block_size tokens behind those of its parents. */
struct aule_prefix_state {
    uint64_t tree;                /* blocks of one tree share tenant and extra key */
    uint64_t hits;                /* look-ups that found the block */
    uint64_t age_ms;              /* since it was published */
    int32_t block;
    int32_t parent;               /* the block before it; -1: it begins a prefix */
    uint32_t depth;               /* blocks before it */
    enum aule_block_kind state;
    uint32_t holders;             /* sessions */
    enum aule_keep keep;          /* the strictest among the prefixes that it is part of */
    char tenant[256];             /* as of aule_monitor_tenants(), with "/NAME" of its sessions */
    uint32_t extra_key_size;      /* bytes */
    bool visible;                 /* look-ups find it: all writes have ended */
    int32_t tokens[4];            /* its first token ids */
};
/*
 * Lists published blocks of a cache, one page after another. Set *next to 0 before the first call,
 * and call again until *next is 0. Fills *array with *count entries, malloc'd; the caller frees it.
 * A page may have no entry. The daemon goes on between two pages, as above.
 * AULE_NOT_FOUND: there is no such cache.
 */
AULE_INLINE enum aule_status aule_monitor_prefix(struct aule_monitor *monitor, uint64_t cache,
                                                 uint32_t *next, struct aule_prefix_state **array,
                                                 uint32_t *count);

/* The whole key of a published block. */
struct aule_block_tokens {
    uint32_t num_tokens;          /* the cache's block size */
    uint32_t extra_key_size;      /* bytes */
    int32_t tokens[256];          /* of this block alone */
    uint8_t extra_key[256];       /* of its tree */
};
/*
 * AULE_NOT_FOUND: the block is not published, or there is no such cache.
 */
AULE_INLINE enum aule_status aule_monitor_tokens(struct aule_monitor *monitor, uint64_t cache,
                                                 int32_t block, struct aule_block_tokens *tokens);

/*
 * Ends another session as if its worker had died. AULE_NOT_FOUND: there is no such session.
 * AULE_TIMEOUT: the session may still end.
 */
AULE_API enum aule_status aule_monitor_close_session(struct aule_monitor *monitor,
                                                     uint64_t session);

/*
 * Ends a cache that no session has open, with all blocks that are cached in it. Then another cache
 * may take its name.
 * AULE_NOT_FOUND: there is no such cache. AULE_BUSY: a session has it open, or work that uses it is
 * not done.
 */
AULE_API enum aule_status aule_monitor_drop_cache(struct aule_monitor *monitor, uint64_t cache);

/*
 * Unpins each prefix that `block` of the cache is part of, whoever pinned it; -1: all prefixes of
 * the cache. The block ids of pinned prefixes are those of aule_monitor_prefix().
 * *num_prefixes: prefixes that were pinned. *num_blocks: cached blocks that may be evicted again.
 * Without AULE_OK both are 0.
 * AULE_NOT_FOUND: there is no such cache, or no pinned prefix has the block.
 */
AULE_API enum aule_status aule_monitor_unpin(struct aule_monitor *monitor, uint64_t cache,
                                             int32_t block, uint32_t *num_prefixes,
                                             uint64_t *num_blocks);

/*
 * Tenants. The sessions of a tenant share its limits. A tenant is a group of users that the operator
 * named (aule-daemon --tenant), else a user. Sessions of a tenant share prefixes if they gave the
 * same aule_session_params.tenant.
 */
struct aule_tenant_state {
    uint64_t tenant;              /* its id */
    char name[300];               /* the group's, or "uid:1000" */
    uint64_t limit_blocks;        /* of used_blocks; 0: no limit */
    uint64_t limit_cached;        /* of cached_blocks; 0: no limit */
    uint64_t floor;               /* so many cached blocks are not evicted for others */
    uint32_t sessions;            /* that are open */
    uint64_t used_blocks;         /* leased, held, quarantined or pinned */
    uint64_t pinned_blocks;       /* of used_blocks: of pinned prefixes */
    uint64_t cached_blocks;       /* that may be evicted */
    uint64_t used_bytes, cached_bytes;
    uint64_t evicted_blocks, refused_no_blocks, refused_quota; /* since the tenant appeared */
};
/* As aule_monitor_sessions(). */
AULE_INLINE enum aule_status aule_monitor_tenants(struct aule_monitor *monitor,
                                                  struct aule_tenant_state **array,
                                                  uint32_t *count);
/*
 * Changes a tenant's limits until the daemon ends. Blocks that it uses beyond a lower limit stay;
 * cached blocks beyond a lower limit are evicted at once.
 * AULE_NOT_FOUND: there is no such tenant. AULE_INVALID: the floor exceeds `cached`.
 */
AULE_API enum aule_status aule_monitor_limit_tenant(struct aule_monitor *monitor, uint64_t tenant,
                                                    uint64_t blocks, uint64_t cached,
                                                    uint64_t floor);
/*
 * Changes a session's limit on leased and held blocks; 0: none. AULE_NOT_FOUND: there is no such
 * session, or it has ended.
 */
AULE_API enum aule_status aule_monitor_limit_session(struct aule_monitor *monitor,
                                                     uint64_t session, uint64_t blocks);

/*
 * The options that the daemon was started with: a line "name=value\n" for each, in the order of
 * `aule-daemon --help`. "#" stands before a line whose option the command line does not name. A
 * switch is "yes" or "no". A password in a URL is left out.
 * Fills *lines with malloc'd text; the caller frees it. Any thread.
 */
AULE_API enum aule_status aule_monitor_options(struct aule_monitor *monitor, char **lines);

/* What the daemon writes to its log: lines of this level and of those before it. */
enum aule_log_level { AULE_LOG_SHOW, AULE_LOG_ERROR, AULE_LOG_WARN, AULE_LOG_INFO, AULE_LOG_DEBUG };
/*
 * Sets the log level until the daemon ends, and fills *before with the level that was set.
 * AULE_LOG_SHOW sets nothing. AULE_UNSUPPORTED: the daemon has no such level.
 */
AULE_API enum aule_status aule_monitor_log_level(struct aule_monitor *monitor,
                                                 enum aule_log_level level,
                                                 enum aule_log_level *before);

#ifdef __cplusplus
}
#endif

#include "sized.h"

#endif
