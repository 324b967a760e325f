// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// names.h - what 0.1's aule.h defines: its structs (those that may grow since, and parts of others that never change), their fields, its enumerators, its functions. Does not change.

// clang-format off
#ifndef AULE_TESTS_NAMES_0_1_H
#define AULE_TESTS_NAMES_0_1_H

#define GROWING_STRUCTS_0_1(X) \
    X(aule_session_params) X(aule_session_info) X(aule_cache_params) X(aule_cache_state) X(aule_prefix) \
    X(aule_batch_params) X(aule_advance) X(aule_kv_layout) X(aule_metadata) X(aule_token_form) X(aule_run_params) \
    X(aule_run_result) X(aule_layers) X(aule_attention_params) X(aule_merge_params) X(aule_kv_import) \
    X(aule_kv_gather) X(aule_ping_info) X(aule_daemon_state) X(aule_device_state) X(aule_variant_state) \
    X(aule_session_state) X(aule_cache_view) X(aule_block_state) X(aule_tuning_state) X(aule_tuned_state)
#define FIXED_STRUCTS_0_1(X) \
    X(aule_tensor) X(aule_table_entry) X(aule_window) X(aule_rope) X(aule_ticket)

#define FIELDS_0_1(X) \
    X(aule_session_params, socket) X(aule_session_params, name) X(aule_session_params, tenant) \
    X(aule_session_params, arena_size) X(aule_session_params, timeout_ms) X(aule_session_params, paged_threshold) \
    X(aule_session_params, ring_spin_us) X(aule_session_info, session) X(aule_session_info, epoch) \
    X(aule_session_info, arena_size) X(aule_session_info, arena_imported) X(aule_session_info, max_tickets) \
    X(aule_session_info, max_batches) X(aule_session_info, quota_blocks) X(aule_session_info, max_message) \
    X(aule_session_info, protocol_major) X(aule_session_info, protocol_minor) X(aule_session_info, device_name) \
    X(aule_session_info, device_uuid) X(aule_session_info, ring_entries) X(aule_tensor, memory) \
    X(aule_tensor, dtype) X(aule_tensor, offset) X(aule_tensor, token_stride) X(aule_tensor, head_stride) \
    X(aule_tensor, life) X(aule_tensor, outer_stride) X(aule_cache_params, name) X(aule_cache_params, num_layers) \
    X(aule_cache_params, num_kv_heads) X(aule_cache_params, head_dim) X(aule_cache_params, head_dim_v) \
    X(aule_cache_params, v_is_k_prefix) X(aule_cache_params, k_dtype) X(aule_cache_params, v_dtype) \
    X(aule_cache_params, scale_mode) X(aule_cache_params, block_size) X(aule_cache_params, fingerprint) \
    X(aule_cache_params, fingerprint_size) X(aule_cache_state, total_blocks) X(aule_cache_state, free_blocks) \
    X(aule_cache_state, leased_blocks) X(aule_cache_state, held_blocks) X(aule_cache_state, evictable_blocks) \
    X(aule_cache_state, quarantined_blocks) X(aule_cache_state, limit_blocks) X(aule_cache_state, available_blocks) \
    X(aule_cache_state, block_bytes) X(aule_prefix, tokens) X(aule_prefix, num_tokens) X(aule_prefix, extra_key) \
    X(aule_prefix, extra_key_size) X(aule_batch_params, num_seqs) X(aule_batch_params, max_blocks) \
    X(aule_batch_params, cu_seqlens_q) X(aule_batch_params, seq_lens_kv) X(aule_batch_params, block_table) \
    X(aule_batch_params, slot_mapping) X(aule_batch_params, positions) X(aule_batch_params, mask) \
    X(aule_batch_params, mask_size) X(aule_batch_params, max_context_len) X(aule_batch_params, max_seqlen_q) \
    X(aule_batch_params, q_lens) X(aule_batch_params, token_rows) X(aule_batch_params, kv_starts) \
    X(aule_table_entry, seq) X(aule_table_entry, column) X(aule_table_entry, block) X(aule_advance, seq_lens_kv) \
    X(aule_advance, slot_mapping) X(aule_advance, entries) X(aule_advance, num_entries) X(aule_advance, positions) \
    X(aule_kv_layout, num_kv_heads) X(aule_kv_layout, head_dim) X(aule_kv_layout, head_dim_v) \
    X(aule_kv_layout, v_is_k_prefix) X(aule_kv_layout, k_dtype) X(aule_kv_layout, v_dtype) \
    X(aule_kv_layout, scale_mode) X(aule_kv_layout, block_size) X(aule_kv_layout, num_blocks) \
    X(aule_metadata, params) X(aule_metadata, owned) X(aule_token_form, num_tokens) X(aule_token_form, num_seqs) \
    X(aule_token_form, seq_ids) X(aule_token_form, positions) X(aule_token_form, slot_mapping) \
    X(aule_token_form, block_table) X(aule_token_form, max_blocks) X(aule_token_form, seq_lens_kv) \
    X(aule_token_form, repeats) X(aule_window, enabled) X(aule_window, left) X(aule_window, right) \
    X(aule_rope, dim) X(aule_rope, theta) X(aule_rope, interleaved) X(aule_rope, frequencies) \
    X(aule_run_params, layer) X(aule_run_params, num_heads) X(aule_run_params, q) X(aule_run_params, k) \
    X(aule_run_params, v) X(aule_run_params, out) X(aule_run_params, scale) X(aule_run_params, causal) \
    X(aule_run_params, window) X(aule_run_params, logits_soft_cap) X(aule_run_params, mask_value) \
    X(aule_run_params, alibi_slopes) X(aule_run_params, sinks) X(aule_run_params, lse) \
    X(aule_run_params, num_splits) X(aule_run_params, rope) X(aule_run_params, k_scale) X(aule_run_params, v_scale) \
    X(aule_run_params, keys) X(aule_run_params, values) X(aule_ticket, id) X(aule_ticket, path) \
    X(aule_ticket, fallback) X(aule_ticket, before) X(aule_run_result, gpu_ns) X(aule_run_result, num_runs) \
    X(aule_run_result, num_sessions) X(aule_layers, num_layers) X(aule_layers, layer_step) X(aule_layers, q_stride) \
    X(aule_layers, k_stride) X(aule_layers, v_stride) X(aule_layers, out_stride) X(aule_layers, lse_stride) \
    X(aule_layers, keys_stride) X(aule_layers, values_stride) X(aule_layers, slopes_stride) \
    X(aule_layers, sinks_stride) X(aule_layers, k_scales) X(aule_layers, v_scales) \
    X(aule_attention_params, num_seqs) X(aule_attention_params, q_len) X(aule_attention_params, kv_len) \
    X(aule_attention_params, num_kv_heads) X(aule_attention_params, head_dim) X(aule_attention_params, head_dim_v) \
    X(aule_attention_params, q_lens) X(aule_attention_params, kv_lens) X(aule_attention_params, mask) \
    X(aule_attention_params, mask_size) X(aule_attention_params, path) X(aule_attention_params, run) \
    X(aule_merge_params, num_parts) X(aule_merge_params, num_tokens) X(aule_merge_params, num_heads) \
    X(aule_merge_params, head_dim) X(aule_merge_params, outs) X(aule_merge_params, lses) X(aule_merge_params, out) \
    X(aule_merge_params, lse) X(aule_kv_import, layer) X(aule_kv_import, num_rows) X(aule_kv_import, outer_rows) \
    X(aule_kv_import, slot_mapping) X(aule_kv_import, k) X(aule_kv_import, v) X(aule_kv_import, k_scale) \
    X(aule_kv_import, v_scale) X(aule_kv_gather, layer) X(aule_kv_gather, k) X(aule_kv_gather, v) \
    X(aule_kv_gather, k_scale) X(aule_kv_gather, v_scale) X(aule_kv_gather, keys) X(aule_kv_gather, values) \
    X(aule_ping_info, epoch) X(aule_ping_info, round_trip_ns) X(aule_ping_info, version) \
    X(aule_ping_info, protocol_major) X(aule_ping_info, protocol_minor) X(aule_daemon_state, epoch) \
    X(aule_daemon_state, pid) X(aule_daemon_state, uptime_ms) X(aule_daemon_state, version) \
    X(aule_daemon_state, socket) X(aule_daemon_state, stopping) X(aule_daemon_state, num_sessions) \
    X(aule_daemon_state, max_sessions) X(aule_daemon_state, num_caches) X(aule_daemon_state, max_caches) \
    X(aule_daemon_state, pool_bytes) X(aule_daemon_state, pool_limit_bytes) X(aule_daemon_state, pool_blocks) \
    X(aule_daemon_state, pool_limit_blocks) X(aule_daemon_state, free_blocks) X(aule_daemon_state, leased_blocks) \
    X(aule_daemon_state, held_blocks) X(aule_daemon_state, cached_blocks) X(aule_daemon_state, quarantined_blocks) \
    X(aule_daemon_state, runs_done) X(aule_daemon_state, runs_failed) X(aule_daemon_state, dispatches) \
    X(aule_daemon_state, submissions) X(aule_daemon_state, tokens_attended) X(aule_daemon_state, lookups) \
    X(aule_daemon_state, lookup_tokens) X(aule_daemon_state, hit_tokens) X(aule_daemon_state, evictions) \
    X(aule_daemon_state, session_deaths) X(aule_daemon_state, max_sessions_per_dispatch) \
    X(aule_daemon_state, sessions_served) X(aule_daemon_state, dispatches_of_1) \
    X(aule_daemon_state, dispatches_of_2) X(aule_daemon_state, dispatches_of_4) \
    X(aule_daemon_state, dispatches_of_8) X(aule_daemon_state, dispatches_of_more) X(aule_daemon_state, ends_awake) \
    X(aule_daemon_state, ends_asleep) X(aule_device_state, name) X(aule_device_state, driver) \
    X(aule_device_state, type) X(aule_device_state, variant) X(aule_device_state, uuid) X(aule_device_state, index) \
    X(aule_device_state, api_version) X(aule_device_state, software) X(aule_device_state, host_import) \
    X(aule_device_state, heap_bytes) X(aule_device_state, budget_bytes) X(aule_device_state, max_allocation_bytes) \
    X(aule_device_state, import_alignment) X(aule_device_state, subgroup_size) \
    X(aule_device_state, shared_memory_bytes) X(aule_device_state, pipelines) X(aule_variant_state, name) \
    X(aule_variant_state, needs) X(aule_variant_state, missing) X(aule_variant_state, used) \
    X(aule_session_state, session) X(aule_session_state, pid) X(aule_session_state, uid) \
    X(aule_session_state, name) X(aule_session_state, tenant) X(aule_session_state, arena_imported) \
    X(aule_session_state, dead) X(aule_session_state, arena_bytes) X(aule_session_state, blocks_held) \
    X(aule_session_state, quota_blocks) X(aule_session_state, batches) X(aule_session_state, tickets_unreaped) \
    X(aule_session_state, runs_done) X(aule_session_state, tokens_attended) X(aule_session_state, gpu_ns) \
    X(aule_session_state, lookup_tokens) X(aule_session_state, hit_tokens) X(aule_session_state, age_ms) \
    X(aule_cache_view, cache) X(aule_cache_view, name) X(aule_cache_view, num_layers) \
    X(aule_cache_view, num_kv_heads) X(aule_cache_view, head_dim) X(aule_cache_view, head_dim_v) \
    X(aule_cache_view, block_size) X(aule_cache_view, k_dtype) X(aule_cache_view, v_dtype) \
    X(aule_cache_view, scale_mode) X(aule_cache_view, v_is_k_prefix) X(aule_cache_view, chunk_blocks) \
    X(aule_cache_view, num_chunks) X(aule_cache_view, open_sessions) X(aule_cache_view, block_bytes) \
    X(aule_cache_view, total_blocks) X(aule_cache_view, free_blocks) X(aule_cache_view, leased_blocks) \
    X(aule_cache_view, held_blocks) X(aule_cache_view, cached_blocks) X(aule_cache_view, quarantined_blocks) \
    X(aule_cache_view, published_blocks) X(aule_cache_view, pending_blocks) X(aule_cache_view, fingerprint) \
    X(aule_block_state, block) X(aule_block_state, state) X(aule_block_state, holders) \
    X(aule_block_state, batch_refs) X(aule_block_state, writer) X(aule_block_state, last_use) \
    X(aule_block_state, depth) X(aule_tuning_state, enabled) X(aule_tuning_state, software) \
    X(aule_tuning_state, num_waiting) X(aule_tuning_state, time_ms) X(aule_tuning_state, max_entries) \
    X(aule_tuning_state, path) X(aule_tuning_state, note) X(aule_tuned_state, kernel) X(aule_tuned_state, geometry) \
    X(aule_tuned_state, num_workgroups) X(aule_tuned_state, num_keys) X(aule_tuned_state, local_size) \
    X(aule_tuned_state, rule_local_size) X(aule_tuned_state, gpu_ns) X(aule_tuned_state, rule_gpu_ns) \
    X(aule_tuned_state, num_ways) X(aule_tuned_state, num_samples) X(aule_tuned_state, state)

