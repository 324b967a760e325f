// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// v0_1.c - the functions that programs of aule 0.1 call. Their header passes no sizes, so these
// pass those of 0.1's structs. In a tensor of 0.1 the place of num_rows is padding, whose contents
// are undefined; so calls with tensors clear it in a copy of their struct. They go when the
// library's file is no longer found as libaule-client.so.0 (client/CMakeLists.txt).

#define AULE_BUILDS_0_1
#include "v0_1.h"

#include "caller.h"

// Copies the caller's struct to the library's `whole`, and clears num_rows in the tensors there.
#define WITHOUT_ROWS(type, given, whole, ...)                                                      \
    without_rows((given), SIZE_0_1(type), (whole), sizeof *(whole),                                \
                 (struct aule_tensor *[]){__VA_ARGS__, NULL})

static void without_rows(const void *given, size_t size, void *whole, size_t whole_size,
                         struct aule_tensor **tensors)
{
    if (!given)
        return;
    caller_give(whole, whole_size, given, size);
    for (; *tensors; tensors++)
        (*tensors)->num_rows = 0;
}

static const struct aule_run_params *take_run(const struct aule_run_params *given,
                                              struct aule_run_params *whole)
{
    WITHOUT_ROWS(aule_run_params, given, whole, &whole->q, &whole->k, &whole->v, &whole->out,
                 &whole->lse, &whole->keys, &whole->values);
    return given ? whole : NULL;
}

static const struct aule_attention_params *take_attention(const struct aule_attention_params *given,
                                                          struct aule_attention_params *whole)
{
    WITHOUT_ROWS(aule_attention_params, given, whole, &whole->run.q, &whole->run.k, &whole->run.v,
                 &whole->run.out, &whole->run.lse);
    return given ? whole : NULL;
}

enum aule_status aule_session_open(const struct aule_session_params *params,
                                   struct aule_session **session)
{
    return aule_session_open_sized(params, SIZE_0_1(aule_session_params), session);
}

enum aule_status aule_session_info(struct aule_session *session, struct aule_session_info *info)
{
    return aule_session_info_sized(session, info, SIZE_0_1(aule_session_info));
}

enum aule_status aule_cache_open(struct aule_session *session,
                                 const struct aule_cache_params *params, struct aule_cache **cache)
{
    return aule_cache_open_sized(session, params, SIZE_0_1(aule_cache_params), cache);
}

enum aule_status aule_cache_state(struct aule_cache *cache, struct aule_cache_state *state)
{
    return aule_cache_state_sized(cache, state, SIZE_0_1(aule_cache_state));
}

enum aule_status aule_prefix_lookup(struct aule_cache *cache, const struct aule_prefix *prefix,
                                    uint32_t max_tokens, int32_t *block_ids, uint32_t *num_blocks)
{
    return aule_prefix_lookup_sized(cache, prefix, SIZE_0_1(aule_prefix), max_tokens, block_ids,
                                    num_blocks);
}

enum aule_status aule_prefix_publish(struct aule_cache *cache, const struct aule_prefix *prefix,
                                     int32_t *block_ids, uint32_t *num_existing)
{
    return prefix_publish_0_1(cache, prefix, block_ids, num_existing);
}

enum aule_status aule_batch_create(struct aule_cache *cache, const struct aule_batch_params *params,
                                   struct aule_batch **batch)
{
    return aule_batch_create_sized(cache, params, SIZE_0_1(aule_batch_params), batch);
}

enum aule_status aule_batch_advance(struct aule_batch *batch, const struct aule_advance *advance)
{
    return aule_batch_advance_sized(batch, advance, SIZE_0_1(aule_advance));
}

enum aule_status aule_batch_create_local(struct aule_session *session,
                                         const struct aule_kv_layout *layout,
                                         const struct aule_batch_params *params,
                                         struct aule_batch **batch)
{
    return aule_batch_create_local_sized(session, layout, SIZE_0_1(aule_kv_layout), params,
                                         SIZE_0_1(aule_batch_params), batch);
}

void aule_metadata_finish(struct aule_metadata *metadata)
{
    aule_metadata_finish_sized(metadata, SIZE_0_1(aule_metadata));
}

enum aule_status aule_metadata_varlen(uint32_t num_seqs, const int32_t *cu_seqlens_q,
                                      const int32_t *cu_seqlens_k, uint32_t max_seqlen_q,
                                      uint32_t max_seqlen_k, struct aule_metadata *metadata)
{
    return aule_metadata_varlen_sized(num_seqs, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                      max_seqlen_k, metadata, SIZE_0_1(aule_metadata));
}

enum aule_status aule_metadata_tokens(const struct aule_token_form *form,
                                      struct aule_metadata *metadata)
{
    return aule_metadata_tokens_sized(form, SIZE_0_1(aule_token_form), metadata,
                                      SIZE_0_1(aule_metadata));
}

enum aule_status aule_metadata_append(uint32_t num_seqs, const int32_t *cache_seqlens,
                                      const int32_t *block_table, uint32_t max_blocks,
                                      uint32_t block_size, struct aule_metadata *metadata)
{
    return aule_metadata_append_sized(num_seqs, cache_seqlens, block_table, max_blocks, block_size,
                                      metadata, SIZE_0_1(aule_metadata));
}

enum aule_status aule_run_submit(struct aule_batch *batch, const struct aule_run_params *params,
                                 int timeout_ms, struct aule_ticket *ticket)
{
    struct aule_run_params whole;
    return aule_run_submit_sized(batch, take_run(params, &whole), sizeof whole, timeout_ms, ticket);
}

