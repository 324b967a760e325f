// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_schema.c - every message of wire.h there and back, cut short, damaged and forged. The tables of fields below are written
// from wire.h, not from wire.cc; a test checks that they leave no byte of a struct out. Contents come from a seeded generator.
// Every buffer is a block of exactly its size, so that a sanitizer sees the first byte read past its end.

#include "check_main.h"
#include "wire.h"

#include <stdarg.h>
#include <stddef.h>
#include <string.h>

// ---- allocations that fail on demand: malloc and calloc of the whole program come by here (schema.cmake) ----

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);

static int allocations_left = -1; // until one fails; -1: none fails

static bool allocation_fails(void)
{
    if (allocations_left < 0)
        return false;
    return allocations_left-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return allocation_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return allocation_fails() ? NULL : __real_calloc(count, size);
}

// ---- the fields of every struct ----

enum kind { U32, I32, U64, BOOL, F32, TEXT, NAME, INTS, LONGS, BYTES, TENSORS, NAME_LIST, SPAN, TENSOR, UUID, LAST };

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    uint32_t limit; // of BYTES; 0 = none
};
struct shape {
    const char *name;
    const struct field *fields; // ends with LAST, whose offset is the size of the struct
};

#define FIELD(member, kind)                                                                                            \
    {                                                                                                                  \
#member, kind, offsetof(struct SHAPE, member), 0                                                               \
    }
#define LIMITED(member, limit)                                                                                         \
    {                                                                                                                  \
#member, BYTES, offsetof(struct SHAPE, member), limit                                                          \
    }
#define END                                                                                                            \
    {                                                                                                                  \
        "end", LAST, sizeof(struct SHAPE), 0                                                                           \
    }

static const struct field none[] = {{"end", LAST, 0, 0}};

#define SHAPE wire_hello
static const struct field hello[] = {FIELD(major, U32),   FIELD(minor, U32),      FIELD(client_name, NAME),
                                     FIELD(tenant, NAME), FIELD(arena_size, U64), END};
#undef SHAPE
#define SHAPE wire_ping
static const struct field ping[] = {FIELD(payload, U64), END};
#undef SHAPE
#define SHAPE wire_cache_open
static const struct field cache_open[] = {FIELD(name, NAME),
                                          FIELD(num_layers, U32),
                                          FIELD(num_kv_heads, U32),
                                          FIELD(head_dim_k, U32),
                                          FIELD(head_dim_v, U32),
                                          FIELD(v_is_k_prefix, BOOL),
                                          FIELD(k_dtype, U32),
                                          FIELD(v_dtype, U32),
                                          FIELD(scale_mode, U32),
                                          FIELD(block_size, U32),
                                          LIMITED(fingerprint, WIRE_MAX_FINGERPRINT),
                                          END};
#undef SHAPE
#define SHAPE wire_cache_close
static const struct field cache_close[] = {FIELD(cache, U64), END};
#undef SHAPE
#define SHAPE wire_cache_state
static const struct field cache_state[] = {FIELD(cache, U64), END};
#undef SHAPE
#define SHAPE wire_blocks_lease
static const struct field blocks_lease[] = {FIELD(cache, U64), FIELD(count, U32), FIELD(timeout_ms, I32), END};
#undef SHAPE
#define SHAPE wire_blocks_release
static const struct field blocks_release[] = {FIELD(cache, U64), FIELD(blocks, INTS), END};
#undef SHAPE
#define SHAPE wire_blocks_copy
static const struct field blocks_copy[] = {FIELD(cache, U64), FIELD(from, INTS),      FIELD(to, INTS),
                                           FIELD(flags, U32), FIELD(timeout_ms, I32), END};
#undef SHAPE
#define SHAPE wire_prefix_lookup
static const struct field prefix_lookup[] = {FIELD(cache, U64),
                                             FIELD(tokens, INTS),
                                             FIELD(token_span, SPAN),
                                             FIELD(max_tokens, U32),
                                             LIMITED(extra_key, WIRE_MAX_EXTRA_KEY),
                                             END};
#undef SHAPE
#define SHAPE wire_prefix_publish
static const struct field prefix_publish[] = {FIELD(cache, U64),
                                              FIELD(tokens, INTS),
                                              FIELD(token_span, SPAN),
                                              FIELD(blocks, INTS),
                                              LIMITED(extra_key, WIRE_MAX_EXTRA_KEY),
                                              END};
#undef SHAPE
#define SHAPE wire_batch_create
static const struct field batch_create[] = {FIELD(cache, U64),
                                            FIELD(has_layout, BOOL),
                                            FIELD(layout.num_kv_heads, U32),
                                            FIELD(layout.head_dim_k, U32),
                                            FIELD(layout.head_dim_v, U32),
                                            FIELD(layout.v_is_k_prefix, BOOL),
                                            FIELD(layout.k_dtype, U32),
                                            FIELD(layout.v_dtype, U32),
                                            FIELD(layout.scale_mode, U32),
                                            FIELD(layout.block_size, U32),
                                            FIELD(layout.num_blocks, U32),
                                            FIELD(num_seqs, U32),
                                            FIELD(max_blocks, U32),
                                            FIELD(max_context_len, U32),
                                            FIELD(max_seqlen_q, U32),
                                            FIELD(cu_seqlens_q, INTS),
                                            FIELD(seq_lens_kv, INTS),
                                            FIELD(block_table, INTS),
                                            FIELD(slot_mapping, LONGS),
                                            FIELD(positions, INTS),
                                            FIELD(mask, BYTES),
                                            FIELD(q_lens, INTS),
                                            FIELD(token_rows, INTS),
                                            FIELD(kv_starts, INTS),
                                            FIELD(cu_seqlens_q_span, SPAN),
                                            FIELD(seq_lens_kv_span, SPAN),
                                            FIELD(block_table_span, SPAN),
                                            FIELD(slot_mapping_span, SPAN),
                                            FIELD(positions_span, SPAN),
                                            FIELD(mask_span, SPAN),
                                            FIELD(q_lens_span, SPAN),
                                            FIELD(token_rows_span, SPAN),
                                            FIELD(kv_starts_span, SPAN),
                                            END};
#undef SHAPE
#define SHAPE wire_batch_destroy
static const struct field batch_destroy[] = {FIELD(batch, U64), END};
#undef SHAPE
#define SHAPE wire_batch_advance
static const struct field batch_advance[] = {FIELD(batch, U64),           FIELD(seq_lens_kv, INTS),
                                             FIELD(entries, INTS),        FIELD(slot_mapping, LONGS),
                                             FIELD(positions, INTS),      FIELD(seq_lens_kv_span, SPAN),
                                             FIELD(entries_span, SPAN),   FIELD(slot_mapping_span, SPAN),
                                             FIELD(positions_span, SPAN), END};
#undef SHAPE
#define SHAPE wire_run
static const struct field run[] = {FIELD(batch, U64),
                                   FIELD(layer, U32),
                                   FIELD(num_heads, U32),
                                   FIELD(q, TENSOR),
                                   FIELD(k, TENSOR),
                                   FIELD(v, TENSOR),
                                   FIELD(out, TENSOR),
                                   FIELD(lse, TENSOR),
                                   FIELD(slopes, SPAN),
                                   FIELD(sinks, SPAN),
                                   FIELD(scale, F32),
                                   FIELD(logits_soft_cap, F32),
                                   FIELD(mask_value, F32),
                                   FIELD(window_left, I32),
                                   FIELD(window_right, I32),
                                   FIELD(num_splits, U32),
                                   FIELD(flags, U32),
                                   FIELD(rope_theta, F32),
                                   FIELD(rope_dim, U32),
                                   FIELD(k_scale, F32),
                                   FIELD(v_scale, F32),
                                   FIELD(kind, U32),
                                   FIELD(rope_frequencies, SPAN),
                                   FIELD(keys, TENSOR),
                                   FIELD(values, TENSOR),
                                   FIELD(layers.num_layers, U32),
                                   FIELD(layers.layer_step, U32),
                                   FIELD(layers.q, U64),
                                   FIELD(layers.k, U64),
                                   FIELD(layers.v, U64),
                                   FIELD(layers.out, U64),
                                   FIELD(layers.lse, U64),
                                   FIELD(layers.keys, U64),
                                   FIELD(layers.values, U64),
                                   FIELD(layers.slopes, U64),
                                   FIELD(layers.sinks, U64),
                                   FIELD(timeout_ms, I32),
                                   END};
#undef SHAPE
#define SHAPE wire_merge
static const struct field merge[] = {
    FIELD(num_tokens, U32), FIELD(num_heads, U32), FIELD(head_dim, U32), FIELD(outs, TENSORS),   FIELD(lses, TENSORS),
    FIELD(out, TENSOR),     FIELD(lse, TENSOR),    FIELD(flags, U32),    FIELD(timeout_ms, I32), END};
#undef SHAPE
#define SHAPE wire_wait
static const struct field wait_for[] = {FIELD(ticket, U64), FIELD(timeout_ms, I32), END};
#undef SHAPE
#define SHAPE wire_inspect_range
static const struct field inspect_range[] = {FIELD(first, U32), FIELD(max, U32), END};
#undef SHAPE
#define SHAPE wire_inspect_blocks
static const struct field inspect_blocks[] = {FIELD(cache, U64), FIELD(first, U32), FIELD(max, U32), END};
#undef SHAPE
#define SHAPE wire_kill_session
static const struct field kill_session[] = {FIELD(session, U64), END};
#undef SHAPE
#define SHAPE wire_tune
static const struct field tune[] = {FIELD(action, U32), FIELD(first, U32), FIELD(max, U32), END};
#undef SHAPE