#define VALUES_0_1(X) \
    X(AULE_OK) X(AULE_INVALID) X(AULE_UNSUPPORTED) X(AULE_DENIED) X(AULE_NO_MEMORY) X(AULE_NO_BLOCKS) X(AULE_QUOTA) \
    X(AULE_NOT_HELD) X(AULE_SEALED) X(AULE_UNWRITTEN) X(AULE_DUPLICATE_SLOT) X(AULE_OUT_OF_RANGE) \
    X(AULE_MISALIGNED) X(AULE_MISMATCH) X(AULE_NOT_FOUND) X(AULE_LIMIT) X(AULE_BUSY) X(AULE_TIMEOUT) \
    X(AULE_MALFORMED) X(AULE_VERSION) X(AULE_NO_SESSION) X(AULE_EPOCH) X(AULE_DAEMON_GONE) X(AULE_DEVICE_LOST) \
    X(AULE_FORKED) X(AULE_STOPPING) X(AULE_INTERNAL) X(AULE_F32) X(AULE_F16) X(AULE_BF16) X(AULE_FP8_E4M3) \
    X(AULE_FP8_E5M2) X(AULE_INT8) X(AULE_SCALE_NONE) X(AULE_SCALE_PER_TENSOR) X(AULE_SCALE_PER_TOKEN_HEAD) \
    X(AULE_PATH_AUTO) X(AULE_PATH_CONTIGUOUS) X(AULE_PATH_PAGED) X(AULE_BLOCK_FREE) X(AULE_BLOCK_LEASED) \
    X(AULE_BLOCK_HELD) X(AULE_BLOCK_CACHED) X(AULE_BLOCK_QUARANTINED) X(AULE_BLOCK_ABSENT) X(AULE_TUNE_SHOW) \
    X(AULE_TUNE_RENEW) X(AULE_TUNE_CLEAR) X(AULE_TUNE_OFF) X(AULE_TUNE_ON) X(AULE_TUNED_WAITING) \
    X(AULE_TUNED_MEASURED) X(AULE_TUNED_FAILED)

