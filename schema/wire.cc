// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wire.cc - all the C++ there is: the structs of wire.h to and from the tables of aule.fbs, by FlatBuffers. Knows nothing
// of sockets or sessions. One line lists the fields of a table; the line makes its measuring, its writing and its reading.
// Compiled without exceptions and RTTI; the C++ runtime that FlatBuffers still wants stands at the end. Any thread.

#include "wire.h"

#include "aule_generated.h"

#include <cstdlib>
#include <cstring>
#include <type_traits>

static_assert(FLATBUFFERS_LITTLEENDIAN, "vectors are handed out in place, in the wire's byte order");

namespace
{

namespace fb = flatbuffers;
namespace w = aule::wire;

// ---- the lists of fields: names are the same in aule.fbs and in wire.h ----
// clang-format off

// Structs. F takes the first field, X every other one, in the order of aule.fbs: the order of FlatBuffers' constructors.
#define TENSOR(F, X)     F(memory) X(dtype) X(offset) X(token_stride) X(head_stride) X(outer_stride)
#define RUN_ENTRY(F, X)  F(batch) X(layer) X(num_heads) X(q) X(k) X(v) X(out) X(lse) X(slopes) X(sinks) X(scale)       \
                         X(logits_soft_cap) X(mask_value) X(window_left) X(window_right) X(num_splits) X(flags)        \
                         X(rope_theta) X(rope_dim) X(k_scale) X(v_scale) X(kind) X(rope_frequencies) X(keys) X(values)
#define LAYERS(F, X)     F(num_layers) X(layer_step) X(q) X(k) X(v) X(out) X(lse) X(keys) X(values) X(slopes) X(sinks)
#define SESSION(F, X)    F(session) X(pid) X(uid) X(arena_imported) X(dead) X(arena_bytes) X(blocks_held)              \
                         X(quota_blocks) X(batches) X(tickets_unreaped) X(runs_done) X(tokens_attended) X(gpu_ns)      \
                         X(lookup_tokens) X(hit_tokens) X(age_ms)
#define CACHE(F, X)      F(cache) X(num_layers) X(num_kv_heads) X(head_dim_k) X(head_dim_v) X(k_dtype) X(v_dtype)      \
                         X(block_size) X(chunk_blocks) X(num_chunks) X(open_sessions) X(v_is_k_prefix) X(scale_mode)   \
                         X(block_bytes) X(total_blocks) X(free_blocks) X(leased_blocks) X(held_blocks)                 \
                         X(cached_blocks) X(quarantined_blocks) X(published_blocks) X(pending_blocks)
#define BLOCK(F, X)      F(block) X(state) X(holders) X(batch_refs) X(writer) X(last_use) X(depth)
#define TUNE_ENTRY(F, X) F(num_workgroups) X(num_keys) X(local_size) X(rule_local_size) X(gpu_ns) X(rule_gpu_ns)       \
                         X(num_ways) X(num_samples) X(state)

// Tables: T(FlatBuffers table, struct of wire.h, its fields).
#define HELLO(X)               X(major) X(minor) X(client_name) X(tenant) X(arena_size)
#define PING(X)                X(payload)
#define CACHE_OPEN(X)          X(name) X(num_layers) X(num_kv_heads) X(head_dim_k) X(head_dim_v) X(v_is_k_prefix)      \
                               X(k_dtype) X(v_dtype) X(scale_mode) X(block_size) X(fingerprint)
#define CACHE_ID(X)            X(cache)
#define BLOCKS_LEASE(X)        X(cache) X(count) X(timeout_ms)
#define BLOCKS_RELEASE(X)      X(cache) X(blocks)
#define PREFIX_LOOKUP(X)       X(cache) X(tokens) X(token_span) X(max_tokens) X(extra_key)
#define PREFIX_PUBLISH(X)      X(cache) X(tokens) X(token_span) X(blocks) X(extra_key)
#define BLOCKS_COPY(X)         X(cache) X(from) X(to) X(flags) X(timeout_ms)
#define KV_LAYOUT(X)           X(num_kv_heads) X(head_dim_k) X(head_dim_v) X(v_is_k_prefix) X(k_dtype) X(v_dtype)      \
                               X(scale_mode) X(block_size) X(num_blocks)
#define BATCH_CREATE(X)        X(cache) X(num_seqs) X(max_blocks) X(max_context_len) X(max_seqlen_q) X(cu_seqlens_q)   \
                               X(seq_lens_kv) X(block_table) X(slot_mapping) X(positions) X(mask) X(q_lens)            \
                               X(token_rows) X(kv_starts) X(cu_seqlens_q_span) X(seq_lens_kv_span)                     \
                               X(block_table_span) X(slot_mapping_span) X(positions_span) X(mask_span)                 \
                               X(q_lens_span) X(token_rows_span) X(kv_starts_span)
#define BATCH_ID(X)            X(batch)
#define BATCH_ADVANCE(X)       X(batch) X(seq_lens_kv) X(entries) X(slot_mapping) X(positions) X(seq_lens_kv_span)     \
                               X(entries_span) X(slot_mapping_span) X(positions_span)
#define MERGE(X)               X(num_tokens) X(num_heads) X(head_dim) X(outs) X(lses) X(out) X(lse) X(flags)           \
                               X(timeout_ms)
#define WAIT(X)                X(ticket) X(timeout_ms)
#define RANGE(X)               X(first) X(max)
#define INSPECT_BLOCKS(X)      X(cache) X(first) X(max)
#define SESSION_ID(X)          X(session)
#define TUNE(X)                X(action) X(first) X(max)

#define HELLO_REPLY(X)         X(major) X(minor) X(session) X(epoch) X(segment_name) X(segment_size) X(header_offset)  \
                               X(arena_offset) X(arena_size) X(submission_ring_offset) X(submission_ring_size)         \
                               X(completion_ring_offset) X(completion_ring_size) X(max_message) X(max_tickets)         \
                               X(max_batches) X(quota_blocks) X(device_name) X(device_uuid) X(arena_imported)          \
                               X(ring_entries) X(doorbell) X(ring_entry_size)
#define PING_REPLY(X)          X(payload) X(epoch) X(version) X(major) X(minor)
#define CACHE_OPEN_REPLY(X)    X(cache) X(chunk_blocks) X(block_bytes)
#define CACHE_STATE_REPLY(X)   X(total_blocks) X(free_blocks) X(leased_blocks) X(held_blocks) X(cached_blocks)         \
                               X(quarantined_blocks) X(limit_blocks) X(available_blocks) X(block_bytes)
#define LEASE_REPLY(X)         X(blocks)
#define LOOKUP_REPLY(X)        X(blocks) X(num_tokens)
#define PUBLISH_REPLY(X)       X(blocks) X(num_existing)
#define BATCH_REPLY(X)         X(batch) X(num_tokens)
#define RUN_REPLY(X)           X(ticket)
#define WAIT_REPLY(X)          X(run_status) X(gpu_ns) X(num_runs) X(num_sessions) X(run_message)
#define DAEMON_REPLY(X)        X(epoch) X(pid) X(uptime_ms) X(version) X(socket) X(num_sessions) X(max_sessions)       \
                               X(num_caches) X(max_caches) X(pool_bytes) X(pool_limit_bytes) X(pool_blocks)            \
                               X(pool_limit_blocks) X(free_blocks) X(leased_blocks) X(held_blocks) X(cached_blocks)    \
                               X(quarantined_blocks) X(runs_done) X(runs_failed) X(dispatches) X(submissions)          \
                               X(tokens_attended) X(lookups) X(lookup_tokens) X(hit_tokens) X(evictions)               \
                               X(session_deaths) X(stopping) X(max_sessions_per_dispatch)                              \
                               X(sessions_served) X(dispatches_of_1) X(dispatches_of_2) X(dispatches_of_4)             \
                               X(dispatches_of_8) X(dispatches_of_more) X(ends_awake) X(ends_asleep)
#define DEVICE_REPLY(X)        X(name) X(driver) X(api_version) X(uuid) X(index) X(type) X(software) X(heap_bytes)     \
                               X(budget_bytes) X(subgroup_size) X(shared_memory_bytes) X(max_allocation_bytes)         \
                               X(host_import) X(import_alignment) X(pipelines) X(variant) X(variants)                  \
                               X(variant_needs) X(variant_missing)

#define PLAIN_TABLES(T)                                                                                                \
    T(Hello,             wire_hello,                HELLO)                                                             \
    T(Ping,              wire_ping,                 PING)                                                              \
    T(CacheOpen,         wire_cache_open,           CACHE_OPEN)                                                        \
    T(CacheClose,        wire_cache_close,          CACHE_ID)                                                          \
    T(CacheState,        wire_cache_state,          CACHE_ID)                                                          \
    T(BlocksLease,       wire_blocks_lease,         BLOCKS_LEASE)                                                      \
    T(BlocksRelease,     wire_blocks_release,       BLOCKS_RELEASE)                                                    \
    T(PrefixLookup,      wire_prefix_lookup,        PREFIX_LOOKUP)                                                     \
    T(PrefixPublish,     wire_prefix_publish,       PREFIX_PUBLISH)                                                    \
    T(BlocksCopy,        wire_blocks_copy,          BLOCKS_COPY)                                                       \
    T(KvLayout,          wire_kv_layout,            KV_LAYOUT)                                                         \
    T(BatchDestroy,      wire_batch_destroy,        BATCH_ID)                                                          \
    T(BatchAdvance,      wire_batch_advance,        BATCH_ADVANCE)                                                     \
    T(Merge,             wire_merge,                MERGE)                                                             \
    T(Wait,              wire_wait,                 WAIT)                                                              \
    T(InspectSessions,   wire_inspect_range,        RANGE)                                                             \
    T(InspectCaches,     wire_inspect_range,        RANGE)                                                             \
    T(InspectBlocks,     wire_inspect_blocks,       INSPECT_BLOCKS)                                                    \
    T(KillSession,       wire_kill_session,         SESSION_ID)                                                        \
    T(DropCache,         wire_drop_cache,           CACHE_ID)                                                          \
    T(Tune,              wire_tune,                 TUNE)                                                              \
    T(HelloReply,        wire_hello_reply,          HELLO_REPLY)                                                       \
    T(PingReply,         wire_ping_reply,           PING_REPLY)                                                        \
    T(CacheOpenReply,    wire_cache_open_reply,     CACHE_OPEN_REPLY)                                                  \
    T(CacheStateReply,   wire_cache_state_reply,    CACHE_STATE_REPLY)                                                 \
    T(BlocksLeaseReply,  wire_blocks_lease_reply,   LEASE_REPLY)                                                       \
    T(PrefixLookupReply, wire_prefix_lookup_reply,  LOOKUP_REPLY)                                                      \
    T(PrefixPublishReply, wire_prefix_publish_reply, PUBLISH_REPLY)                                                    \
    T(BatchCreateReply,  wire_batch_create_reply,   BATCH_REPLY)                                                       \
    T(RunReply,          wire_run_reply,            RUN_REPLY)                                                         \
    T(WaitReply,         wire_wait_reply,           WAIT_REPLY)                                                        \
    T(InspectDaemonReply, wire_inspect_daemon_reply, DAEMON_REPLY)                                                     \
    T(InspectDeviceReply, wire_inspect_device_reply, DEVICE_REPLY)

// Tables without a field, which have no member in the union of wire.h either.
#define EMPTY_TABLES(T) T(Mapped) T(CloseSession) T(InspectDaemon) T(InspectDevice) T(Empty)
// clang-format on

// The lists of wire.h and the unions of aule.fbs are one list.
#define X(name, member, table)                                                                                         \
    static_assert(int(WIRE_COMMAND_##name) == int(w::Command_##table), "WIRE_COMMAND_MAP differs from union Command");
WIRE_COMMAND_MAP(X)
#undef X
#define X(name, member, table)                                                                                         \
    static_assert(int(WIRE_ANSWER_##name) == int(w::Answer_##table), "WIRE_ANSWER_MAP differs from union Answer");
WIRE_ANSWER_MAP(X)
#undef X
static_assert(int(WIRE_COMMAND_COUNT) == int(w::Command_MAX) + 1, "union Command has more members than wire.h");
static_assert(int(WIRE_ANSWER_COUNT) == int(w::Answer_MAX) + 1, "union Answer has more members than wire.h");
static_assert(int(WIRE_RUN_CAUSAL) == int(w::RunFlag_Causal) && int(WIRE_RUN_DETACHED) == int(w::RunFlag_Detached) &&
                  int(WIRE_RUN_ROPE_INTERLEAVED) == int(w::RunFlag_RopeInterleaved),
              "enum wire_run_flag differs from RunFlag");
static_assert(int(WIRE_RUN_ATTEND) == int(w::RunKind_Attend) && int(WIRE_RUN_WRITE) == int(w::RunKind_Write) &&
                  int(WIRE_RUN_GATHER) == int(w::RunKind_Gather) && int(WIRE_RUN_GATHER) == int(w::RunKind_MAX),
              "enum wire_run_kind differs from RunKind");
static_assert(int(WIRE_TUNE_SHOW) == int(w::TuneAction_Show) && int(WIRE_TUNE_RENEW) == int(w::TuneAction_Renew) &&
                  int(WIRE_TUNE_CLEAR) == int(w::TuneAction_Clear) && int(WIRE_TUNE_OFF) == int(w::TuneAction_Off) &&
                  int(WIRE_TUNE_ON) == int(w::TuneAction_On) && int(WIRE_TUNE_ON) == int(w::TuneAction_MAX),
              "enum wire_tune_action differs from TuneAction");
static_assert(int(WIRE_TUNE_WAITING) == int(w::TuneState_Waiting) &&
                  int(WIRE_TUNE_MEASURED) == int(w::TuneState_Measured) &&
                  int(WIRE_TUNE_FAILED) == int(w::TuneState_Failed) && int(WIRE_TUNE_FAILED) == int(w::TuneState_MAX),
              "enum wire_tune_state differs from TuneState");

// The maps' `none` becomes a real member here, so that one macro line serves every command and every answer.
struct nothing {
};
struct any_request : wire_request {
    nothing none;
};
struct any_reply : wire_reply {
    nothing none;
};

template <class T> using scalar = typename std::enable_if<std::is_arithmetic<T>::value, T>::type;

// ---- measuring: an upper bound before a byte is written, so that the one allocation can fail in peace ----

struct measure {
    uint64_t payload = 0;  // bytes of vectors and strings: no message can be smaller
    uint64_t overhead = 0; // bytes that their lengths, terminators, padding and offsets take at most
    uint32_t missing = 0;  // elements of a vector that has a count but no data

    void vector(const void *data, uint64_t count, uint64_t size)
    {
        if (!data && count > 0)
            missing = uint32_t(count);
        payload += count * size;
        overhead += 32;
    }
    template <class T> void field(const T &, scalar<T> = 0)
    {
    }
    void field(const char *const &text)
    {
        vector("", text ? strlen(text) : 0, 1);
    }
    void field(const wire_ints &v)
    {
        vector(v.data, v.count, sizeof *v.data);
    }
    void field(const wire_longs &v)
    {
        vector(v.data, v.count, sizeof *v.data);
    }
    void field(const wire_bytes &v)
    {
        vector(v.data, v.count, sizeof *v.data);
    }
    void field(const wire_names &v)
    {
        vector(v.data, v.count, sizeof(fb::uoffset_t));
        for (uint32_t i = 0; v.data && i < v.count; i++)
            field(v.data[i]);
    }
    void field(const wire_tensors &v)
    {
        vector(v.data, v.count, sizeof *v.data);
    }
    void field(const wire_span &)
    {
    }
    void field(const wire_tensor &)
    {
    }
    void field(const uint8_t (&bytes)[16])
    {
        vector(bytes, sizeof bytes, 1);
    }
};

// ---- packing and unpacking the fixed-size structs ----

template <class T> scalar<T> pack(T value)
{
    return value;
}

template <class T> void unpack(T &to, scalar<T> from)
{
    to = from;
}

w::Span pack(const wire_span &from)
{
    return w::Span(from.offset, from.count);
}

void unpack(wire_span &to, const w::Span &from)
{
    to = {from.offset(), from.count()};
}

#define PACK_FIRST(f) pack(from.f)
#define PACK(f)       , pack(from.f)
#define UNPACK(f)     unpack(to.f, from.f());
#define STRUCT(packed, plain, FIELDS)                                                                                  \
    packed pack(const plain &from)                                                                                     \
    {                                                                                                                  \
        return packed(FIELDS(PACK_FIRST, PACK));                                                                       \
    }                                                                                                                  \
    void unpack(plain &to, const packed &from)                                                                         \
    {                                                                                                                  \
        FIELDS(UNPACK, UNPACK)                                                                                         \
    }
STRUCT(w::Tensor, wire_tensor, TENSOR)
STRUCT(w::RunEntry, wire_run, RUN_ENTRY)
STRUCT(w::Layers, wire_layers, LAYERS)
STRUCT(w::SessionState, wire_session_state, SESSION)
STRUCT(w::CacheCounts, wire_cache_counts, CACHE)
STRUCT(w::BlockState, wire_block_state, BLOCK)
STRUCT(w::TuneEntry, wire_tune_entry, TUNE_ENTRY)

// A vector of tensors is handed over in place, so FlatBuffers' struct and wire.h's have one layout: fields in one order, each
// at its natural alignment, nothing between or behind them.
static_assert(sizeof(w::Tensor) == sizeof(wire_tensor) && alignof(w::Tensor) == alignof(wire_tensor) &&
                  offsetof(wire_tensor, memory) == 0 && offsetof(wire_tensor, dtype) == 4 &&
                  offsetof(wire_tensor, offset) == 8 && offsetof(wire_tensor, token_stride) == 16 &&
                  offsetof(wire_tensor, head_stride) == 24 && offsetof(wire_tensor, outer_stride) == 32 &&
                  sizeof(wire_tensor) == 40,
              "struct wire_tensor differs from struct Tensor");

// ---- writing ----

struct writer {
    fb::FlatBufferBuilder &builder;
    bool no_memory = false;
};

template <class T> scalar<T> put(writer &, T value)
{
    return value;
}

fb::Offset<fb::String> put(writer &to, const char *text)
{
    return text ? to.builder.CreateString(text, strlen(text)) : 0;
}

fb::Offset<fb::Vector<int32_t>> put(writer &to, const wire_ints &v)
{
    return v.data ? to.builder.CreateVector(v.data, v.count) : 0;
}

fb::Offset<fb::Vector<int64_t>> put(writer &to, const wire_longs &v)
{
    return v.data ? to.builder.CreateVector(v.data, v.count) : 0;
}

fb::Offset<fb::Vector<uint8_t>> put(writer &to, const wire_bytes &v)
{
    return v.data ? to.builder.CreateVector(v.data, v.count) : 0;
}

fb::Offset<fb::Vector<uint8_t>> put(writer &to, const uint8_t (&bytes)[16])
{
    return to.builder.CreateVector(bytes, sizeof bytes);
}

fb::Offset<fb::Vector<const w::Tensor *>> put(writer &to, const wire_tensors &v)
{
    return v.data ? to.builder.CreateVectorOfStructs(reinterpret_cast<const w::Tensor *>(v.data), v.count) : 0;
}

w::Span put(writer &, const wire_span &span)
{
    return pack(span);
}

w::Tensor put(writer &, const wire_tensor &tensor)
{
    return pack(tensor);
}

fb::Offset<fb::Vector<fb::Offset<fb::String>>> put(writer &to, const wire_names &names)
{
    // Strings first, the vector of their offsets after them: FlatBuffers does not nest while writing.
    auto *offsets = static_cast<fb::Offset<fb::String> *>(malloc((names.count + size_t(1)) * sizeof(fb::uoffset_t)));
    if (!offsets) {
        to.no_memory = true;
        return 0;
    }
    for (uint32_t i = 0; i < names.count; i++)
        offsets[i] = put(to, names.data[i] ? names.data[i] : "");
    auto vector = to.builder.CreateVector(offsets, names.count);
    free(offsets);
    return vector;
}

// What a table's add_...() takes: structs by address and left out if they say nothing, all else as it is.
const w::Span *argument(const w::Span &span)
{
    return span.offset() || span.count() ? &span : nullptr;
}

const w::Tensor *argument(const w::Tensor &tensor)
{
    const w::Tensor none;
    return memcmp(&tensor, &none, sizeof none) != 0 ? &tensor : nullptr;
}

const w::Layers *argument(const w::Layers &layers)
{
    const w::Layers none;
    return memcmp(&layers, &none, sizeof none) != 0 ? &layers : nullptr;
}

template <class T> T argument(const T &value)
{
    return value;
}

// ---- reading: behind a verified message; keeps the first thing that is wrong ----

struct reader {
    struct error *error;
    const char *field = "";
    enum status status = STATUS_OK;
    void **owned = nullptr; // where the reply keeps what is allocated, one place after the other

    template <class... Values> void fail(enum status why, const char *format, Values... values)
    {
        if (status == STATUS_OK)
            status = error_set(error, why, format, field, values...);
    }
    void *allocate(size_t count, size_t size)
    {
        void *memory = calloc(count, size);
        if (!memory)
            fail(STATUS_NO_MEMORY, "no memory for %s: %zu entries of %zu bytes", count, size);
        return *owned++ = memory;
    }
};

template <class T> void get(reader &, T &to, scalar<T> from)
{
    to = from;
}

// C reads up to the first NUL, so a string that holds another one would mean two things.
void get(reader &from, const char *&to, const fb::String *text)
{
    to = text ? text->c_str() : "";
    if (text && memchr(text->c_str(), '\0', text->size()))
        from.fail(STATUS_MALFORMED, "%s holds a NUL byte inside its %u bytes", text->size());
}

// The verifier checks where a vector's length lies, not where its elements do. An empty one has none, and is as good as absent.
template <class T> bool aligned(reader &from, const fb::Vector<T> *vector, size_t alignment)
{
    if (!vector || uintptr_t(vector->Data()) % alignment == 0)
        return true;
    from.fail(STATUS_MALFORMED, "the elements of %s do not lie at a multiple of %zu bytes", alignment);
    return false;
}

template <class Vector, class T> void get_vector(reader &from, Vector &to, const fb::Vector<T> *vector)
{
    if (vector && vector->size() && aligned(from, vector, sizeof(T)))
        to = {vector->data(), vector->size()};
}

void get(reader &from, wire_ints &to, const fb::Vector<int32_t> *vector)
{
    get_vector(from, to, vector);
}

void get(reader &from, wire_longs &to, const fb::Vector<int64_t> *vector)
{
    get_vector(from, to, vector);
}

void get(reader &from, wire_bytes &to, const fb::Vector<uint8_t> *vector)
{
    get_vector(from, to, vector);
}

void get(reader &from, wire_tensors &to, const fb::Vector<const w::Tensor *> *vector)
{
    if (vector && vector->size() && aligned(from, vector, alignof(w::Tensor)))
        to = {reinterpret_cast<const wire_tensor *>(vector->Data()), vector->size()};
}

// The verifier has checked that structs lie aligned inside their table.
void get(reader &, wire_span &to, const w::Span *from)
{
    if (from)
        unpack(to, *from);
}

void get(reader &, wire_tensor &to, const w::Tensor *from)
{
    if (from)
        unpack(to, *from);
}

void get(reader &from, uint8_t (&to)[16], const fb::Vector<uint8_t> *bytes)
{
    if (bytes && bytes->size() != sizeof to)
        from.fail(STATUS_MALFORMED, "%s has %u bytes, not 16", bytes->size());
    else if (bytes)
        memcpy(to, bytes->data(), sizeof to);
}

// Length first: the entries may all be one long string, and reading it for each would take for ever.
void get_name(reader &from, const char *&to, const fb::String *text)
{
    if (text->size() > WIRE_MAX_NAME)
        from.fail(STATUS_MALFORMED, "an entry of %s has %u bytes; a name has at most %u", text->size(), WIRE_MAX_NAME);
    else
        get(from, to, text);
}

void get(reader &from, wire_names &to, const fb::Vector<fb::Offset<fb::String>> *names)
{
    if (!names || names->size() == 0)
        return;
    to.data = static_cast<const char **>(from.allocate(names->size(), sizeof *to.data));
    for (fb::uoffset_t i = 0; to.data && from.status == STATUS_OK && i < names->size(); i++)
        get_name(from, to.data[i], names->Get(i));
    to.count = names->size();
}

template <class Plain, class Packed>
void get_structs(reader &from, const Plain *&to, uint32_t &count, const fb::Vector<const Packed *> *structs)
{
    if (!structs || structs->size() == 0 || !aligned(from, structs, alignof(Packed)))
        return;
    auto *array = static_cast<Plain *>(from.allocate(structs->size(), sizeof(Plain)));
    for (fb::uoffset_t i = 0; array && i < structs->size(); i++)
        unpack(array[i], *structs->Get(i));
    to = array;
    count = structs->size();
}

// ---- one table each: measure, write, read ----

#define MEASURE_FIELD(f) m.field(from.f);
#define PUT_FIELD(f)     auto put_##f = put(to, from.f);
#define ADD_FIELD(f)     table.add_##f(argument(put_##f));
#define GET_FIELD(f)     from.field = #f, get(from, to.f, table->f());

// clang-format off
#define TABLE(table_name, plain, FIELDS)                                                                               \
    void measure_table(measure &m, const plain &from, const w::table_name *)                                           \
    {                                                                                                                  \
        FIELDS(MEASURE_FIELD)                                                                                          \
    }                                                                                                                  \
    fb::Offset<void> put_table(writer &to, const plain &from, const w::table_name *)                                   \
    {                                                                                                                  \
        FIELDS(PUT_FIELD)                                                                                              \
        w::table_name##Builder table(to.builder);                                                                      \
        FIELDS(ADD_FIELD)                                                                                              \
        return table.Finish().Union();                                                                                 \
    }                                                                                                                  \
    void get_table(reader &from, plain &to, const w::table_name *table)                                                \
    {                                                                                                                  \
        FIELDS(GET_FIELD)                                                                                              \
    }
// clang-format on
PLAIN_TABLES(TABLE)

#define EMPTY_TABLE(table_name)                                                                                        \
    void measure_table(measure &, const nothing &, const w::table_name *)                                              \
    {                                                                                                                  \
    }                                                                                                                  \
    fb::Offset<void> put_table(writer &to, const nothing &, const w::table_name *)                                     \
    {                                                                                                                  \
        return w::table_name##Builder(to.builder).Finish().Union();                                                    \
    }                                                                                                                  \
    void get_table(reader &, nothing &, const w::table_name *)                                                         \
    {                                                                                                                  \
    }
EMPTY_TABLES(EMPTY_TABLE)

// The one table inside another: how K and V lie is there or not.
// clang-format off
void measure_table(measure &m, const wire_batch_create &from, const w::BatchCreate *)
{
    measure_table(m, from.layout, (const w::KvLayout *)nullptr);
    BATCH_CREATE(MEASURE_FIELD)
}

fb::Offset<void> put_table(writer &to, const wire_batch_create &from, const w::BatchCreate *)
{
    fb::Offset<w::KvLayout> layout = 0;
    if (from.has_layout)
        layout = put_table(to, from.layout, (const w::KvLayout *)nullptr).o;
    BATCH_CREATE(PUT_FIELD)
    w::BatchCreateBuilder table(to.builder);
    table.add_layout(layout);
    BATCH_CREATE(ADD_FIELD)
    return table.Finish().Union();
}

void get_table(reader &from, wire_batch_create &to, const w::BatchCreate *table)
{
    to.has_layout = table->layout() != nullptr;
    if (to.has_layout)
        get_table(from, to.layout, table->layout());
    BATCH_CREATE(GET_FIELD)
}
// clang-format on

void measure_table(measure &, const wire_run &, const w::Run *)
{
}

fb::Offset<void> put_table(writer &to, const wire_run &from, const w::Run *)
{
    w::RunEntry entry = pack(from);
    w::Layers layers = pack(from.layers);
    w::Span scales = pack(from.scales);
    return w::CreateRun(to.builder, &entry, from.timeout_ms, argument(layers), argument(scales), from.waits,
                        from.wait_ms)
        .Union();
}

void get_table(reader &from, wire_run &to, const w::Run *table)
{
    from.field = "entry";
    if (!table->entry())
        return from.fail(STATUS_MALFORMED, "%s is absent from a run");
    unpack(to, *table->entry());
    to.timeout_ms = table->timeout_ms();
    if (table->layers())
        unpack(to.layers, *table->layers());
    get(from, to.scales, table->scales());
    to.waits = table->waits();
    to.wait_ms = table->wait_ms();
}

// The answers that list things: structs beside the vectors of their names.

template <class Packed, class Plain>
fb::Offset<fb::Vector<const Packed *>> put_structs(writer &to, const Plain *from, uint32_t count)
{
    Packed *array = nullptr;
    auto vector = to.builder.CreateUninitializedVectorOfStructs<Packed>(count, &array);
    for (uint32_t i = 0; i < count; i++)
        array[i] = pack(from[i]);
    return vector;
}

void measure_table(measure &m, const wire_inspect_sessions_reply &from, const w::InspectSessionsReply *)
{
    m.vector(from.sessions, from.count, sizeof(w::SessionState));
    m.field(from.names);
    m.field(from.tenants);
}

fb::Offset<void> put_table(writer &to, const wire_inspect_sessions_reply &from, const w::InspectSessionsReply *)
{
    auto sessions = put_structs<w::SessionState>(to, from.sessions, from.count);
    auto names = put(to, from.names);
    auto tenants = put(to, from.tenants);
    return w::CreateInspectSessionsReply(to.builder, from.total, sessions, names, tenants).Union();
}

void get_table(reader &from, wire_inspect_sessions_reply &to, const w::InspectSessionsReply *table)
{
    to.total = table->total();
    from.field = "sessions", get_structs(from, to.sessions, to.count, table->sessions());
    from.field = "names", get(from, to.names, table->names());
    from.field = "tenants", get(from, to.tenants, table->tenants());
}

void measure_table(measure &m, const wire_inspect_caches_reply &from, const w::InspectCachesReply *)
{
    m.vector(from.caches, from.count, sizeof(w::CacheCounts));
    m.field(from.names);
    m.field(from.fingerprints);
}

fb::Offset<void> put_table(writer &to, const wire_inspect_caches_reply &from, const w::InspectCachesReply *)
{
    auto caches = put_structs<w::CacheCounts>(to, from.caches, from.count);
    auto names = put(to, from.names);
    auto fingerprints = put(to, from.fingerprints);
    return w::CreateInspectCachesReply(to.builder, from.total, caches, names, fingerprints).Union();
}

void get_table(reader &from, wire_inspect_caches_reply &to, const w::InspectCachesReply *table)
{
    to.total = table->total();
    from.field = "caches", get_structs(from, to.caches, to.count, table->caches());
    from.field = "names", get(from, to.names, table->names());
    from.field = "fingerprints", get(from, to.fingerprints, table->fingerprints());
}

void measure_table(measure &m, const wire_inspect_blocks_reply &from, const w::InspectBlocksReply *)
{
    m.vector(from.blocks, from.count, sizeof(w::BlockState));
}

fb::Offset<void> put_table(writer &to, const wire_inspect_blocks_reply &from, const w::InspectBlocksReply *)
{
    auto blocks = put_structs<w::BlockState>(to, from.blocks, from.count);
    return w::CreateInspectBlocksReply(to.builder, from.total, blocks).Union();
}

void get_table(reader &from, wire_inspect_blocks_reply &to, const w::InspectBlocksReply *table)
{
    to.total = table->total();
    from.field = "blocks", get_structs(from, to.blocks, to.count, table->blocks());
}

void measure_table(measure &m, const wire_tune_reply &from, const w::TuneReply *)
{
    m.vector(from.entries, from.count, sizeof(w::TuneEntry));
    m.field(from.path);
    m.field(from.note);
    m.field(from.kernels);
    m.field(from.geometries);
}

fb::Offset<void> put_table(writer &to, const wire_tune_reply &from, const w::TuneReply *)
{
    auto path = put(to, from.path);
    auto note = put(to, from.note);
    auto entries = put_structs<w::TuneEntry>(to, from.entries, from.count);
    auto kernels = put(to, from.kernels);
    auto geometries = put(to, from.geometries);
    return w::CreateTuneReply(to.builder, from.enabled, from.software, from.num_waiting, from.time_ms, from.max_entries,
                              path, note, from.total, entries, kernels, geometries)
        .Union();
}

void get_table(reader &from, wire_tune_reply &to, const w::TuneReply *table)
{
    to.enabled = table->enabled();
    to.software = table->software();
    to.num_waiting = table->num_waiting();
    to.time_ms = table->time_ms();
    to.max_entries = table->max_entries();
    to.total = table->total();
    from.field = "path", get(from, to.path, table->path());
    from.field = "note", get(from, to.note, table->note());
    from.field = "entries", get_structs(from, to.entries, to.count, table->entries());
    from.field = "kernels", get(from, to.kernels, table->kernels());
    from.field = "geometries", get(from, to.geometries, table->geometries());
}

// ---- what a verifier does not see: the same checks before writing (INVALID) and after reading (MALFORMED) ----

struct checker {
    struct error *error;
    enum status otherwise;

    enum status name(const char *field, const char *text)
    {
        size_t size = text ? strlen(text) : 0;
        if (size <= WIRE_MAX_NAME)
            return STATUS_OK;
        return error_set(error, otherwise, "%s has %zu bytes; a name has at most %u", field, size, WIRE_MAX_NAME);
    }
    enum status names(const char *field, const wire_names &list)
    {
        enum status status = STATUS_OK;
        for (uint32_t i = 0; list.data && i < list.count && !status; i++)
            status = name(field, list.data[i]);
        return status;
    }
    enum status at_most(const char *field, uint32_t count, uint32_t limit)
    {
        if (count <= limit)
            return STATUS_OK;
        return error_set(error, otherwise, "%s has %u bytes; at most %u are allowed", field, count, limit);
    }
    enum status equal(const char *field, uint32_t count, const char *other, uint32_t wanted)
    {
        if (count == wanted)
            return STATUS_OK;
        return error_set(error, otherwise, "%s has %u entries beside %u of %s", field, count, wanted, other);
    }
};

template <class T> enum status check(checker &, const T &)
{
    return STATUS_OK;
}

enum status check(checker &c, const wire_hello &m)
{
    enum status status = c.name("client_name", m.client_name);
    return status ? status : c.name("tenant", m.tenant);
}

enum status check(checker &c, const wire_cache_open &m)
{
    enum status status = c.name("name", m.name);
    return status ? status : c.at_most("fingerprint", m.fingerprint.count, WIRE_MAX_FINGERPRINT);
}

enum status check(checker &c, const wire_prefix_lookup &m)
{
    return c.at_most("extra_key", m.extra_key.count, WIRE_MAX_EXTRA_KEY);
}

enum status check(checker &c, const wire_prefix_publish &m)
{
    return c.at_most("extra_key", m.extra_key.count, WIRE_MAX_EXTRA_KEY);
}

enum status check(checker &c, const wire_inspect_sessions_reply &m)
{
    enum status status = c.equal("names", m.names.count, "sessions", m.count);
    if (!status)
        status = c.equal("tenants", m.tenants.count, "sessions", m.count);
    if (!status)
        status = c.names("names", m.names);
    return status ? status : c.names("tenants", m.tenants);
}

enum status check(checker &c, const wire_inspect_caches_reply &m)
{
    enum status status = c.equal("names", m.names.count, "caches", m.count);
    if (!status && m.fingerprints.count) // an older daemon has none
        status = c.equal("fingerprints", m.fingerprints.count, "caches", m.count);
    if (!status)
        status = c.names("names", m.names);
    return status ? status : c.names("fingerprints", m.fingerprints);
}

enum status check(checker &c, const wire_tune_reply &m)
{
    enum status status = c.equal("kernels", m.kernels.count, "entries", m.count);
    if (!status)
        status = c.equal("geometries", m.geometries.count, "entries", m.count);
    if (!status)
        status = c.names("kernels", m.kernels);
    return status ? status : c.names("geometries", m.geometries);
}

enum status check(checker &c, const wire_inspect_device_reply &m)
{
    enum status status = c.equal("variant_needs", m.variant_needs.count, "variants", m.variants.count);
    if (!status)
        status = c.equal("variant_missing", m.variant_missing.count, "variants", m.variants.count);
    if (!status)
        status = c.names("variants", m.variants);
    if (!status)
        status = c.names("variant_needs", m.variant_needs);
    return status ? status : c.names("variant_missing", m.variant_missing);
}

// ---- requests and replies: from a type to its table ----

// clang-format off
#define CASE_CHECK(name, member, table)   case CASE(name): return check(c, in.member);
#define CASE_MEASURE(name, member, table) case CASE(name): return measure_table(m, in.member, (const w::table *)nullptr);
#define CASE_PUT(name, member, table)     case CASE(name): return put_table(to, in.member, (const w::table *)nullptr);
#define CASE_GET(name, member, table)     case CASE(name): return get_table(from, to.member, root->UNION_AS(table)());
// clang-format on

// A number that is none of the enum's may lie in the caller's struct; C++ must not load it as the enum.
template <class Enum> int number(const Enum &value)
{
    int plain;
    static_assert(sizeof plain == sizeof value, "an enum of C is an int");
    memcpy(&plain, &value, sizeof plain);
    return plain;
}

enum status unknown_type(error *error, enum status status, const char *message, const char *member, int type)
{
    if (type == 0)
        return error_set(error, status, "the %s has no %s", message, member);
    return error_set(error, status, "the %s has the unknown %s %d", message, member, type);
}

#define CASE(name)      WIRE_COMMAND_##name
#define UNION_AS(table) command_as_##table
enum status check_union(checker &c, const any_request &in)
{
    switch (number(in.command)) {
        WIRE_COMMAND_MAP(CASE_CHECK)
    }
    return unknown_type(c.error, c.otherwise, "request", "command", number(in.command));
}

void measure_all(measure &m, const any_request &in)
{
    switch (number(in.command)) {
        WIRE_COMMAND_MAP(CASE_MEASURE)
    }
}

fb::Offset<void> put_union(writer &to, const any_request &in)
{
    switch (number(in.command)) {
        WIRE_COMMAND_MAP(CASE_PUT)
    }
    return 0;
}

void put_root(writer &to, const any_request &in)
{
    auto command = put_union(to, in);
    auto root = w::CreateRequest(to.builder, in.session, in.epoch, w::Command(number(in.command)), command);
    to.builder.Finish(root, w::RequestIdentifier());
}

void get_union(reader &from, any_request &to, const w::Request *root)
{
    switch (to.command) {
    case WIRE_COMMAND_NONE:
    case WIRE_COMMAND_COUNT:
        break; // get_root() lets neither pass
        WIRE_COMMAND_MAP(CASE_GET)
    }
}

void get_root(reader &from, any_request &to, const w::Request *root)
{
    int type = root->command_type();
    if (type == w::Command_NONE || type > w::Command_MAX) {
        from.status = unknown_type(from.error, STATUS_MALFORMED, "request", "command", type);
        return;
    }
    from.field = "command";
    if (!root->command())
        return from.fail(STATUS_MALFORMED, "the %s has a type (%d) but no value", type);
    to.command = wire_command(type);
    to.session = root->session();
    to.epoch = root->epoch();
    get_union(from, to, root);
}
#undef CASE
#undef UNION_AS

#define CASE(name)      WIRE_ANSWER_##name
#define UNION_AS(table) answer_as_##table
enum status check_union(checker &c, const any_reply &in)
{
    switch (number(in.answer)) {
        WIRE_ANSWER_MAP(CASE_CHECK)
    }
    return unknown_type(c.error, c.otherwise, "reply", "answer", number(in.answer));
}

void measure_all(measure &m, const any_reply &in)
{
    m.field(in.message);
    switch (number(in.answer)) {
        WIRE_ANSWER_MAP(CASE_MEASURE)
    }
}

fb::Offset<void> put_union(writer &to, const any_reply &in)
{
    switch (number(in.answer)) {
        WIRE_ANSWER_MAP(CASE_PUT)
    }
    return 0;
}

void put_root(writer &to, const any_reply &in)
{
    auto answer = put_union(to, in);
    auto message = put(to, in.message);
    auto root = w::CreateReply(to.builder, in.status, message, w::Answer(number(in.answer)), answer, in.ticket);
    to.builder.Finish(root, w::RequestIdentifier());
}

void get_union(reader &from, any_reply &to, const w::Reply *root)
{
    switch (to.answer) {
    case WIRE_ANSWER_NONE:
    case WIRE_ANSWER_COUNT:
        break; // get_root() lets neither pass
        WIRE_ANSWER_MAP(CASE_GET)
    }
}

void get_root(reader &from, any_reply &to, const w::Reply *root)
{
    int type = root->answer_type();
    if (type == w::Answer_NONE || type > w::Answer_MAX) {
        from.status = unknown_type(from.error, STATUS_MALFORMED, "reply", "answer", type);
        return;
    }
    from.field = "answer";
    if (!root->answer())
        return from.fail(STATUS_MALFORMED, "the %s has a type (%d) but no value", type);
    to.answer = wire_answer(type);
    from.owned = to.owned;
    to.status = root->status();
    to.ticket = root->ticket();
    from.field = "message", get(from, to.message, root->message());
    get_union(from, to, root);
}
#undef CASE
#undef UNION_AS

// ---- encode ----

// Hands out the one block that encode() made; measuring has shown that no second one is asked for.
class one_block final : public fb::Allocator
{
  public:
    one_block(uint8_t *memory, size_t size) : memory_(memory), size_(size)
    {
    }
    uint8_t *allocate(size_t size) override
    {
        if (size > size_ || taken_)
            abort(); // a defect of struct measure: tests fill every message to the brim
        taken_ = true;
        return memory_;
    }
    void deallocate(uint8_t *, size_t) override
    {
    }

  private:
    uint8_t *memory_;
    size_t size_;
    bool taken_ = false;
};

// The root, one table, their vtables and FlatBuffers' own list of a table's fields at the block's other end.
enum { TABLES_AT_MOST = 4096 };

enum status too_large(struct error *error, const char *about, uint64_t size)
{
    return error_set(error, STATUS_LIMIT, "the message has %s%llu bytes, %llu more than a message may have (%u)", about,
                     (unsigned long long)size, (unsigned long long)(size - WIRE_MAX_MESSAGE), WIRE_MAX_MESSAGE);
}

template <class Any> enum status build(const Any &in, uint8_t *memory, size_t size, wire_buffer *out, error *error)
{
    one_block allocator(memory, size);
    fb::FlatBufferBuilder builder(size, &allocator);
    writer to{builder};
    put_root(to, in);
    if (to.no_memory)
        return error_set(error, STATUS_NO_MEMORY, "no memory to write a list of names");
    if (builder.GetSize() > WIRE_MAX_MESSAGE)
        return too_large(error, "", builder.GetSize());
    // FlatBuffers writes from the block's end; whoever frees the message knows its beginning only.
    memmove(memory, builder.GetBufferPointer(), builder.GetSize());
    *out = {memory, builder.GetSize()};
    return STATUS_OK;
}

template <class Any> enum status encode(const Any &in, wire_buffer *out, error *error)
{
    *out = {};
    checker c{error, STATUS_INVALID};
    enum status status = check_union(c, in);
    if (status)
        return status;
    measure m;
    measure_all(m, in);
    if (m.missing)
        return error_set(error, STATUS_INVALID, "a vector of %u elements has no data", m.missing);
    if (m.payload > WIRE_MAX_MESSAGE)
        return too_large(error, "at least ", m.payload);
    size_t size = (m.payload + m.overhead + TABLES_AT_MOST + 7) & ~size_t(7); // as FlatBuffers rounds it
    auto *memory = static_cast<uint8_t *>(malloc(size));
    if (!memory)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a message of %zu bytes", size);
    status = build(in, memory, size, out, error);
    if (status)
        free(memory);
    return status;
}

// ---- decode ----

enum { DEPTH_AT_MOST = 8, NUM_TABLES_AT_MOST = 16 };

template <class Root> enum status verify(const void *data, size_t size, error *error)
{
    auto *bytes = static_cast<const uint8_t *>(data);
    const size_t least = sizeof(fb::uoffset_t) + fb::kFileIdentifierLength;
    if (uintptr_t(data) % 8 != 0)
        return error_set(error, STATUS_INVALID, "the message lies at %p, not at a multiple of 8 bytes", data);
    if (size > WIRE_MAX_MESSAGE)
        return error_set(error, STATUS_MALFORMED, "the message has %zu bytes; at most %u are allowed", size,
                         WIRE_MAX_MESSAGE);
    if (!data || size < least)
        return error_set(error, STATUS_MALFORMED, "the message is truncated: it has %zu bytes, the least is %zu", size,
                         least);
    if (!fb::BufferHasIdentifier(data, w::RequestIdentifier()))
        return error_set(error, STATUS_MALFORMED, "the message is not aule's: its identifier is %02x %02x %02x %02x",
                         bytes[4], bytes[5], bytes[6], bytes[7]);
    fb::Verifier verifier(bytes, size, DEPTH_AT_MOST, NUM_TABLES_AT_MOST);
    if (!verifier.VerifyBuffer<Root>(w::RequestIdentifier()))
        return error_set(error, STATUS_MALFORMED,
                         "the message is corrupt or truncated: a part of it lies outside its %zu bytes", size);
    return STATUS_OK;
}

template <class Root, class Any> enum status decode(const void *data, size_t size, Any &to, error *error)
{
    enum status status = verify<Root>(data, size, error);
    if (status)
        return status;
    reader from{error};
    get_root(from, to, fb::GetRoot<Root>(data));
    if (from.status)
        return from.status;
    checker c{error, STATUS_MALFORMED};
    return check_union(c, to);
}

} // namespace

// ---- the ring lane's entries ----

static_assert(sizeof(w::Submission) <= WIRE_SUBMISSION_SIZE && sizeof(w::Completion) <= WIRE_COMPLETION_SIZE &&
                  WIRE_SUBMISSION_SIZE % 64 == 0 && WIRE_COMPLETION_SIZE % 64 == 0,
              "an entry fills whole lines of its ring");

void wire_put_submission(const wire_submission *from, void *entry)
{
    const w::Submission packed(from->sequence, from->command,
                               from->command == WIRE_COMMAND_WAIT ? from->wait.timeout_ms : from->run.timeout_ms,
                               from->run.waits, from->run.wait_ms, uint32_t(from->run.scales.count), from->wait.ticket,
                               pack(from->run), pack(from->run.layers), from->run.scales.offset);
    memset(entry, 0, WIRE_SUBMISSION_SIZE);
    memcpy(entry, &packed, sizeof packed);
}

void wire_get_submission(const void *entry, wire_submission *to)
{
    const auto *packed = static_cast<const w::Submission *>(entry);
    *to = {};
    to->sequence = packed->sequence();
    to->command = packed->command();
    to->wait = {packed->ticket(), packed->timeout_ms()};
    unpack(to->run, packed->run());
    to->run.timeout_ms = packed->timeout_ms();
    to->run.waits = packed->waits() != 0;
    to->run.wait_ms = packed->wait_ms();
    unpack(to->run.layers, packed->layers());
    to->run.scales = {packed->scales(), packed->num_scales()};
}

void wire_put_completion(const wire_completion *from, void *entry)
{
    uint8_t text[sizeof from->text] = {};
    memcpy(text, from->text, strnlen(from->text, sizeof text - 1));
    const w::Completion packed(from->sequence, from->status, from->answer, from->run_status, from->num_runs,
                               from->num_sessions, from->gpu_ns, from->ticket,
                               fb::span<const uint8_t, sizeof text>(text));
    memset(entry, 0, WIRE_COMPLETION_SIZE);
    memcpy(entry, &packed, sizeof packed);
}

void wire_get_completion(const void *entry, wire_completion *to)
{
    const auto *packed = static_cast<const w::Completion *>(entry);
    *to = {};
    to->sequence = packed->sequence();
    to->status = packed->status();
    to->answer = packed->answer();
    to->run_status = packed->run_status();
    to->num_runs = packed->num_runs();
    to->num_sessions = packed->num_sessions();
    to->gpu_ns = packed->gpu_ns();
    to->ticket = packed->ticket();
    memcpy(to->text, packed->text()->Data(), sizeof to->text - 1);
}

// ---- wire.h ----

const char *wire_command_name(int command)
{
    switch (command) {
#define X(name, member, table)                                                                                         \
    case WIRE_COMMAND_##name: return #name;
        WIRE_COMMAND_MAP(X)
#undef X
    default: return "UNKNOWN";
    }
}

void wire_buffer_finish(wire_buffer *buffer)
{
    if (!buffer)
        return;
    free(buffer->data);
    *buffer = {};
}

enum status wire_encode_request(const wire_request *request, wire_buffer *out, error *error)
{
    return encode(any_request{*request, {}}, out, error);
}

enum status wire_encode_reply(const wire_reply *reply, wire_buffer *out, error *error)
{
    return encode(any_reply{*reply, {}}, out, error);
}

enum status wire_decode_request(const void *data, size_t size, wire_request *out, error *error)
{
    any_request request = {};
    enum status status = decode<w::Request>(data, size, request, error);
    *out = status ? wire_request{} : request;
    return status;
}

enum status wire_decode_reply(const void *data, size_t size, wire_reply *out, error *error)
{
    any_reply reply = {};
    enum status status = decode<w::Reply>(data, size, reply, error);
    if (status)
        wire_reply_finish(&reply);
    *out = status ? wire_reply{} : reply;
    return status;
}

void wire_reply_finish(wire_reply *reply)
{
    if (!reply)
        return;
    for (void *memory : reply->owned)
        free(memory);
    *reply = {};
}

// ---- the C++ runtime, as far as FlatBuffers refers to it; CMakeLists.txt makes these names local to this object ----
// Never called on our paths: encode() brings the allocator. They exist so that a plain C link needs no libstdc++.

void *operator new(size_t size)
{
    void *memory = malloc(size ? size : 1);
    if (!memory)
        abort(); // must not return NULL, and without exceptions there is no other way to say so
    return memory;
}

void *operator new[](size_t size)
{
    return operator new(size);
}

void operator delete(void *memory) noexcept
{
    free(memory);
}

void operator delete[](void *memory) noexcept
{
    free(memory);
}

void operator delete(void *memory, size_t) noexcept
{
    free(memory);
}

void operator delete[](void *memory, size_t) noexcept
{
    free(memory);
}

extern "C" void __cxa_pure_virtual(void);
extern "C" void __cxa_pure_virtual(void)
{
    abort();
}
