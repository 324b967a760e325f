# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule-bench, as people start it: what it lists, that a workload's rows are right, and what it refuses.

if(TARGET aule-bench)
  add_test(NAME bench_lists_its_workloads COMMAND aule-bench list)
  set_tests_properties(bench_lists_its_workloads PROPERTIES PASS_REGULAR_EXPRESSION "D1 .*P1 .*C1 " LABELS process)
  add_test(NAME bench_checks_its_rows COMMAND aule-bench run D5 --check)
  set_tests_properties(bench_checks_its_rows PROPERTIES PASS_REGULAR_EXPRESSION "D5 +256 rows right" LABELS device TIMEOUT 300)
  add_test(NAME bench_knows_no_other_workload COMMAND aule-bench run D99)
  set_tests_properties(bench_knows_no_other_workload PROPERTIES
    PASS_REGULAR_EXPRESSION "there is no workload 'D99'" LABELS process)
endif()
