# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule-bench as a user starts it: its list, correct rows in each place and over each lane, its
# output, its drawings, and what it refuses.

# bench_test(NAME LABEL EXPECTED ARGUMENT...): its output matches EXPECTED.
function(bench_test name label expected)
  add_test(NAME ${name} COMMAND aule-bench ${ARGN})
  set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION "${expected}" LABELS ${label}
    TIMEOUT 1200)
endfunction()

if(TARGET aule-bench)
  set(bench ${CMAKE_SOURCE_DIR}/tools/bench)
  aule_check(test_bench_sample SOURCES tools/test_bench_sample.c ${bench}/check.c ${bench}/sample.c
    ${bench}/shape.c ${bench}/team.c ${bench}/values.c
    ${bench}/workload.c ${bench}/wrong.c LIBS aule_core LABELS unit)
  bench_test(bench_lists_its_workloads process "D1 .*D6 .*P1 .*C1 .*border .*growth .*isolation "
    list)
  bench_test(bench_checks_its_rows device "D5 +256 rows right" run D5 --check)
  bench_test(bench_checks_prefill device "prefill:2x40 2560 rows right" run prefill:2x40 --check)
  bench_test(bench_checks_8_bit_rows device "decode:2x70 64 rows right.*f16/int8" run decode:2x70
    --check --kv-dtype int8)
  bench_test(bench_checks_through_a_daemon_with_another_head_dim device
    "prefill:2x40 2560 rows right.*head_dim 96" run prefill:2x40 --head-dim 96 --via nng --check)
  bench_test(bench_checks_what_cached_blocks_cost device
    "look-up of a cached block, 10000 blocks cached: right.*eviction .*10000 blocks cached: right"
    run cached --check)
  bench_test(bench_checks_through_a_daemon device "decode:3x70 96 rows right" run decode:3x70 --via
    nng --clients 2 --check)
  add_test(NAME test_bench_isolation COMMAND
    ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_bench_isolation.sh $<TARGET_FILE:aule-bench>)
  set_tests_properties(test_bench_isolation PROPERTIES LABELS device TIMEOUT 600)
  bench_test(bench_says_its_version process "^aule-bench ${PROJECT_VERSION}\n$" --version)
  add_test(NAME bench_refuses_options_that_exclude_each_other COMMAND
    ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_bench_usage.sh $<TARGET_FILE:aule-bench>)
  set_tests_properties(bench_refuses_options_that_exclude_each_other PROPERTIES LABELS process
    TIMEOUT 600)
  bench_test(bench_checks_through_a_ring device "decode:3x70 96 rows right" run decode:3x70 --via
    ring --clients 2 --check)
  bench_test(bench_splits_sequences_that_share_a_prefix_among_clients device
    "shared:5x2112.40 160 rows right" run shared:5x2112+40 --via ring --clients 3 --check)
  bench_test(bench_checks_both_sides_of_the_border device
    "engine of its own: 64 rows right.*by ring: 64 rows right.*by nng: 64 rows right" run border
    --check)
  string(CONCAT expected "among 1, one daemon, 2 in flight.*among 8, an engine each[^\n]*"
    "checked_rows.:512,[^\n]*shared_over_apart[^\n]*.checked.:true")
  bench_test(bench_checks_what_clients_and_owners_of_engines_computed device "${expected}"
    run clients --seconds 0.05 --json)
  string(CONCAT expected "lease of 64 from a pool, 4096 blocks of the pool: right.*"
    "by table entries, 100000 entries: right")
  bench_test(bench_checks_the_counts_of_each_size device "${expected}" run growth --check)
  string(CONCAT expected "\"case\":\"decode:1x16 by ring\"[^\n]*\"median_us\":null[^\n]*"
    "\"checked_rows\":64,[^\n]*\"extra_us\":null,[^\n]*\"checked\":true")
  bench_test(bench_with_check_and_json_says_what_it_checked_and_measures_nothing device
    "${expected}" run border --check --json)
  bench_test(bench_tells_at_once_that_a_daemon_has_ended process
    "the daemon ended before it answered" run decode:2x70 --via nng --daemon /bin/false --check)
  add_test(NAME test_bench COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_bench.sh
    $<TARGET_FILE:aule-bench>)
  set_tests_properties(test_bench PROPERTIES LABELS "device;asan_long" TIMEOUT 1800
    COST 90)
endif()