#define SHAPE wire_hello_reply
static const struct field hello_reply[] = {FIELD(major, U32),
                                           FIELD(minor, U32),
                                           FIELD(session, U64),
                                           FIELD(epoch, U64),
                                           FIELD(segment_name, TEXT),
                                           FIELD(segment_size, U64),
                                           FIELD(header_offset, U64),
                                           FIELD(arena_offset, U64),
                                           FIELD(arena_size, U64),
                                           FIELD(submission_ring_offset, U64),
                                           FIELD(submission_ring_size, U64),
                                           FIELD(completion_ring_offset, U64),
                                           FIELD(completion_ring_size, U64),
                                           FIELD(max_message, U64),
                                           FIELD(max_tickets, U32),
                                           FIELD(max_batches, U32),
                                           FIELD(quota_blocks, U64),
                                           FIELD(device_name, TEXT),
                                           FIELD(device_uuid, UUID),
                                           FIELD(arena_imported, BOOL),
                                           FIELD(ring_entries, U32),
                                           FIELD(ring_entry_size, U32),
                                           FIELD(doorbell, TEXT),
                                           END};
#undef SHAPE
#define SHAPE wire_ping_reply
static const struct field ping_reply[] = {FIELD(payload, U64), FIELD(epoch, U64), FIELD(version, TEXT),
                                          FIELD(major, U32),   FIELD(minor, U32), END};
#undef SHAPE
#define SHAPE wire_cache_open_reply
static const struct field cache_open_reply[] = {FIELD(cache, U64), FIELD(chunk_blocks, U32), FIELD(block_bytes, U64),
                                                END};
#undef SHAPE
#define SHAPE wire_cache_state_reply
static const struct field cache_state_reply[] = {FIELD(total_blocks, U64),  FIELD(free_blocks, U64),
                                                 FIELD(leased_blocks, U64), FIELD(held_blocks, U64),
                                                 FIELD(cached_blocks, U64), FIELD(quarantined_blocks, U64),
                                                 FIELD(limit_blocks, U64),  FIELD(available_blocks, U64),
                                                 FIELD(block_bytes, U64),   END};
#undef SHAPE
#define SHAPE wire_blocks_lease_reply
static const struct field blocks_lease_reply[] = {FIELD(blocks, INTS), END};
#undef SHAPE
#define SHAPE wire_prefix_lookup_reply
static const struct field prefix_lookup_reply[] = {FIELD(blocks, INTS), FIELD(num_tokens, U32), END};
#undef SHAPE
#define SHAPE wire_prefix_publish_reply
static const struct field prefix_publish_reply[] = {FIELD(blocks, INTS), FIELD(num_existing, U32), END};
#undef SHAPE
#define SHAPE wire_batch_create_reply
static const struct field batch_create_reply[] = {FIELD(batch, U64), FIELD(num_tokens, U32), END};
#undef SHAPE
#define SHAPE wire_run_reply
static const struct field run_reply[] = {FIELD(ticket, U64), END};
#undef SHAPE
#define SHAPE wire_wait_reply
static const struct field wait_reply[] = {FIELD(run_status, I32),   FIELD(gpu_ns, U64),       FIELD(num_runs, U32),
                                          FIELD(num_sessions, U32), FIELD(run_message, TEXT), END};
#undef SHAPE
#define SHAPE wire_inspect_daemon_reply
static const struct field inspect_daemon_reply[] = {FIELD(epoch, U64),
                                                    FIELD(pid, U64),
                                                    FIELD(uptime_ms, U64),
                                                    FIELD(version, TEXT),
                                                    FIELD(socket, TEXT),
                                                    FIELD(num_sessions, U32),
                                                    FIELD(max_sessions, U32),
                                                    FIELD(num_caches, U32),
                                                    FIELD(max_caches, U32),
                                                    FIELD(pool_bytes, U64),
                                                    FIELD(pool_limit_bytes, U64),
                                                    FIELD(pool_blocks, U64),
                                                    FIELD(pool_limit_blocks, U64),
                                                    FIELD(free_blocks, U64),
                                                    FIELD(leased_blocks, U64),
                                                    FIELD(held_blocks, U64),
                                                    FIELD(cached_blocks, U64),
                                                    FIELD(quarantined_blocks, U64),
                                                    FIELD(runs_done, U64),
                                                    FIELD(runs_failed, U64),
                                                    FIELD(dispatches, U64),
                                                    FIELD(submissions, U64),
                                                    FIELD(tokens_attended, U64),
                                                    FIELD(lookups, U64),
                                                    FIELD(lookup_tokens, U64),
                                                    FIELD(hit_tokens, U64),
                                                    FIELD(evictions, U64),
                                                    FIELD(session_deaths, U64),
                                                    FIELD(stopping, BOOL),
                                                    FIELD(max_sessions_per_dispatch, U32),
                                                    FIELD(sessions_served, U64),
                                                    FIELD(dispatches_of_1, U64),
                                                    FIELD(dispatches_of_2, U64),
                                                    FIELD(dispatches_of_4, U64),
                                                    FIELD(dispatches_of_8, U64),
                                                    FIELD(dispatches_of_more, U64),
                                                    END};
#undef SHAPE
#define SHAPE wire_inspect_device_reply
static const struct field inspect_device_reply[] = {FIELD(name, TEXT),
                                                    FIELD(driver, TEXT),
                                                    FIELD(api_version, U32),
                                                    FIELD(uuid, UUID),
                                                    FIELD(index, U32),
                                                    FIELD(type, TEXT),
                                                    FIELD(software, BOOL),
                                                    FIELD(heap_bytes, U64),
                                                    FIELD(budget_bytes, U64),
                                                    FIELD(subgroup_size, U32),
                                                    FIELD(shared_memory_bytes, U32),
                                                    FIELD(max_allocation_bytes, U64),
                                                    FIELD(host_import, BOOL),
                                                    FIELD(import_alignment, U64),
                                                    FIELD(pipelines, U32),
                                                    FIELD(variant, TEXT),
                                                    FIELD(variants, NAME_LIST),
                                                    FIELD(variant_needs, NAME_LIST),
                                                    FIELD(variant_missing, NAME_LIST),
                                                    END};
#undef SHAPE
#define SHAPE wire_session_state
static const struct field session_state[] = {FIELD(session, U64),
                                             FIELD(pid, U64),
                                             FIELD(uid, U32),
                                             FIELD(arena_imported, BOOL),
                                             FIELD(dead, BOOL),
                                             FIELD(arena_bytes, U64),
                                             FIELD(blocks_held, U64),
                                             FIELD(quota_blocks, U64),
                                             FIELD(batches, U32),
                                             FIELD(tickets_unreaped, U32),
                                             FIELD(runs_done, U64),
                                             FIELD(tokens_attended, U64),
                                             FIELD(gpu_ns, U64),
                                             FIELD(lookup_tokens, U64),
                                             FIELD(hit_tokens, U64),
                                             FIELD(age_ms, U64),
                                             END};
#undef SHAPE
#define SHAPE wire_cache_counts
static const struct field cache_counts[] = {FIELD(cache, U64),
                                            FIELD(num_layers, U32),
                                            FIELD(num_kv_heads, U32),
                                            FIELD(head_dim_k, U32),
                                            FIELD(head_dim_v, U32),
                                            FIELD(k_dtype, U32),
                                            FIELD(v_dtype, U32),
                                            FIELD(block_size, U32),
                                            FIELD(chunk_blocks, U32),
                                            FIELD(num_chunks, U32),
                                            FIELD(open_sessions, U32),
                                            FIELD(v_is_k_prefix, BOOL),
                                            FIELD(scale_mode, U32),
                                            FIELD(block_bytes, U64),
                                            FIELD(total_blocks, U64),
                                            FIELD(free_blocks, U64),
                                            FIELD(leased_blocks, U64),
                                            FIELD(held_blocks, U64),
                                            FIELD(cached_blocks, U64),
                                            FIELD(quarantined_blocks, U64),
                                            FIELD(published_blocks, U64),
                                            FIELD(pending_blocks, U64),
                                            END};
#undef SHAPE
#define SHAPE wire_block_state
static const struct field block_state[] = {
    FIELD(block, I32),  FIELD(state, U32),    FIELD(holders, U32), FIELD(batch_refs, U32),
    FIELD(writer, U64), FIELD(last_use, U64), FIELD(depth, I32),   END};
#undef SHAPE

// Up to its list.
#define SHAPE wire_tune_reply
static const struct field tune_reply[] = {FIELD(enabled, BOOL),    FIELD(software, BOOL),
                                          FIELD(num_waiting, U32), FIELD(time_ms, U32),
                                          FIELD(max_entries, U32), FIELD(path, TEXT),
                                          FIELD(note, TEXT),       {"total", LAST, offsetof(struct SHAPE, total), 0}};
#undef SHAPE
#define SHAPE wire_tune_entry
static const struct field tune_entry[] = {FIELD(num_workgroups, U32), FIELD(num_keys, U32),
                                          FIELD(local_size, U32),     FIELD(rule_local_size, U32),
                                          FIELD(gpu_ns, U64),         FIELD(rule_gpu_ns, U64),
                                          FIELD(num_ways, U32),       FIELD(num_samples, U32),
                                          FIELD(state, U32),          END};
