// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// schema_fields.c - see schema_fields.h.

#include "schema_fields.h"

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
                                   FIELD(scales, SPAN),
                                   FIELD(timeout_ms, I32),
                                   FIELD(waits, BOOL),
                                   FIELD(wait_ms, I32),
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
#define SHAPE wire_drop_cache
static const struct field drop_cache[] = {FIELD(cache, U64), END};
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
                                                    FIELD(ends_awake, U64),
                                                    FIELD(ends_asleep, U64),
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
const struct shape commands[WIRE_COMMAND_COUNT] = {
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
    [WIRE_COMMAND_DROP_CACHE] = {"drop_cache", drop_cache},
    [WIRE_COMMAND_BLOCKS_COPY] = {"blocks_copy", blocks_copy},
    [WIRE_COMMAND_MERGE] = {"merge", merge},
    [WIRE_COMMAND_TUNE] = {"tune", tune},
};
const struct shape answers[WIRE_ANSWER_COUNT] = {
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

const struct list lists[WIRE_ANSWER_COUNT] = {
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
                                    offsetof(struct wire_reply, inspect_caches.names),
                                    offsetof(struct wire_reply, inspect_caches.fingerprints)},
    [WIRE_ANSWER_INSPECT_BLOCKS] = {block_state, sizeof(struct wire_block_state),
                                    offsetof(struct wire_reply, inspect_blocks.total),
                                    offsetof(struct wire_reply, inspect_blocks.count),
                                    offsetof(struct wire_reply, inspect_blocks.blocks), 0, 0},
    [WIRE_ANSWER_TUNE] = {tune_entry, sizeof(struct wire_tune_entry), offsetof(struct wire_reply, tune.total),
                          offsetof(struct wire_reply, tune.count), offsetof(struct wire_reply, tune.entries),
                          offsetof(struct wire_reply, tune.kernels), offsetof(struct wire_reply, tune.geometries)},
};

const size_t kind_size[LAST + 1] = {
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

size_t kind_alignment(enum kind kind)
{
    if (kind == UUID)
        return 1;
    return kind == LAST || kind_size[kind] >= 8 ? 8 : kind_size[kind];
}
