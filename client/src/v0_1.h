// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// v0_1.h - the sizes that structs had in 0.1. A struct that grows changes nothing here.

#ifndef AULE_CLIENT_V0_1_H
#define AULE_CLIENT_V0_1_H

#include "aule/sized.h"

// The size of a struct whose last member was `last` and whose alignment is that of `alignment`.
#define UP_TO(type, last, alignment)                                                               \
    ((offsetof(struct type, last) + sizeof((struct type *)NULL)->last + _Alignof(alignment) - 1) / \
     _Alignof(alignment) * _Alignof(alignment))

enum {
    SIZE_0_1_aule_batch_params = UP_TO(aule_batch_params, kv_starts, void *),
    SIZE_0_1_aule_run_params = UP_TO(aule_run_params, values, uint64_t),
    SIZE_0_1_aule_session_params = UP_TO(aule_session_params, ring_spin_us, uint64_t),
    SIZE_0_1_aule_session_info = UP_TO(aule_session_info, ring_entries, uint64_t),
    SIZE_0_1_aule_cache_params = UP_TO(aule_cache_params, fingerprint_size, void *),
    SIZE_0_1_aule_cache_state = UP_TO(aule_cache_state, block_bytes, uint64_t),
    SIZE_0_1_aule_prefix = UP_TO(aule_prefix, extra_key_size, void *),
    SIZE_0_1_aule_advance = UP_TO(aule_advance, positions, void *),
    SIZE_0_1_aule_kv_layout = UP_TO(aule_kv_layout, num_blocks, uint32_t),
    SIZE_0_1_aule_token_form = UP_TO(aule_token_form, repeats, void *),
    SIZE_0_1_aule_run_result = UP_TO(aule_run_result, num_sessions, uint64_t),
    SIZE_0_1_aule_layers = UP_TO(aule_layers, v_scales, uint64_t),
    SIZE_0_1_aule_merge_params = UP_TO(aule_merge_params, lse, uint64_t),
    SIZE_0_1_aule_kv_import = UP_TO(aule_kv_import, v_scale, uint64_t),
    SIZE_0_1_aule_kv_gather = UP_TO(aule_kv_gather, values, uint64_t),
    SIZE_0_1_aule_ping_info = UP_TO(aule_ping_info, protocol_minor, uint64_t),
    SIZE_0_1_aule_daemon_state = UP_TO(aule_daemon_state, ends_asleep, uint64_t),
    SIZE_0_1_aule_device_state = UP_TO(aule_device_state, pipelines, uint64_t),
    SIZE_0_1_aule_variant_state = UP_TO(aule_variant_state, used, char),
    SIZE_0_1_aule_session_state = UP_TO(aule_session_state, age_ms, uint64_t),
    SIZE_0_1_aule_cache_view = UP_TO(aule_cache_view, fingerprint, uint64_t),
    SIZE_0_1_aule_block_state = UP_TO(aule_block_state, depth, uint64_t),
    SIZE_0_1_aule_tuning_state = UP_TO(aule_tuning_state, note, uint32_t),
    SIZE_0_1_aule_tuned_state = UP_TO(aule_tuned_state, state, uint64_t),
    SIZE_0_1_aule_metadata = SIZE_0_1_aule_batch_params + sizeof(void *),
    SIZE_0_1_aule_attention_params =
        offsetof(struct aule_attention_params, run) + SIZE_0_1_aule_run_params,
};
#define SIZE_0_1(type) SIZE_0_1_##type

// prefix.c: aule_prefix_publish() of a program that releases replaced blocks itself.
enum aule_status prefix_publish_0_1(struct aule_cache *cache, const struct aule_prefix *prefix,
                                    int32_t *block_ids, uint32_t *num_existing);

// merge.c: aule_merge_submit() of a program whose tensors have no num_rows.
enum aule_status merge_submit_0_1(struct aule_session *session,
                                  const struct aule_merge_params *params, int timeout_ms,
                                  struct aule_ticket *ticket);

#endif