#undef SHAPE

// By command and by answer. What is listed (sessions, caches, blocks, entries) has no row of its own: see struct list.
static const struct shape commands[WIRE_COMMAND_COUNT] = {
    [WIRE_COMMAND_HELLO] = {"hello", hello},
    [WIRE_COMMAND_MAPPED] = {"mapped", none},
    [WIRE_COMMAND_PING] = {"ping", ping},
    [WIRE_COMMAND_CLOSE_SESSION] = {"close_session", none},
    [WIRE_COMMAND_CACHE_OPEN] = {"cache_open", cache_open},
    [WIRE_COMMAND_CACHE_CLOSE] = {"cache_close", cache_close},
    [WIRE_COMMAND_CACHE_STATE] = {"cache_state", cache_state},
    [WIRE_COMMAND_BLOCKS_LEASE] = {"blocks_lease", blocks_lease},
    [WIRE_COMMAND_BLOCKS_RELEASE] = {"blocks_release", blocks_release},
    [WIRE_COMMAND_PREFIX_LOOKUP] = {"prefix_lookup", prefix_lookup},
    [WIRE_COMMAND_PREFIX_PUBLISH] = {"prefix_publish", prefix_publish},
    [WIRE_COMMAND_BATCH_CREATE] = {"batch_create", batch_create},
    [WIRE_COMMAND_BATCH_DESTROY] = {"batch_destroy", batch_destroy},
    [WIRE_COMMAND_RUN] = {"run", run},
    [WIRE_COMMAND_BATCH_ADVANCE] = {"batch_advance", batch_advance},
    [WIRE_COMMAND_WAIT] = {"wait", wait_for},
    [WIRE_COMMAND_INSPECT_DAEMON] = {"inspect_daemon", none},
    [WIRE_COMMAND_INSPECT_SESSIONS] = {"inspect_sessions", inspect_range},
    [WIRE_COMMAND_INSPECT_CACHES] = {"inspect_caches", inspect_range},
    [WIRE_COMMAND_INSPECT_BLOCKS] = {"inspect_blocks", inspect_blocks},
    [WIRE_COMMAND_INSPECT_DEVICE] = {"inspect_device", none},
    [WIRE_COMMAND_KILL_SESSION] = {"kill_session", kill_session},
    [WIRE_COMMAND_BLOCKS_COPY] = {"blocks_copy", blocks_copy},
    [WIRE_COMMAND_MERGE] = {"merge", merge},
    [WIRE_COMMAND_TUNE] = {"tune", tune},
};
static const struct shape answers[WIRE_ANSWER_COUNT] = {
    [WIRE_ANSWER_EMPTY] = {"empty", none},
    [WIRE_ANSWER_HELLO] = {"hello", hello_reply},
    [WIRE_ANSWER_PING] = {"ping", ping_reply},
    [WIRE_ANSWER_CACHE_OPEN] = {"cache_open", cache_open_reply},
    [WIRE_ANSWER_CACHE_STATE] = {"cache_state", cache_state_reply},
    [WIRE_ANSWER_BLOCKS_LEASE] = {"blocks_lease", blocks_lease_reply},
    [WIRE_ANSWER_PREFIX_LOOKUP] = {"prefix_lookup", prefix_lookup_reply},
    [WIRE_ANSWER_PREFIX_PUBLISH] = {"prefix_publish", prefix_publish_reply},
    [WIRE_ANSWER_BATCH_CREATE] = {"batch_create", batch_create_reply},
    [WIRE_ANSWER_RUN] = {"run", run_reply},
    [WIRE_ANSWER_WAIT] = {"wait", wait_reply},
    [WIRE_ANSWER_INSPECT_DAEMON] = {"inspect_daemon", inspect_daemon_reply},
    [WIRE_ANSWER_INSPECT_SESSIONS] = {"inspect_sessions", none},
    [WIRE_ANSWER_INSPECT_CACHES] = {"inspect_caches", none},
    [WIRE_ANSWER_INSPECT_BLOCKS] = {"inspect_blocks", none},
    [WIRE_ANSWER_INSPECT_DEVICE] = {"inspect_device", inspect_device_reply},
    [WIRE_ANSWER_TUNE] = {"tune", tune_reply},
};

// An answer that lists structs: where its parts lie in struct wire_reply; 0 = it has no such part.
struct list {
    const struct field *entry;
    size_t entry_size, total, count, entries, names, tenants;
};
static const struct list lists[WIRE_ANSWER_COUNT] = {
    [WIRE_ANSWER_INSPECT_SESSIONS] = {session_state, sizeof(struct wire_session_state),
                                      offsetof(struct wire_reply, inspect_sessions.total),
                                      offsetof(struct wire_reply, inspect_sessions.count),
                                      offsetof(struct wire_reply, inspect_sessions.sessions),
                                      offsetof(struct wire_reply, inspect_sessions.names),
                                      offsetof(struct wire_reply, inspect_sessions.tenants)},
    [WIRE_ANSWER_INSPECT_CACHES] = {cache_counts, sizeof(struct wire_cache_counts),
                                    offsetof(struct wire_reply, inspect_caches.total),
                                    offsetof(struct wire_reply, inspect_caches.count),
                                    offsetof(struct wire_reply, inspect_caches.caches),
                                    offsetof(struct wire_reply, inspect_caches.names), 0},
    [WIRE_ANSWER_INSPECT_BLOCKS] = {block_state, sizeof(struct wire_block_state),
                                    offsetof(struct wire_reply, inspect_blocks.total),
                                    offsetof(struct wire_reply, inspect_blocks.count),
                                    offsetof(struct wire_reply, inspect_blocks.blocks), 0, 0},
    [WIRE_ANSWER_TUNE] = {tune_entry, sizeof(struct wire_tune_entry), offsetof(struct wire_reply, tune.total),
                          offsetof(struct wire_reply, tune.count), offsetof(struct wire_reply, tune.entries),
                          offsetof(struct wire_reply, tune.kernels), offsetof(struct wire_reply, tune.geometries)},
};

static const size_t kind_size[] = {
    [U32] = 4,
    [I32] = 4,
    [U64] = 8,
    [BOOL] = sizeof(bool),
    [F32] = 4,
    [TEXT] = sizeof(char *),
    [NAME] = sizeof(char *),
    [INTS] = sizeof(struct wire_ints),
    [LONGS] = sizeof(struct wire_longs),
    [BYTES] = sizeof(struct wire_bytes),
    [TENSORS] = sizeof(struct wire_tensors),
    [NAME_LIST] = sizeof(struct wire_names),
    [SPAN] = sizeof(struct wire_span),
    [TENSOR] = sizeof(struct wire_tensor),
    [UUID] = 16,
    [LAST] = 0,
};

static size_t kind_alignment(enum kind kind)
{
    if (kind == UUID)
        return 1;
    return kind == LAST || kind_size[kind] >= 8 ? 8 : kind_size[kind];
}

// ---- contents ----

static uint64_t random_state; // of xorshift64*