#define FUNCTIONS_0_1(X) \
    X(aule_version) X(aule_status_name) X(aule_status_text) X(aule_error) X(aule_dtype_name) X(aule_dtype_size) \
    X(aule_session_open) X(aule_session_close) X(aule_session_reconnect) X(aule_session_info) X(aule_arena_alloc) \
    X(aule_arena_free) X(aule_arena_base) X(aule_tensor_create) X(aule_tensor_data) X(aule_tensor_destroy) \
    X(aule_cache_open) X(aule_cache_close) X(aule_cache_state) X(aule_blocks_lease) X(aule_blocks_release) \
    X(aule_prefix_lookup) X(aule_prefix_publish) X(aule_batch_create) X(aule_batch_destroy) X(aule_batch_advance) \
    X(aule_batch_create_local) X(aule_metadata_finish) X(aule_metadata_varlen) X(aule_metadata_tokens) \
    X(aule_metadata_append) X(aule_run_submit) X(aule_ticket_wait) X(aule_run) X(aule_run_layers_submit) \
    X(aule_run_layers) X(aule_attention_submit) X(aule_attention) X(aule_merge_submit) X(aule_blocks_copy) \
    X(aule_blocks_zero) X(aule_kv_import) X(aule_kv_gather) X(aule_monitor_open) X(aule_monitor_close) \
    X(aule_monitor_ping) X(aule_monitor_daemon) X(aule_monitor_device) X(aule_monitor_variants) \
    X(aule_monitor_sessions) X(aule_monitor_caches) X(aule_monitor_blocks) X(aule_monitor_close_session) \
    X(aule_monitor_drop_cache) X(aule_monitor_tune)

#endif