enum aule_status aule_ticket_wait(struct aule_session *session, struct aule_ticket ticket,
                                  int timeout_ms, struct aule_run_result *result)
{
    return aule_ticket_wait_sized(session, ticket, timeout_ms, result, SIZE_0_1(aule_run_result));
}

enum aule_status aule_run(struct aule_batch *batch, const struct aule_run_params *params,
                          int timeout_ms, struct aule_run_result *result)
{
    struct aule_run_params whole;
    return aule_run_sized(batch, take_run(params, &whole), sizeof whole, timeout_ms, result,
                          SIZE_0_1(aule_run_result));
}

enum aule_status aule_run_layers_submit(struct aule_batch *batch, const struct aule_run_params *run,
                                        const struct aule_layers *layers, int timeout_ms,
                                        struct aule_ticket *ticket)
{
    struct aule_run_params whole;
    return aule_run_layers_submit_sized(batch, take_run(run, &whole), sizeof whole, layers,
                                        SIZE_0_1(aule_layers), timeout_ms, ticket);
}

enum aule_status aule_run_layers(struct aule_batch *batch, const struct aule_run_params *run,
                                 const struct aule_layers *layers, int timeout_ms,
                                 struct aule_run_result *result)
{
    struct aule_run_params whole;
    return aule_run_layers_sized(batch, take_run(run, &whole), sizeof whole, layers,
                                 SIZE_0_1(aule_layers), timeout_ms, result,
                                 SIZE_0_1(aule_run_result));
}

enum aule_status aule_attention_submit(struct aule_session *session,
                                       const struct aule_attention_params *params, int timeout_ms,
                                       struct aule_ticket *ticket)
{
    struct aule_attention_params whole;
    return aule_attention_submit_sized(session, take_attention(params, &whole), sizeof whole,
                                       timeout_ms, ticket);
}

enum aule_status aule_attention(struct aule_session *session,
                                const struct aule_attention_params *params, int timeout_ms,
                                struct aule_run_result *result, struct aule_ticket *ticket)
{
    struct aule_attention_params whole;
    return aule_attention_sized(session, take_attention(params, &whole), sizeof whole, timeout_ms,
                                result, SIZE_0_1(aule_run_result), ticket);
}

enum aule_status aule_merge_submit(struct aule_session *session,
                                   const struct aule_merge_params *params, int timeout_ms,
                                   struct aule_ticket *ticket)
{
    return merge_submit_0_1(session, params, timeout_ms, ticket);
}

enum aule_status aule_kv_import(struct aule_cache *cache, const struct aule_kv_import *params,
                                int timeout_ms, struct aule_ticket *ticket)
{
    struct aule_kv_import whole;
    WITHOUT_ROWS(aule_kv_import, params, &whole, &whole.k, &whole.v);
    return aule_kv_import_sized(cache, params ? &whole : NULL, sizeof whole, timeout_ms, ticket);
}

enum aule_status aule_kv_gather(struct aule_batch *batch, const struct aule_kv_gather *params,
                                int timeout_ms, struct aule_ticket *ticket)
{
    struct aule_kv_gather whole;
    WITHOUT_ROWS(aule_kv_gather, params, &whole, &whole.k, &whole.v, &whole.keys, &whole.values);
    return aule_kv_gather_sized(batch, params ? &whole : NULL, sizeof whole, timeout_ms, ticket);
}

enum aule_status aule_monitor_ping(struct aule_monitor *monitor, struct aule_ping_info *info)
{
    return aule_monitor_ping_sized(monitor, info, SIZE_0_1(aule_ping_info));
}

enum aule_status aule_monitor_daemon(struct aule_monitor *monitor, struct aule_daemon_state *state)
{
    return aule_monitor_daemon_sized(monitor, state, SIZE_0_1(aule_daemon_state));
}

enum aule_status aule_monitor_device(struct aule_monitor *monitor, struct aule_device_state *state)
{
    return aule_monitor_device_sized(monitor, state, SIZE_0_1(aule_device_state));
}

enum aule_status aule_monitor_variants(struct aule_monitor *monitor,
                                       struct aule_variant_state **array, uint32_t *count)
{
    return aule_monitor_variants_sized(monitor, array, SIZE_0_1(aule_variant_state), count);
}

enum aule_status aule_monitor_sessions(struct aule_monitor *monitor,
                                       struct aule_session_state **array, uint32_t *count)
{
    return aule_monitor_sessions_sized(monitor, array, SIZE_0_1(aule_session_state), count);
}

enum aule_status aule_monitor_caches(struct aule_monitor *monitor, struct aule_cache_view **array,
                                     uint32_t *count)
{
    return aule_monitor_caches_sized(monitor, array, SIZE_0_1(aule_cache_view), count);
}

enum aule_status aule_monitor_blocks(struct aule_monitor *monitor, uint64_t cache,
                                     struct aule_block_state **array, uint32_t *count)
{
    return aule_monitor_blocks_sized(monitor, cache, array, SIZE_0_1(aule_block_state), count);
}

enum aule_status aule_monitor_tune(struct aule_monitor *monitor, enum aule_tune_action action,
                                   struct aule_tuning_state *state, struct aule_tuned_state **array,
                                   uint32_t *count)
{
    return aule_monitor_tune_sized(monitor, action, state, SIZE_0_1(aule_tuning_state), array,
                                   SIZE_0_1(aule_tuned_state), count);
}