static uint64_t random_u64(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

static uint32_t random_below(uint32_t limit)
{
    return (uint32_t)(random_u64() >> 32) % limit;
}

// What messages point into while they are written: a stack that each message empties.
static _Alignas(8) unsigned char heap[1 << 20];
static size_t heap_used;

static void *heap_random(size_t size)
{
    unsigned char *memory = heap + heap_used;
    heap_used += (size + 7) / 8 * 8;
    ck_assert_uint_le(heap_used, sizeof heap);
    for (size_t i = 0; i < size; i++)
        memory[i] = (unsigned char)random_u64();
    return memory;
}

static const char *random_text(uint32_t limit)
{
    uint32_t size = random_below(4) == 0 ? 0 : random_below(limit + 1);
    char *text = heap_random(size + 1u);
    for (uint32_t i = 0; i < size; i++)
        text[i] = text[i] ? text[i] : 'x';
    text[size] = '\0';
    return text;
}

static struct wire_names random_names(uint32_t count)
{
    const char **names = heap_random(count * sizeof *names);
    for (uint32_t i = 0; i < count; i++)
        names[i] = random_text(WIRE_MAX_NAME);
    return (struct wire_names){count ? names : NULL, count};
}

static uint32_t num_names; // of each list of names in one answer

static void fill_field(const struct field *field, char *at)
{
    uint32_t count = random_below(3) == 0 ? 0 : random_below(field->limit ? field->limit + 1 : 40);
    switch (field->kind) {
    case BOOL: *(bool *)at = random_below(2); break;
    case F32: *(float *)at = (float)(int32_t)random_u64() / 1024; break;
    case TEXT:
    case NAME: *(const char **)at = random_text(field->kind == NAME ? WIRE_MAX_NAME : 400); break;
    case INTS: *(struct wire_ints *)at = (struct wire_ints){count ? heap_random(count * 4) : NULL, count}; break;
    case LONGS: *(struct wire_longs *)at = (struct wire_longs){count ? heap_random(count * 8) : NULL, count}; break;
    case BYTES: *(struct wire_bytes *)at = (struct wire_bytes){count ? heap_random(count) : NULL, count}; break;
    case TENSORS:
        *(struct wire_tensors *)at = (struct wire_tensors){count ? heap_random(count * 40) : NULL, count};
        break;
    case NAME_LIST: *(struct wire_names *)at = random_names(num_names); break;
    default: memcpy(at, heap_random(kind_size[field->kind]), kind_size[field->kind]); break;
    }
}

static void fill(const struct field *fields, void *base)
{
    for (; fields->kind != LAST; fields++)
        fill_field(fields, (char *)base + fields->offset);
}

static void fill_list(const struct list *list, struct wire_reply *reply)
{
    uint32_t count = random_below(6);
    char *base = (char *)reply, *entries = heap_random(0);
    heap_used += count * list->entry_size;
    memset(entries, 0, count * list->entry_size);
    for (uint32_t i = 0; i < count; i++)
        fill(list->entry, entries + i * list->entry_size);
    *(uint32_t *)(base + list->total) = (uint32_t)random_u64();
    *(uint32_t *)(base + list->count) = count;
    *(const void **)(base + list->entries) = count ? entries : NULL;
    if (list->names)
        *(struct wire_names *)(base + list->names) = random_names(count);
    if (list->tenants)
        *(struct wire_names *)(base + list->tenants) = random_names(count);
}

static struct wire_request random_request(int command)
{
    heap_used = 0;
    struct wire_request request = {
        .session = random_u64(), .epoch = random_u64(), .command = (enum wire_command)command};
    fill(commands[command].fields, &request.hello);
    if (request.command == WIRE_COMMAND_BATCH_CREATE && !request.batch_create.has_layout)
        request.batch_create.layout = (struct wire_kv_layout){0};
    return request;
}

static struct wire_reply random_reply(int answer)
{
    heap_used = 0;
    struct wire_reply reply = {
        .status = (int32_t)random_u64(), .message = random_text(300), .answer = (enum wire_answer)answer};
    num_names = random_below(6);
    fill(answers[answer].fields, &reply.hello);
    if (lists[answer].entry)
        fill_list(&lists[answer], &reply);
    return reply;
}

// ---- comparing ----

static bool equal_vectors(const void *a, uint32_t num_a, const void *b, uint32_t num_b, size_t size)
{
    return num_a == num_b && (num_a == 0 || memcmp(a, b, num_a * size) == 0);
}

static const char *names_difference(const struct wire_names *a, const struct wire_names *b)
{
    if (a->count != b->count)
        return "the number of names";
    for (uint32_t i = 0; i < a->count; i++)
        if (strcmp(a->data[i], b->data[i]) != 0)
            return "a name";
    return NULL;
}

static bool equal_field(const struct field *field, const char *a, const char *b)
{
    const struct wire_ints *x = (const void *)a, *y = (const void *)b; // all kinds of vector have one layout
    switch (field->kind) {
    case TEXT:
    case NAME: return strcmp(*(const char *const *)a, *(const char *const *)b) == 0;
    case INTS: return equal_vectors(x->data, x->count, y->data, y->count, 4);
    case LONGS: return equal_vectors(x->data, x->count, y->data, y->count, 8);
    case BYTES: return equal_vectors(x->data, x->count, y->data, y->count, 1);
    case TENSORS: return equal_vectors(x->data, x->count, y->data, y->count, 40);
    case NAME_LIST: return !names_difference((const void *)a, (const void *)b);
    default: return memcmp(a, b, kind_size[field->kind]) == 0;
    }
}

// The name of the first field that differs, NULL if none does.
static const char *difference(const struct field *fields, const void *a, const void *b)
{
    for (; fields->kind != LAST; fields++)
        if (!equal_field(fields, (const char *)a + fields->offset, (const char *)b + fields->offset))
            return fields->name;
    return NULL;
}

static const char *list_difference(const struct list *list, const struct wire_reply *ra, const struct wire_reply *rb)
{
    const char *a = (const char *)ra, *b = (const char *)rb, *found = NULL;
    uint32_t count = *(const uint32_t *)(a + list->count);
    if (count != *(const uint32_t *)(b + list->count))
        return "count";
    if (*(const uint32_t *)(a + list->total) != *(const uint32_t *)(b + list->total))
        return "total";
    for (uint32_t i = 0; i < count && !found; i++)
        found = difference(list->entry, *(char *const *)(a + list->entries) + i * list->entry_size,
                           *(char *const *)(b + list->entries) + i * list->entry_size);
    if (!found && list->names)
        found = names_difference((const void *)(a + list->names), (const void *)(b + list->names));
    if (!found && list->tenants)
        found = names_difference((const void *)(a + list->tenants), (const void *)(b + list->tenants));
    return found;
}

static const char *request_difference(const struct wire_request *a, const struct wire_request *b)
{
    if (a->session != b->session || a->epoch != b->epoch || a->command != b->command)
        return "session, epoch or command";
    return difference(commands[a->command].fields, &a->hello, &b->hello);
}

static const char *reply_difference(const struct wire_reply *a, const struct wire_reply *b)
{
    if (a->status != b->status || a->answer != b->answer || strcmp(a->message, b->message) != 0)
        return "status, message or answer";
    const char *found = difference(answers[a->answer].fields, &a->hello, &b->hello);
    return found || !lists[a->answer].entry ? found : list_difference(&lists[a->answer], a, b);
}

// ---- messages ----

static struct wire_buffer encoded_request(const struct wire_request *request)
{
    struct wire_buffer buffer;
    struct error error = {0};
    enum status status = wire_encode_request(request, &buffer, &error);
    ck_assert_msg(status == STATUS_OK, "%s: %s", wire_command_name(request->command), error.text);
    return buffer;
}

static struct wire_buffer encoded_reply(const struct wire_reply *reply)
{
    struct wire_buffer buffer;
    struct error error = {0};
    enum status status = wire_encode_reply(reply, &buffer, &error);
    ck_assert_msg(status == STATUS_OK, "answer %d: %s", reply->answer, error.text);
    return buffer;
}

static void *exact_copy(const void *data, size_t size)
{
    void *copy = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, data, size);
    return copy;
}

static volatile uint64_t touched; // keeps the compiler from dropping the reads

static void touch(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        touched += ((const unsigned char *)data)[i];
}

static void touch_names(const struct wire_names *names)
{
    for (uint32_t i = 0; i < names->count; i++)
        touch(names->data[i], strlen(names->data[i]));
}

static void touch_fields(const struct field *fields, const void *base)
{
    for (; fields->kind != LAST; fields++) {
        const char *at = (const char *)base + fields->offset;
        const struct wire_ints *vector = (const void *)at;
        static const size_t element[] = {[INTS] = 4, [LONGS] = 8, [BYTES] = 1, [TENSORS] = 40, [LAST] = 0};
        if (fields->kind == TEXT || fields->kind == NAME)
            touch(*(const char *const *)at, strlen(*(const char *const *)at));
        else if (fields->kind == NAME_LIST)
            touch_names((const void *)at);
        else if (element[fields->kind])
            touch(vector->data, vector->count * element[fields->kind]);
    }
}

static void touch_reply(const struct wire_reply *reply)
{
    const struct list *list = &lists[reply->answer];
    const char *base = (const char *)reply;
    touch(reply->message, strlen(reply->message));
    touch_fields(answers[reply->answer].fields, &reply->hello);
    if (list->entry)
        touch(*(void *const *)(base + list->entries), *(const uint32_t *)(base + list->count) * list->entry_size);
    if (list->names)
        touch_names((const void *)(base + list->names));
    if (list->tenants)
        touch_names((const void *)(base + list->tenants));
}

static bool is_zero(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)data)[i])
            return false;
    return true;
}

// ---- tables ----

static void assert_covers(const struct shape *shape)
{
    size_t end = 0;
    for (const struct field *field = shape->fields;; end = field->offset + kind_size[field->kind], field++) {
        size_t padding = field->offset - end;
        ck_assert_msg(field->offset >= end && padding < kind_alignment(field->kind), "%s: a field before %s is missing",
                      shape->name, field->name);
        if (field->kind == LAST)
            return;
    }
}

START_TEST(the_fields_of_this_test_cover_every_struct)
{
    for (int i = 1; i < WIRE_COMMAND_COUNT; i++)
        assert_covers(&commands[i]);
    for (int i = 1; i < WIRE_ANSWER_COUNT; i++)
        assert_covers(&answers[i]);
    for (int i = 1; i < WIRE_ANSWER_COUNT; i++)
        if (lists[i].entry)
            assert_covers(&(struct shape){answers[i].name, lists[i].entry});
}
END_TEST

START_TEST(every_status_has_a_name_a_text_and_a_value_of_its_own)
{
    static const struct {
        const char *name;
        int value;
    } all[] = {
#define X(name, value, text) {#name, value},
        AULE_STATUS_MAP(X)
#undef X
    };
    size_t count = sizeof all / sizeof *all;
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(all[i].value, (int)i); // dense, so no value is used twice
        ck_assert_str_eq(status_name(all[i].value), all[i].name);
        ck_assert_uint_gt(strlen(status_text(all[i].value)), 3);
        for (size_t k = 0; k < i; k++) {
            ck_assert_str_ne(all[i].name, all[k].name);
            ck_assert_str_ne(status_text(all[i].value), status_text(all[k].value));
        }
    }
    ck_assert_str_eq(status_name((int)count), "UNKNOWN");
    ck_assert_str_eq(status_text(-1), "UNKNOWN");
    ck_assert_str_eq(status_name(STATUS_NOT_HELD), "NOT_HELD");
}
END_TEST

