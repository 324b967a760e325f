/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The aule authors */

/*
 * sized.h - the functions behind the inline ones of aule.h. C and C++ programs do not call them;
 * bindings of other languages do.
 *
 * aule.h describes each function under its name without _sized. The size argument behind a struct
 * is the struct's size in the caller's header. entry_size is the size of one element of *array, and
 * the distance from one element to the next.
 */

#ifndef AULE_SIZED_H
#define AULE_SIZED_H

#include "aule.h"

#ifdef __cplusplus
extern "C" {
#endif

AULE_API enum aule_status aule_session_open_sized(const struct aule_session_params *params,
                                                  size_t params_size,
                                                  struct aule_session **session);
AULE_API enum aule_status aule_session_info_sized(struct aule_session *session,
                                                  struct aule_session_info *info, size_t info_size);
AULE_API enum aule_status aule_device_export_sized(struct aule_session *session,
                                                   struct aule_device_export *export_,
                                                   size_t export_size);
AULE_API enum aule_status aule_cache_open_sized(struct aule_session *session,
                                                const struct aule_cache_params *params,
                                                size_t params_size, struct aule_cache **cache);
AULE_API enum aule_status aule_cache_state_sized(struct aule_cache *cache,
                                                 struct aule_cache_state *state, size_t state_size);
AULE_API enum aule_status aule_cache_attach_sized(struct aule_cache *cache,
                                                  struct aule_pool_info *info, size_t info_size);
AULE_API enum aule_status aule_cache_export_sized(struct aule_cache *cache, uint32_t part,
                                                  struct aule_pool_part *part_info,
                                                  size_t part_info_size);
AULE_API enum aule_status aule_cache_report_sized(struct aule_cache *cache,
                                                  const struct aule_report *report,
                                                  size_t report_size, uint64_t *mark);
AULE_API enum aule_status aule_prefix_lookup_sized(struct aule_cache *cache,
                                                   const struct aule_prefix *prefix,
                                                   size_t prefix_size, uint32_t max_tokens,
                                                   int32_t *block_ids, uint32_t *num_blocks);
AULE_API enum aule_status aule_prefix_keep_sized(struct aule_cache *cache,
                                                 const struct aule_prefix *prefix,
                                                 size_t prefix_size, enum aule_keep keep,
                                                 uint32_t *num_tokens);
AULE_API enum aule_status aule_prefix_claim_sized(struct aule_cache *cache,
                                                  const struct aule_prefix *prefix,
                                                  size_t prefix_size, uint32_t max_tokens,
                                                  int32_t *block_ids, struct aule_claim *claim);
AULE_API enum aule_status aule_prefix_publish_sized(struct aule_cache *cache,
                                                    const struct aule_prefix *prefix,
                                                    size_t prefix_size, int32_t *block_ids,
                                                    uint32_t *num_existing);
AULE_API enum aule_status aule_batch_create_sized(struct aule_cache *cache,
                                                  const struct aule_batch_params *params,
                                                  size_t params_size, struct aule_batch **batch);
AULE_API enum aule_status aule_batch_advance_sized(struct aule_batch *batch,
                                                   const struct aule_advance *advance,
                                                   size_t advance_size);
AULE_API enum aule_status aule_batch_create_local_sized(
    struct aule_session *session, const struct aule_kv_layout *layout, size_t layout_size,
    const struct aule_batch_params *params, size_t params_size, struct aule_batch **batch);
AULE_API void aule_metadata_finish_sized(struct aule_metadata *metadata, size_t metadata_size);
AULE_API enum aule_status aule_metadata_varlen_sized(uint32_t num_seqs, const int32_t *cu_seqlens_q,
                                                     const int32_t *cu_seqlens_k,
                                                     uint32_t max_seqlen_q, uint32_t max_seqlen_k,
                                                     struct aule_metadata *metadata,
                                                     size_t metadata_size);
AULE_API enum aule_status aule_metadata_tokens_sized(const struct aule_token_form *form,
                                                     size_t form_size,
                                                     struct aule_metadata *metadata,
                                                     size_t metadata_size);
AULE_API enum aule_status aule_metadata_append_sized(
    uint32_t num_seqs, const int32_t *cache_seqlens, const int32_t *block_table,
    uint32_t max_blocks, uint32_t block_size, struct aule_metadata *metadata, size_t metadata_size);
AULE_API enum aule_status aule_run_submit_sized(struct aule_batch *batch,
                                                const struct aule_run_params *params,
                                                size_t params_size, int timeout_ms,
                                                struct aule_ticket *ticket);
AULE_API enum aule_status aule_ticket_wait_sized(struct aule_session *session,
                                                 struct aule_ticket ticket, int timeout_ms,
                                                 struct aule_run_result *result,
                                                 size_t result_size);
AULE_API enum aule_status aule_wait_any_sized(struct aule_session *session,
                                              const struct aule_ticket *tickets,
                                              uint32_t num_tickets, int timeout_ms, uint32_t *index,
                                              struct aule_run_result *result, size_t result_size);
AULE_API enum aule_status aule_run_sized(struct aule_batch *batch,
                                         const struct aule_run_params *params, size_t params_size,
                                         int timeout_ms, struct aule_run_result *result,
                                         size_t result_size);
AULE_API enum aule_status aule_run_layers_submit_sized(struct aule_batch *batch,
                                                       const struct aule_run_params *run,
                                                       size_t run_size,
                                                       const struct aule_layers *layers,
                                                       size_t layers_size, int timeout_ms,
                                                       struct aule_ticket *ticket);
AULE_API enum aule_status aule_run_layers_sized(struct aule_batch *batch,
                                                const struct aule_run_params *run, size_t run_size,
                                                const struct aule_layers *layers,
                                                size_t layers_size, int timeout_ms,
                                                struct aule_run_result *result, size_t result_size);
AULE_API enum aule_status aule_attention_submit_sized(struct aule_session *session,
                                                      const struct aule_attention_params *params,
                                                      size_t params_size, int timeout_ms,
                                                      struct aule_ticket *ticket);
AULE_API enum aule_status aule_attention_sized(struct aule_session *session,
                                               const struct aule_attention_params *params,
                                               size_t params_size, int timeout_ms,
                                               struct aule_run_result *result, size_t result_size,
                                               struct aule_ticket *ticket);
AULE_API enum aule_status aule_merge_submit_sized(struct aule_session *session,
                                                  const struct aule_merge_params *params,
                                                  size_t params_size, int timeout_ms,
                                                  struct aule_ticket *ticket);
AULE_API enum aule_status aule_kv_import_sized(struct aule_cache *cache,
                                               const struct aule_kv_import *params,
                                               size_t params_size, int timeout_ms,
                                               struct aule_ticket *ticket);
AULE_API enum aule_status aule_kv_gather_sized(struct aule_batch *batch,
                                               const struct aule_kv_gather *params,
                                               size_t params_size, int timeout_ms,
                                               struct aule_ticket *ticket);
AULE_API enum aule_status aule_kv_export_sized(struct aule_cache *cache,
                                               const struct aule_kv_export *params,
                                               size_t params_size, int timeout_ms,
                                               struct aule_ticket *ticket);
AULE_API enum aule_status aule_warm_sized(struct aule_cache *cache,
                                          const struct aule_warm_params *params, size_t params_size,
                                          int timeout_ms);
AULE_API enum aule_status aule_monitor_ping_sized(struct aule_monitor *monitor,
                                                  struct aule_ping_info *info, size_t info_size);
AULE_API enum aule_status aule_monitor_metrics_sized(struct aule_monitor *monitor,
                                                     struct aule_metric **array, size_t entry_size,
                                                     uint32_t *count);
AULE_API enum aule_status aule_monitor_device_sized(struct aule_monitor *monitor,
                                                    struct aule_device_state *state,
                                                    size_t state_size);
AULE_API enum aule_status aule_monitor_variants_sized(struct aule_monitor *monitor,
                                                      struct aule_variant_state **array,
                                                      size_t entry_size, uint32_t *count);
AULE_API enum aule_status aule_monitor_sessions_sized(struct aule_monitor *monitor,
                                                      struct aule_session_state **array,
                                                      size_t entry_size, uint32_t *count);
AULE_API enum aule_status aule_monitor_tenants_sized(struct aule_monitor *monitor,
                                                     struct aule_tenant_state **array,
                                                     size_t entry_size, uint32_t *count);
AULE_API enum aule_status aule_monitor_caches_sized(struct aule_monitor *monitor,
                                                    struct aule_cache_view **array,
                                                    size_t entry_size, uint32_t *count);
AULE_API enum aule_status aule_monitor_prefix_sized(struct aule_monitor *monitor, uint64_t cache,
                                                    uint32_t *next,
                                                    struct aule_prefix_state **array,
                                                    size_t entry_size, uint32_t *count);
AULE_API enum aule_status aule_monitor_tokens_sized(struct aule_monitor *monitor, uint64_t cache,
                                                    int32_t block, struct aule_block_tokens *tokens,
                                                    size_t tokens_size);
AULE_API enum aule_status aule_monitor_blocks_sized(struct aule_monitor *monitor, uint64_t cache,
                                                    struct aule_block_state **array,
                                                    size_t entry_size, uint32_t *count);

/* ---- what a program calls ---- */

AULE_INLINE enum aule_status aule_session_open(const struct aule_session_params *params,
                                               struct aule_session **session)
{
    return aule_session_open_sized(params, sizeof *params, session);
}

AULE_INLINE enum aule_status aule_session_info(struct aule_session *session,
                                               struct aule_session_info *info)
{
    return aule_session_info_sized(session, info, sizeof *info);
}

AULE_INLINE enum aule_status aule_device_export(struct aule_session *session,
                                                struct aule_device_export *export_)
{
    return aule_device_export_sized(session, export_, sizeof *export_);
}

AULE_INLINE enum aule_status aule_cache_open(struct aule_session *session,
                                             const struct aule_cache_params *params,
                                             struct aule_cache **cache)
{
    return aule_cache_open_sized(session, params, sizeof *params, cache);
}

AULE_INLINE enum aule_status aule_cache_attach(struct aule_cache *cache,
                                               struct aule_pool_info *info)
{
    return aule_cache_attach_sized(cache, info, sizeof *info);
}

AULE_INLINE enum aule_status aule_cache_export(struct aule_cache *cache, uint32_t part,
                                               struct aule_pool_part *part_info)
{
    return aule_cache_export_sized(cache, part, part_info, sizeof *part_info);
}

AULE_INLINE enum aule_status aule_cache_report(struct aule_cache *cache,
                                               const struct aule_report *report, uint64_t *mark)
{
    return aule_cache_report_sized(cache, report, sizeof *report, mark);
}

AULE_INLINE enum aule_status aule_cache_state(struct aule_cache *cache,
                                              struct aule_cache_state *state)
{
    return aule_cache_state_sized(cache, state, sizeof *state);
}

AULE_INLINE enum aule_status aule_prefix_lookup(struct aule_cache *cache,
                                                const struct aule_prefix *prefix,
                                                uint32_t max_tokens, int32_t *block_ids,
                                                uint32_t *num_blocks)
{
    return aule_prefix_lookup_sized(cache, prefix, sizeof *prefix, max_tokens, block_ids,
                                    num_blocks);
}

AULE_INLINE enum aule_status aule_prefix_keep(struct aule_cache *cache,
                                              const struct aule_prefix *prefix, enum aule_keep keep,
                                              uint32_t *num_tokens)
{
    return aule_prefix_keep_sized(cache, prefix, sizeof *prefix, keep, num_tokens);
}

AULE_INLINE enum aule_status aule_prefix_claim(struct aule_cache *cache,
                                               const struct aule_prefix *prefix,
                                               uint32_t max_tokens, int32_t *block_ids,
                                               struct aule_claim *claim)
{
    return aule_prefix_claim_sized(cache, prefix, sizeof *prefix, max_tokens, block_ids, claim);
}

AULE_INLINE enum aule_status aule_prefix_publish(struct aule_cache *cache,
                                                 const struct aule_prefix *prefix,
                                                 int32_t *block_ids, uint32_t *num_existing)
{
    return aule_prefix_publish_sized(cache, prefix, sizeof *prefix, block_ids, num_existing);
}

AULE_INLINE enum aule_status aule_batch_create(struct aule_cache *cache,
                                               const struct aule_batch_params *params,
                                               struct aule_batch **batch)
{
    return aule_batch_create_sized(cache, params, sizeof *params, batch);
}

AULE_INLINE enum aule_status aule_batch_advance(struct aule_batch *batch,
                                                const struct aule_advance *advance)
{
    return aule_batch_advance_sized(batch, advance, sizeof *advance);
}

AULE_INLINE enum aule_status aule_batch_create_local(struct aule_session *session,
                                                     const struct aule_kv_layout *layout,
                                                     const struct aule_batch_params *params,
                                                     struct aule_batch **batch)
{
    return aule_batch_create_local_sized(session, layout, sizeof *layout, params, sizeof *params,
                                         batch);
}

AULE_INLINE void aule_metadata_finish(struct aule_metadata *metadata)
{
    aule_metadata_finish_sized(metadata, sizeof *metadata);
}

AULE_INLINE enum aule_status aule_metadata_varlen(uint32_t num_seqs, const int32_t *cu_seqlens_q,
                                                  const int32_t *cu_seqlens_k,
                                                  uint32_t max_seqlen_q, uint32_t max_seqlen_k,
                                                  struct aule_metadata *metadata)
{
    return aule_metadata_varlen_sized(num_seqs, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                      max_seqlen_k, metadata, sizeof *metadata);
}

AULE_INLINE enum aule_status aule_metadata_tokens(const struct aule_token_form *form,
                                                  struct aule_metadata *metadata)
{
    return aule_metadata_tokens_sized(form, sizeof *form, metadata, sizeof *metadata);
}

AULE_INLINE enum aule_status aule_metadata_append(uint32_t num_seqs, const int32_t *cache_seqlens,
                                                  const int32_t *block_table, uint32_t max_blocks,
                                                  uint32_t block_size,
                                                  struct aule_metadata *metadata)
{
    return aule_metadata_append_sized(num_seqs, cache_seqlens, block_table, max_blocks, block_size,
                                      metadata, sizeof *metadata);
}

AULE_INLINE enum aule_status aule_run_submit(struct aule_batch *batch,
                                             const struct aule_run_params *params, int timeout_ms,
                                             struct aule_ticket *ticket)
{
    return aule_run_submit_sized(batch, params, sizeof *params, timeout_ms, ticket);
}

AULE_INLINE enum aule_status aule_ticket_wait(struct aule_session *session,
                                              struct aule_ticket ticket, int timeout_ms,
                                              struct aule_run_result *result)
{
    return aule_ticket_wait_sized(session, ticket, timeout_ms, result, sizeof *result);
}

AULE_INLINE enum aule_status aule_wait_any(struct aule_session *session,
                                           const struct aule_ticket *tickets, uint32_t num_tickets,
                                           int timeout_ms, uint32_t *index,
                                           struct aule_run_result *result)
{
    return aule_wait_any_sized(session, tickets, num_tickets, timeout_ms, index, result,
                               sizeof *result);
}

AULE_INLINE enum aule_status aule_run(struct aule_batch *batch,
                                      const struct aule_run_params *params, int timeout_ms,
                                      struct aule_run_result *result)
{
    return aule_run_sized(batch, params, sizeof *params, timeout_ms, result, sizeof *result);
}

AULE_INLINE enum aule_status aule_run_layers_submit(struct aule_batch *batch,
                                                    const struct aule_run_params *run,
                                                    const struct aule_layers *layers,
                                                    int timeout_ms, struct aule_ticket *ticket)
{
    return aule_run_layers_submit_sized(batch, run, sizeof *run, layers, sizeof *layers, timeout_ms,
                                        ticket);
}

AULE_INLINE enum aule_status aule_run_layers(struct aule_batch *batch,
                                             const struct aule_run_params *run,
                                             const struct aule_layers *layers, int timeout_ms,
                                             struct aule_run_result *result)
{
    return aule_run_layers_sized(batch, run, sizeof *run, layers, sizeof *layers, timeout_ms,
                                 result, sizeof *result);
}

AULE_INLINE enum aule_status aule_attention_submit(struct aule_session *session,
                                                   const struct aule_attention_params *params,
                                                   int timeout_ms, struct aule_ticket *ticket)
{
    return aule_attention_submit_sized(session, params, sizeof *params, timeout_ms, ticket);
}

AULE_INLINE enum aule_status aule_attention(struct aule_session *session,
                                            const struct aule_attention_params *params,
                                            int timeout_ms, struct aule_run_result *result,
                                            struct aule_ticket *ticket)
{
    return aule_attention_sized(session, params, sizeof *params, timeout_ms, result, sizeof *result,
                                ticket);
}

AULE_INLINE enum aule_status aule_merge_submit(struct aule_session *session,
                                               const struct aule_merge_params *params,
                                               int timeout_ms, struct aule_ticket *ticket)
{
    return aule_merge_submit_sized(session, params, sizeof *params, timeout_ms, ticket);
}

AULE_INLINE enum aule_status aule_kv_import(struct aule_cache *cache,
                                            const struct aule_kv_import *params, int timeout_ms,
                                            struct aule_ticket *ticket)
{
    return aule_kv_import_sized(cache, params, sizeof *params, timeout_ms, ticket);
}

AULE_INLINE enum aule_status aule_kv_gather(struct aule_batch *batch,
                                            const struct aule_kv_gather *params, int timeout_ms,
                                            struct aule_ticket *ticket)
{
    return aule_kv_gather_sized(batch, params, sizeof *params, timeout_ms, ticket);
}

AULE_INLINE enum aule_status aule_kv_export(struct aule_cache *cache,
                                            const struct aule_kv_export *params, int timeout_ms,
                                            struct aule_ticket *ticket)
{
    return aule_kv_export_sized(cache, params, sizeof *params, timeout_ms, ticket);
}

AULE_INLINE enum aule_status aule_warm(struct aule_cache *cache,
                                       const struct aule_warm_params *params, int timeout_ms)
{
    return aule_warm_sized(cache, params, sizeof *params, timeout_ms);
}

AULE_INLINE enum aule_status aule_monitor_ping(struct aule_monitor *monitor,
                                               struct aule_ping_info *info)
{
    return aule_monitor_ping_sized(monitor, info, sizeof *info);
}

AULE_INLINE enum aule_status aule_monitor_metrics(struct aule_monitor *monitor,
                                                  struct aule_metric **array, uint32_t *count)
{
    return aule_monitor_metrics_sized(monitor, array, sizeof **array, count);
}

AULE_INLINE enum aule_status aule_monitor_device(struct aule_monitor *monitor,
                                                 struct aule_device_state *state)
{
    return aule_monitor_device_sized(monitor, state, sizeof *state);
}

AULE_INLINE enum aule_status aule_monitor_variants(struct aule_monitor *monitor,
                                                   struct aule_variant_state **array,
                                                   uint32_t *count)
{
    return aule_monitor_variants_sized(monitor, array, sizeof **array, count);
}

AULE_INLINE enum aule_status aule_monitor_sessions(struct aule_monitor *monitor,
                                                   struct aule_session_state **array,
                                                   uint32_t *count)
{
    return aule_monitor_sessions_sized(monitor, array, sizeof **array, count);
}

AULE_INLINE enum aule_status aule_monitor_tenants(struct aule_monitor *monitor,
                                                  struct aule_tenant_state **array, uint32_t *count)
{
    return aule_monitor_tenants_sized(monitor, array, sizeof **array, count);
}

AULE_INLINE enum aule_status aule_monitor_caches(struct aule_monitor *monitor,
                                                 struct aule_cache_view **array, uint32_t *count)
{
    return aule_monitor_caches_sized(monitor, array, sizeof **array, count);
}

AULE_INLINE enum aule_status aule_monitor_prefix(struct aule_monitor *monitor, uint64_t cache,
                                                 uint32_t *next, struct aule_prefix_state **array,
                                                 uint32_t *count)
{
    return aule_monitor_prefix_sized(monitor, cache, next, array, sizeof **array, count);
}

AULE_INLINE enum aule_status aule_monitor_tokens(struct aule_monitor *monitor, uint64_t cache,
                                                 int32_t block, struct aule_block_tokens *tokens)
{
    return aule_monitor_tokens_sized(monitor, cache, block, tokens, sizeof *tokens);
}

AULE_INLINE enum aule_status aule_monitor_blocks(struct aule_monitor *monitor, uint64_t cache,
                                                 struct aule_block_state **array, uint32_t *count)
{
    return aule_monitor_blocks_sized(monitor, cache, array, sizeof **array, count);
}

#ifdef __cplusplus
}
#endif

#endif