START_TEST(every_dtype_has_a_name_and_a_size)
{
    ck_assert_str_eq(dtype_name(DTYPE_F16), "f16");
    ck_assert_uint_eq(dtype_size(DTYPE_F32), 4);
    ck_assert_uint_eq(dtype_size(DTYPE_BF16), 2);
    ck_assert_uint_eq(dtype_size(DTYPE_INT8), 1);
    ck_assert_str_eq(dtype_name(0), "unknown");
    ck_assert_uint_eq(dtype_size(0), 0);
    ck_assert_uint_eq(dtype_size(99), 0);
}
END_TEST

START_TEST(every_command_has_its_name)
{
    ck_assert_str_eq(wire_command_name(WIRE_COMMAND_BLOCKS_LEASE), "BLOCKS_LEASE");
    ck_assert_str_eq(wire_command_name(WIRE_COMMAND_NONE), "UNKNOWN");
    ck_assert_str_eq(wire_command_name(WIRE_COMMAND_COUNT), "UNKNOWN");
    for (int i = 1; i < WIRE_COMMAND_COUNT; i++)
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(wire_command_name(i), wire_command_name(k));
}
END_TEST

START_TEST(an_error_takes_its_sentence_and_a_long_one_looks_cut)
{
    struct error error;
    ck_assert_int_eq(error_set(&error, STATUS_NOT_HELD, "block %d of %s", 912, "a"), STATUS_NOT_HELD);
    ck_assert_int_eq(error.status, STATUS_NOT_HELD);
    ck_assert_str_eq(error.text, "block 912 of a");
    ck_assert_int_eq(error_set(NULL, STATUS_LIMIT, "nobody listens"), STATUS_LIMIT);
    ck_assert_int_eq(error_set(&error, STATUS_INVALID, "%0500d", 1), STATUS_INVALID);
    ck_assert_uint_eq(strlen(error.text), sizeof error.text - 1);
    ck_assert_str_eq(error.text + sizeof error.text - 4, "...");
}
END_TEST

// ---- there and back ----

enum { ROUNDS = 300 };

START_TEST(every_command_comes_back_as_it_was)
{
    random_state = 1000003u + (uint64_t)_i;
    for (int round = 0; round < ROUNDS; round++) {
        struct wire_request request = random_request(_i), decoded;
        struct wire_buffer buffer = encoded_request(&request);
        struct error error = {0};
        enum status status = wire_decode_request(buffer.data, buffer.size, &decoded, &error);
        ck_assert_msg(status == STATUS_OK, "%s: %s", commands[_i].name, error.text);
        const char *found = request_difference(&request, &decoded);
        ck_assert_msg(!found, "%s: %s differs", commands[_i].name, found ? found : "");
        wire_buffer_finish(&buffer);
        ck_assert_ptr_null(buffer.data);
    }
}
END_TEST

START_TEST(every_answer_comes_back_as_it_was)
{
    random_state = 2000003u + (uint64_t)_i;
    for (int round = 0; round < ROUNDS; round++) {
        struct wire_reply reply = random_reply(_i), decoded;
        struct wire_buffer buffer = encoded_reply(&reply);
        struct error error = {0};
        enum status status = wire_decode_reply(buffer.data, buffer.size, &decoded, &error);
        ck_assert_msg(status == STATUS_OK, "%s: %s", answers[_i].name, error.text);
        const char *found = reply_difference(&reply, &decoded);
        ck_assert_msg(!found, "%s: %s differs", answers[_i].name, found ? found : "");
        wire_reply_finish(&decoded);
        ck_assert(is_zero(decoded.owned, sizeof decoded.owned));
        wire_buffer_finish(&buffer);
    }
}
END_TEST

START_TEST(what_is_absent_decodes_to_empty)
{
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN}, decoded;
    struct wire_buffer buffer = encoded_request(&request);
    ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_str_eq(decoded.cache_open.name, "");
    ck_assert_ptr_null(decoded.cache_open.fingerprint.data);
    ck_assert_uint_eq(decoded.cache_open.fingerprint.count, 0);
    wire_buffer_finish(&buffer);

    request = (struct wire_request){.command = WIRE_COMMAND_MERGE};
    buffer = encoded_request(&request);
    ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_ptr_null(decoded.merge.outs.data);
    ck_assert(is_zero(&decoded.merge.lse, sizeof decoded.merge.lse));
    wire_buffer_finish(&buffer);

    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS}, answer;
    buffer = encoded_reply(&reply);
    ck_assert_int_eq(wire_decode_reply(buffer.data, buffer.size, &answer, NULL), STATUS_OK);
    ck_assert_str_eq(answer.message, "");
    ck_assert_ptr_null(answer.inspect_sessions.sessions);
    ck_assert_uint_eq(answer.inspect_sessions.names.count, 0);
    wire_reply_finish(&answer);
    wire_buffer_finish(&buffer);
    wire_buffer_finish(NULL);
    wire_reply_finish(NULL);
}
END_TEST

// FlatBuffers aligns the elements of a vector, not the place where an empty one would have them.
START_TEST(empty_vectors_are_absent_wherever_they_lie)
{
    static const struct wire_tensor tensors[1];
    static const int64_t slots[1];
    char name[8];
    for (size_t length = 0; length < sizeof name; length++) { // moves what is written after it
        memset(name, 'n', length);
        name[length] = '\0';
        struct wire_request request = {.command = WIRE_COMMAND_MERGE,
                                       .merge = {.outs = {tensors, 0}, .lses = {tensors, 0}}};
        struct wire_request decoded;
        for (int i = 0; i < 2; i++) {
            struct wire_buffer buffer = encoded_request(&request);
            struct error error = {0};
            ck_assert_msg(!wire_decode_request(buffer.data, buffer.size, &decoded, &error), "%s", error.text);
            ck_assert(i || (!decoded.merge.outs.data && !decoded.merge.lses.data));
            ck_assert(!i || !decoded.batch_create.slot_mapping.data);
            wire_buffer_finish(&buffer);
            request = (struct wire_request){
                .command = WIRE_COMMAND_BATCH_CREATE,
                .batch_create = {.slot_mapping = {slots, 0}, .mask = {(const uint8_t *)name, (uint32_t)length}}};
        }
    }
}
END_TEST

// A layout whose numbers are all 0 says more than none.
START_TEST(an_empty_layout_is_not_an_absent_one)
{
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_CREATE}, decoded;
    for (int given = 0; given < 2; given++) {
        request.batch_create.has_layout = given;
        struct wire_buffer buffer = encoded_request(&request);
        ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
        ck_assert_int_eq(decoded.batch_create.has_layout, given);
        wire_buffer_finish(&buffer);
    }
}
END_TEST

// ---- damaged ----

// A cut may take nothing but padding from the end; then the message must still say the same.
static void cut_request(const struct wire_request *request, const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    struct wire_request decoded;
    struct error error = {0};
    enum status status = wire_decode_request(copy, size, &decoded, &error);
    if (status == STATUS_OK) {
        ck_assert_ptr_null(request_difference(request, &decoded));
    } else {
        ck_assert_int_eq(status, STATUS_MALFORMED);
        ck_assert_int_eq(error.status, STATUS_MALFORMED);
        ck_assert_uint_gt(strlen(error.text), 10);
        ck_assert(is_zero(&decoded, sizeof decoded));
    }
    free(copy);
}

static void cut_reply(const struct wire_reply *reply, const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    struct wire_reply decoded;
    struct error error = {0};
    enum status status = wire_decode_reply(copy, size, &decoded, &error);
    if (status == STATUS_OK) {
        ck_assert_ptr_null(reply_difference(reply, &decoded));
    } else {
        ck_assert_int_eq(status, STATUS_MALFORMED);
        ck_assert_uint_gt(strlen(error.text), 10);
        ck_assert(is_zero(&decoded, sizeof decoded));
    }
    wire_reply_finish(&decoded);
    free(copy);
}

START_TEST(every_truncation_of_a_command_is_refused_or_harmless)
{
    random_state = 3000017u + (uint64_t)_i;
    struct wire_request request = random_request(_i);
    struct wire_buffer buffer = encoded_request(&request);
    for (size_t size = 0; size < buffer.size; size++)
        cut_request(&request, buffer.data, size);
    wire_buffer_finish(&buffer);
}
END_TEST

START_TEST(every_truncation_of_an_answer_is_refused_or_harmless)
{
    random_state = 4000037u + (uint64_t)_i;
    struct wire_reply reply = random_reply(_i);
    struct wire_buffer buffer = encoded_reply(&reply);
    for (size_t size = 0; size < buffer.size; size++)
        cut_reply(&reply, buffer.data, size);
    wire_buffer_finish(&buffer);
}
END_TEST

enum { MUTATIONS = 10000, MUTATIONS_OF_ONE = 100 }; // a message; times 39 messages

// Interesting bytes sit in the small numbers: half of the mutations write one of those.
static void mutate(unsigned char *message, size_t size)
{
    static const unsigned char small[] = {0, 1, 2, 4, 8, 16, 127, 128, 255};
    for (uint32_t i = 0, count = 1 + random_below(4); i < count; i++) {
        size_t at = random_below(random_below(2) && size > 64 ? 64 : (uint32_t)size);
        message[at] = random_below(2) ? small[random_below(sizeof small)] : (unsigned char)random_u64();
    }
}

// Whatever was accepted can be read to its last byte and written again.
static void mutated_request(const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    mutate(copy, size);
    struct wire_request decoded;
    if (wire_decode_request(copy, size, &decoded, NULL) == STATUS_OK) {
        ck_assert_int_gt(decoded.command, WIRE_COMMAND_NONE);
        ck_assert_int_lt(decoded.command, WIRE_COMMAND_COUNT);
        touch_fields(commands[decoded.command].fields, &decoded.hello);
        struct wire_buffer again;
        enum status status = wire_encode_request(&decoded, &again, NULL);
        ck_assert(status == STATUS_OK || status == STATUS_LIMIT); // one string may have stood for several
        wire_buffer_finish(&again);
    }
    free(copy);
}

static void mutated_reply(const void *message, size_t size)
{
    void *copy = exact_copy(message, size);
    mutate(copy, size);
    struct wire_reply decoded;
    if (wire_decode_reply(copy, size, &decoded, NULL) == STATUS_OK) {
        ck_assert_int_gt(decoded.answer, WIRE_ANSWER_NONE);
        ck_assert_int_lt(decoded.answer, WIRE_ANSWER_COUNT);
        touch_reply(&decoded);
        struct wire_buffer again;
        enum status status = wire_encode_reply(&decoded, &again, NULL);
        ck_assert(status == STATUS_OK || status == STATUS_LIMIT);
        wire_buffer_finish(&again);
    }
    wire_reply_finish(&decoded);
    free(copy);
}

START_TEST(mutated_commands_are_refused_or_readable)
{
    random_state = 5000011u + (uint64_t)_i;
    for (int i = 0; i < MUTATIONS / MUTATIONS_OF_ONE; i++) {
        struct wire_request request = random_request(_i);
        struct wire_buffer buffer = encoded_request(&request);
        for (int k = 0; k < MUTATIONS_OF_ONE; k++)
            mutated_request(buffer.data, buffer.size);
        wire_buffer_finish(&buffer);
    }
}
END_TEST

START_TEST(mutated_answers_are_refused_or_readable)
{
    random_state = 6000011u + (uint64_t)_i;
    for (int i = 0; i < MUTATIONS / MUTATIONS_OF_ONE; i++) {
        struct wire_reply reply = random_reply(_i);
        struct wire_buffer buffer = encoded_reply(&reply);
        for (int k = 0; k < MUTATIONS_OF_ONE; k++)
            mutated_reply(buffer.data, buffer.size);
        wire_buffer_finish(&buffer);
    }
}
END_TEST

START_TEST(random_bytes_behind_the_identifier_are_refused_or_readable)
{
    random_state = 7000003;
    for (int i = 0; i < 20000; i++) {
        heap_used = 0;
        size_t size = 8 + random_below(200);
        unsigned char *message = heap_random(size);
        memcpy(message + 4, "AULE", 4);
        memcpy(message, (uint32_t[]){8 + 4 * random_below(8)}, 4);
        mutated_request(message, size);
        mutated_reply(message, size);
    }
}
END_TEST

// ---- forged: a valid message with one thing wrong, found by FlatBuffers' own layout ----

static uint32_t load32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void store32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static unsigned char *follow(unsigned char *at)
{
    return at + load32(at);
}

// The 16-bit vtable entry of field `index` of a table, and the field itself (NULL if it is absent).
static unsigned char *vtable_entry(unsigned char *table, int index)
{
    return table - (int32_t)load32(table) + 4 + (ptrdiff_t)2 * index;
}

static unsigned char *field_at(unsigned char *table, int index)
{
    uint16_t offset;
    memcpy(&offset, vtable_entry(table, index), sizeof offset);
    ck_assert_uint_ne(offset, 0);
    return table + offset;
}

static void forget_field(unsigned char *table, int index)
{
    memset(vtable_entry(table, index), 0, 2);
}

enum { REQUEST_TYPE = 2, REQUEST_COMMAND = 3, REPLY_MESSAGE = 1, REPLY_TYPE = 2, REPLY_ANSWER = 3 };

static unsigned char *command_of(struct wire_buffer *buffer)
{
    return follow(field_at(follow(buffer->data), REQUEST_COMMAND));
}

static unsigned char *answer_of(struct wire_buffer *buffer)
{
    return follow(field_at(follow(buffer->data), REPLY_ANSWER));
}

// The message must be refused as MALFORMED, with `words` in the sentence. Ends the buffer.
static void assert_request_refused(struct wire_buffer *buffer, const char *words)
{
    struct wire_request decoded;
    struct error error = {0};
    void *copy = exact_copy(buffer->data, buffer->size);
    ck_assert_int_eq(wire_decode_request(copy, buffer->size, &decoded, &error), STATUS_MALFORMED);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" lacks \"%s\"", error.text, words);
    ck_assert(is_zero(&decoded, sizeof decoded));
    free(copy);
    wire_buffer_finish(buffer);
}

static void assert_reply_refused(struct wire_buffer *buffer, const char *words)
{
    struct wire_reply decoded;
    struct error error = {0};
    void *copy = exact_copy(buffer->data, buffer->size);
    ck_assert_int_eq(wire_decode_reply(copy, buffer->size, &decoded, &error), STATUS_MALFORMED);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" lacks \"%s\"", error.text, words);
    ck_assert(is_zero(&decoded, sizeof decoded));
    free(copy);
    wire_buffer_finish(buffer);
}

START_TEST(a_union_with_a_type_but_no_value_is_refused)
{
    struct wire_request request = {.session = 1, .epoch = 1, .command = WIRE_COMMAND_WAIT};
    struct wire_buffer buffer = encoded_request(&request);
    forget_field(follow(buffer.data), REQUEST_COMMAND);
    assert_request_refused(&buffer, "no value");

    struct wire_reply reply = {.status = 1, .message = "x", .answer = WIRE_ANSWER_RUN};
    buffer = encoded_reply(&reply);
    forget_field(follow(buffer.data), REPLY_ANSWER);
    assert_reply_refused(&buffer, "no value");
}
END_TEST

START_TEST(an_unknown_or_missing_union_member_is_refused_with_its_number)
{
    struct wire_request request = {.session = 1, .epoch = 1, .command = WIRE_COMMAND_WAIT};
    struct wire_buffer buffer = encoded_request(&request);
    *field_at(follow(buffer.data), REQUEST_TYPE) = WIRE_COMMAND_COUNT;
    assert_request_refused(&buffer, "unknown command 26");
    buffer = encoded_request(&request);
    *field_at(follow(buffer.data), REQUEST_TYPE) = 0;
    assert_request_refused(&buffer, "no command");

    struct wire_reply reply = {.status = 1, .answer = WIRE_ANSWER_RUN};
    buffer = encoded_reply(&reply);
    *field_at(follow(buffer.data), REPLY_TYPE) = 255;
    assert_reply_refused(&buffer, "unknown answer 255");
    buffer = encoded_reply(&reply);
    *field_at(follow(buffer.data), REPLY_TYPE) = 0;
    assert_reply_refused(&buffer, "no answer");
}
END_TEST

START_TEST(a_run_without_its_entry_is_refused)
{
    struct wire_request request = {.session = 1, .command = WIRE_COMMAND_RUN, .run = {.timeout_ms = 5}};
    struct wire_buffer buffer = encoded_request(&request);
    forget_field(command_of(&buffer), 0);
    assert_request_refused(&buffer, "message");
}
END_TEST

START_TEST(a_wrong_identifier_is_refused_with_its_bytes)
{
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DAEMON};
    struct wire_buffer buffer = encoded_request(&request);
    memcpy((char *)buffer.data + 4, "AULF", 4);
    assert_request_refused(&buffer, "41 55 4c 46");
}
END_TEST

START_TEST(an_oversized_message_is_refused_with_both_sizes)
{
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DAEMON};
    struct wire_buffer buffer = encoded_request(&request);
    size_t size = WIRE_MAX_MESSAGE + 8;
    unsigned char *large = calloc(1, size);
    ck_assert_ptr_nonnull(large);
    memcpy(large, buffer.data, buffer.size);
    struct wire_request decoded;
    ck_assert_int_eq(wire_decode_request(large, WIRE_MAX_MESSAGE, &decoded, NULL), STATUS_OK);
    wire_buffer_finish(&buffer);
    buffer = (struct wire_buffer){large, size};
    assert_request_refused(&buffer, "1048584 bytes; at most 1048576");
}
END_TEST

START_TEST(a_message_at_an_odd_address_is_invalid)
{
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_DAEMON}, decoded;
    struct wire_buffer buffer = encoded_request(&request);
    char *copy = malloc(buffer.size + 4);
    memcpy(copy + 4, buffer.data, buffer.size);
    ck_assert_int_eq(wire_decode_request(copy + 4, buffer.size, &decoded, NULL), STATUS_INVALID);
    free(copy);
    wire_buffer_finish(&buffer);
    ck_assert_int_eq(wire_decode_request(NULL, 0, &decoded, NULL), STATUS_MALFORMED);
}
END_TEST

START_TEST(a_vector_that_claims_more_than_the_message_is_refused)
{
    static const uint32_t lengths[] = {4, 5, 256, 0x3fffffff, 0x40000000, 0x7fffffff, 0x80000000, 0xffffffff};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct wire_request request = {
            .session = 1, .command = WIRE_COMMAND_BLOCKS_RELEASE, .blocks_release = {1, {(int32_t[]){1, 2, 3}, 3}}};
        struct wire_buffer buffer = encoded_request(&request);
        store32(follow(field_at(command_of(&buffer), 1)), lengths[i]);
        assert_request_refused(&buffer, "outside");
    }
}
END_TEST

// The verifier of FlatBuffers 2.0.8 lets it pass: it looks at where the length lies only.
START_TEST(elements_at_an_odd_address_are_refused)
{
    int64_t slots[4] = {1, 2, 3, 4};
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_CREATE, .batch_create = {.slot_mapping = {slots, 4}}};
    struct wire_buffer buffer = encoded_request(&request);
    unsigned char *field = field_at(command_of(&buffer), 6);
    store32(field, load32(field) + 4);
    store32(follow(field), 1);
    assert_request_refused(&buffer, "slot_mapping do not lie at a multiple of 8");

    struct wire_tensor tensors[3] = {{.dtype = DTYPE_F16}};
    request =
        (struct wire_request){.command = WIRE_COMMAND_MERGE, .merge = {.outs = {tensors, 3}, .lses = {tensors, 3}}};
    for (int part = 3; part <= 4; part++) {
        buffer = encoded_request(&request);
        field = field_at(command_of(&buffer), part);
        store32(field, load32(field) + 4);
        store32(follow(field), 1);
        assert_request_refused(&buffer, part == 3 ? "outs do not lie at a multiple of 8" : "lses do not lie");
    }

    struct wire_session_state sessions[2] = {{.session = 1}};
    const char *names[] = {"a", "b"};
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS,
                               .inspect_sessions = {2, 2, sessions, {names, 2}, {names, 2}}};
    buffer = encoded_reply(&reply);
    field = field_at(answer_of(&buffer), 1);
    store32(field, load32(field) + 4);
    store32(follow(field), 1);
    assert_reply_refused(&buffer, "sessions do not lie at a multiple of 8");
}
END_TEST

// The strings of Hello lie tenant first; a tenant whose length reaches over the client's name is a longer name.
START_TEST(names_that_are_too_long_are_refused_with_their_length)
{
    char longest[WIRE_MAX_NAME + 1];
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    struct wire_request request = {.command = WIRE_COMMAND_HELLO, .hello = {1, 2, longest, "abcd", 0}};
    struct wire_buffer buffer = encoded_request(&request);
    unsigned char *tenant = follow(field_at(command_of(&buffer), 3)), *end = (unsigned char *)buffer.data + buffer.size;
    while (end[-2] == 0)
        end--;
    uint32_t length = (uint32_t)(end - 1 - (tenant + 4));
    store32(tenant, length);
    memset(tenant + 4, 'n', length);
    forget_field(command_of(&buffer), 2); // its length is overwritten
    ck_assert_uint_gt(length, WIRE_MAX_NAME);
    char words[64];
    snprintf(words, sizeof words, "tenant has %u bytes", length);
    assert_request_refused(&buffer, words);
}
END_TEST

START_TEST(a_nul_byte_inside_a_name_is_refused)
{
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN, .cache_open = {.name = "model"}};
    struct wire_buffer buffer = encoded_request(&request);
    follow(field_at(command_of(&buffer), 0))[4 + 2] = '\0';
    assert_request_refused(&buffer, "name holds a NUL");
}
END_TEST

START_TEST(fingerprints_and_extra_keys_that_are_too_long_are_refused)
{
    unsigned char bytes[WIRE_MAX_EXTRA_KEY] = {0};
    int32_t tokens[8] = {0};
    struct wire_request request = {
        .command = WIRE_COMMAND_CACHE_OPEN,
        .cache_open = {.name = "a model with a long name", .fingerprint = {bytes, WIRE_MAX_FINGERPRINT}}};
    struct wire_buffer buffer = encoded_request(&request);
    store32(follow(field_at(command_of(&buffer), 10)), WIRE_MAX_FINGERPRINT + 1);
    assert_request_refused(&buffer, "fingerprint has 65 bytes; at most 64");

    request = (struct wire_request){.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                    .prefix_lookup = {.cache = 1, .tokens = {tokens, 8}, .extra_key = {bytes, 256}}};
    buffer = encoded_request(&request);
    store32(follow(field_at(command_of(&buffer), 4)), 257);
    assert_request_refused(&buffer, "extra_key has 257 bytes; at most 256");

    request = (struct wire_request){.command = WIRE_COMMAND_PREFIX_PUBLISH,
                                    .prefix_publish = {.cache = 1, .tokens = {tokens, 8}, .extra_key = {bytes, 256}}};
    buffer = encoded_request(&request);
    store32(follow(field_at(command_of(&buffer), 4)), 257);
    assert_request_refused(&buffer, "extra_key has 257 bytes; at most 256");
}
END_TEST

START_TEST(lists_of_unequal_length_are_refused_with_both)
{
    struct wire_session_state sessions[3] = {{.session = 1}};
    const char *names[] = {"a", "b", "c"};
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS,
                               .inspect_sessions = {3, 3, sessions, {names, 3}, {names, 3}}};
    for (int part = 2; part <= 3; part++) {
        struct wire_buffer buffer = encoded_reply(&reply);
        store32(follow(field_at(answer_of(&buffer), part)), 2);
        assert_reply_refused(&buffer, part == 2 ? "names has 2 entries beside 3" : "tenants has 2 entries beside 3");
    }
    struct wire_cache_counts caches[2] = {{.cache = 1}};
    reply = (struct wire_reply){.answer = WIRE_ANSWER_INSPECT_CACHES, .inspect_caches = {2, 2, caches, {names, 2}}};
    struct wire_buffer buffer = encoded_reply(&reply);
    forget_field(answer_of(&buffer), 2);
    assert_reply_refused(&buffer, "names has 0 entries beside 2");

    reply = (struct wire_reply){
        .answer = WIRE_ANSWER_INSPECT_DEVICE,
        .inspect_device = {.variants = {names, 3}, .variant_needs = {names, 3}, .variant_missing = {names, 3}}};
    for (int part = 17; part <= 18; part++) {
        buffer = encoded_reply(&reply);
        store32(follow(field_at(answer_of(&buffer), part)), 2);
        assert_reply_refused(&buffer, part == 17 ? "variant_needs has 2 entries beside 3 of variants"
                                                 : "variant_missing has 2 entries beside 3 of variants");
    }
    struct wire_tune_entry entries[3] = {{.num_workgroups = 1}};
    struct wire_reply tuned = {
        .answer = WIRE_ANSWER_TUNE,
        .tune = {.total = 3, .count = 3, .entries = entries, .kernels = {names, 3}, .geometries = {names, 3}}};
    for (int part = 9; part <= 10; part++) {
        buffer = encoded_reply(&tuned);
        store32(follow(field_at(answer_of(&buffer), part)), 2);
        assert_reply_refused(&buffer, part == 9 ? "kernels has 2 entries beside 3 of entries"
                                                : "geometries has 2 entries beside 3 of entries");
    }
    reply.inspect_device.variant_missing.count = 1;
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, NULL), STATUS_INVALID);
}
END_TEST

// 100,000 names that are all the same long string: reading each to its end would take 50 GB of reads.
START_TEST(many_names_that_share_one_long_string_are_refused_quickly)
{
    enum { NAMES = 100000, TEXT_SIZE = 500000 };
    char *text = malloc(TEXT_SIZE + 1);
    const char **names = calloc(NAMES, sizeof *names);
    ck_assert(text && names);
    memset(text, 't', TEXT_SIZE);
    text[TEXT_SIZE] = '\0';
    for (int i = 0; i < NAMES; i++)
        names[i] = "";
    struct wire_reply reply = {
        .message = "", .answer = WIRE_ANSWER_INSPECT_CACHES, .inspect_caches = {.names = {names, 10}}};
    struct wire_buffer buffer;
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, NULL), STATUS_INVALID); // unequal; so build it from a valid one
    struct wire_cache_counts *caches = calloc(10, sizeof *caches);
    ck_assert_ptr_nonnull(caches);
    reply = (struct wire_reply){.answer = WIRE_ANSWER_INSPECT_CACHES, .inspect_caches = {10, 10, caches, {names, 10}}};
    buffer = encoded_reply(&reply);
    // A larger copy: the same message, then a vector of NAMES offsets, then the one string that they all lead to.
    size_t start = (buffer.size + 7) / 8 * 8, size = start + 4 + sizeof(uint32_t) * NAMES + 4 + TEXT_SIZE + 4;
    unsigned char *forged = calloc(1, size);
    ck_assert_ptr_nonnull(forged);
    memcpy(forged, buffer.data, buffer.size);
    unsigned char *string = forged + start + 4 + sizeof(uint32_t) * NAMES;
    store32(forged + start, NAMES);
    for (uint32_t i = 0; i < NAMES; i++) {
        unsigned char *at = forged + start + 4 + sizeof(uint32_t) * i;
        store32(at, (uint32_t)(string - at));
    }
    store32(string, TEXT_SIZE);
    memcpy(string + 4, text, TEXT_SIZE);
    wire_buffer_finish(&buffer);
    buffer = (struct wire_buffer){forged, size};
    unsigned char *field = field_at(answer_of(&buffer), 2);
    store32(field, (uint32_t)(forged + start - field));
    assert_reply_refused(&buffer, "an entry of names has 500000 bytes");
    free(caches);
    free(names);
    free(text);
}
END_TEST

START_TEST(a_uuid_of_another_length_is_refused)
{
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_DEVICE, .inspect_device = {.name = "x"}};
    struct wire_buffer buffer = encoded_reply(&reply);
    store32(follow(field_at(answer_of(&buffer), 3)), 15);
    assert_reply_refused(&buffer, "uuid has 15 bytes, not 16");
}
END_TEST

START_TEST(a_status_outside_the_list_passes_through)
{
    struct wire_reply reply = {.status = 4711, .message = "from a newer daemon", .answer = WIRE_ANSWER_EMPTY}, decoded;
    struct wire_buffer buffer = encoded_reply(&reply);
    ck_assert_int_eq(wire_decode_reply(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_int_eq(decoded.status, 4711);
    wire_reply_finish(&decoded);
    wire_buffer_finish(&buffer);
}
END_TEST

// ---- what encoding refuses ----

static void assert_not_encoded(const struct wire_request *request, enum status expected, const char *words)
{
    struct wire_buffer buffer = {&buffer, 1};
    struct error error = {0};
    ck_assert_int_eq(wire_encode_request(request, &buffer, &error), expected);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" lacks \"%s\"", error.text, words);
    ck_assert_ptr_null(buffer.data);
    ck_assert_uint_eq(buffer.size, 0);
}

START_TEST(encoding_refuses_what_is_no_command_or_too_long)
{
    char name[WIRE_MAX_NAME + 2];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    unsigned char bytes[300] = {0};
    struct wire_request request = {.command = WIRE_COMMAND_NONE};
    assert_not_encoded(&request, STATUS_INVALID, "no command");
    request.command = WIRE_COMMAND_COUNT;
    assert_not_encoded(&request, STATUS_INVALID, "unknown command 26");
    request = (struct wire_request){.command = WIRE_COMMAND_HELLO, .hello = {.client_name = name}};
    assert_not_encoded(&request, STATUS_INVALID, "client_name has 256 bytes");
    request = (struct wire_request){.command = WIRE_COMMAND_CACHE_OPEN, .cache_open = {.fingerprint = {bytes, 65}}};
    assert_not_encoded(&request, STATUS_INVALID, "fingerprint has 65 bytes");
    request =
        (struct wire_request){.command = WIRE_COMMAND_PREFIX_PUBLISH, .prefix_publish = {.extra_key = {bytes, 300}}};
    assert_not_encoded(&request, STATUS_INVALID, "extra_key has 300 bytes");
    request = (struct wire_request){.command = WIRE_COMMAND_BLOCKS_RELEASE, .blocks_release = {1, {NULL, 3}}};
    assert_not_encoded(&request, STATUS_INVALID, "3 elements has no data");
    request = (struct wire_request){.command = WIRE_COMMAND_MERGE, .merge = {.lses = {NULL, 2}}};
    assert_not_encoded(&request, STATUS_INVALID, "2 elements has no data");
    struct wire_reply reply = {.answer = WIRE_ANSWER_NONE};
    struct wire_buffer buffer;
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, NULL), STATUS_INVALID);
    const char *names[] = {"plain", name}, *shorts[] = {"", ""};
    struct error error = {0};
    reply = (struct wire_reply){
        .answer = WIRE_ANSWER_INSPECT_DEVICE,
        .inspect_device = {.variants = {shorts, 2}, .variant_needs = {names, 2}, .variant_missing = {shorts, 2}}};
    ck_assert_int_eq(wire_encode_reply(&reply, &buffer, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "variant_needs has 256 bytes") != NULL, "%s", error.text);
}
END_TEST

START_TEST(encoding_stops_at_the_largest_message_and_says_by_how_much)
{
    enum { ROOM = 1 << 18 };
    int32_t *blocks = calloc(ROOM, sizeof *blocks);
    ck_assert_ptr_nonnull(blocks);
    struct wire_request request = {.command = WIRE_COMMAND_BLOCKS_RELEASE, .blocks_release = {1, {blocks, 1000}}};
    struct wire_buffer buffer = encoded_request(&request);
    uint32_t frame = (uint32_t)buffer.size - 4000, most = (WIRE_MAX_MESSAGE - frame) / 4 & ~1u;
    wire_buffer_finish(&buffer);

    request.blocks_release.blocks.count = most;
    buffer = encoded_request(&request);
    ck_assert_uint_le(buffer.size, WIRE_MAX_MESSAGE);
    ck_assert_uint_gt(buffer.size, WIRE_MAX_MESSAGE - 16);
    struct wire_request decoded;
    ck_assert_int_eq(wire_decode_request(buffer.data, buffer.size, &decoded, NULL), STATUS_OK);
    ck_assert_uint_eq(decoded.blocks_release.blocks.count, most);
    wire_buffer_finish(&buffer);

    request.blocks_release.blocks.count = most + 4;
    assert_not_encoded(&request, STATUS_LIMIT, " more than a message may have (1048576)");
    request.blocks_release.blocks.count = UINT32_MAX; // never read: the count alone is too much
    assert_not_encoded(&request, STATUS_LIMIT, "at least 17179869180 bytes");
    free(blocks);
}
END_TEST

START_TEST(an_allocation_that_fails_gives_no_memory_and_leaks_nothing)
{
    struct wire_session_state sessions[2] = {{.session = 1}};
    const char *names[] = {"a", "b"};
    struct wire_reply reply = {.answer = WIRE_ANSWER_INSPECT_SESSIONS,
                               .inspect_sessions = {2, 2, sessions, {names, 2}, {names, 2}}};
    struct wire_reply decoded;
    struct wire_buffer buffer;
    struct error error = {0};
    for (int i = 0; i < 3; i++) { // the message, the two lists of offsets
        allocations_left = i;
        enum status status = wire_encode_reply(&reply, &buffer, &error);
        allocations_left = -1;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(buffer.data);
    }
    buffer = encoded_reply(&reply);
    for (int i = 0; i < 3; i++) { // sessions, names, tenants
        allocations_left = i;
        enum status status = wire_decode_reply(buffer.data, buffer.size, &decoded, &error);
        allocations_left = -1;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert(is_zero(&decoded, sizeof decoded));
    }
    wire_buffer_finish(&buffer);
}
END_TEST

static void add_damage(Suite *suite)
{
    TCase *tests = tcase_create("damaged");
    tcase_add_loop_test(tests, every_truncation_of_a_command_is_refused_or_harmless, 1, WIRE_COMMAND_COUNT);
    tcase_add_loop_test(tests, every_truncation_of_an_answer_is_refused_or_harmless, 1, WIRE_ANSWER_COUNT);
    tcase_add_loop_test(tests, mutated_commands_are_refused_or_readable, 1, WIRE_COMMAND_COUNT);
    tcase_add_loop_test(tests, mutated_answers_are_refused_or_readable, 1, WIRE_ANSWER_COUNT);
    tcase_add_test(tests, random_bytes_behind_the_identifier_are_refused_or_readable);
    suite_add_tcase(suite, tests);
}

static void add_forgeries(Suite *suite)
{
    TCase *tests = tcase_create("forged");
    tcase_add_test(tests, a_union_with_a_type_but_no_value_is_refused);
    tcase_add_test(tests, an_unknown_or_missing_union_member_is_refused_with_its_number);
    tcase_add_test(tests, a_run_without_its_entry_is_refused);
    tcase_add_test(tests, a_wrong_identifier_is_refused_with_its_bytes);
    tcase_add_test(tests, an_oversized_message_is_refused_with_both_sizes);
    tcase_add_test(tests, a_message_at_an_odd_address_is_invalid);
    tcase_add_test(tests, a_vector_that_claims_more_than_the_message_is_refused);
    tcase_add_test(tests, elements_at_an_odd_address_are_refused);
    tcase_add_test(tests, names_that_are_too_long_are_refused_with_their_length);
    tcase_add_test(tests, a_nul_byte_inside_a_name_is_refused);
    tcase_add_test(tests, fingerprints_and_extra_keys_that_are_too_long_are_refused);
    tcase_add_test(tests, lists_of_unequal_length_are_refused_with_both);
    tcase_add_test(tests, many_names_that_share_one_long_string_are_refused_quickly);
    tcase_add_test(tests, a_uuid_of_another_length_is_refused);
    tcase_add_test(tests, a_status_outside_the_list_passes_through);
    suite_add_tcase(suite, tests);
}

static void add_rest(Suite *suite)
{
    TCase *tests = tcase_create("lists");
    tcase_add_test(tests, the_fields_of_this_test_cover_every_struct);
    tcase_add_test(tests, every_status_has_a_name_a_text_and_a_value_of_its_own);
    tcase_add_test(tests, every_dtype_has_a_name_and_a_size);
    tcase_add_test(tests, every_command_has_its_name);
    tcase_add_test(tests, an_error_takes_its_sentence_and_a_long_one_looks_cut);
    suite_add_tcase(suite, tests);

    tests = tcase_create("there and back");
    tcase_add_loop_test(tests, every_command_comes_back_as_it_was, 1, WIRE_COMMAND_COUNT);
    tcase_add_loop_test(tests, every_answer_comes_back_as_it_was, 1, WIRE_ANSWER_COUNT);
    tcase_add_test(tests, what_is_absent_decodes_to_empty);
    tcase_add_test(tests, empty_vectors_are_absent_wherever_they_lie);
    tcase_add_test(tests, an_empty_layout_is_not_an_absent_one);
    tcase_add_test(tests, encoding_refuses_what_is_no_command_or_too_long);
    tcase_add_test(tests, encoding_stops_at_the_largest_message_and_says_by_how_much);
    tcase_add_test(tests, an_allocation_that_fails_gives_no_memory_and_leaks_nothing);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    Suite *suite = suite_create("schema");
    add_rest(suite);
    add_damage(suite);
    add_forgeries(suite);
    return check_main(suite);
}
