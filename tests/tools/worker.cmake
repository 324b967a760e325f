# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# aule-worker, and the quickstart: it succeeds, and it fails if a shared block is corrupt.

if(TARGET aule_worker)
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
  # The host's code is nearly the same for all kinds of keys and values.
  set(one_in 4)
  if(AULE_SANITIZE)
    set(one_in 8)
  endif()
  aule_check(test_worker SOURCES tools/test_worker.c LIBS aule_worker daemon_harness
    PkgConfig::CJSON LABELS process VALIDATED TIMEOUT 1200 COST 90
    ENVIRONMENT AULE_TEST_ONE_IN=${one_in})
  add_dependencies(test_worker aule-worker aule-ctl)
  aule_check(test_worker_parts SOURCES tools/test_worker_parts.c LIBS aule_worker aule_numbers
    LABELS unit)
  target_compile_definitions(test_worker PRIVATE WORKER="$<TARGET_FILE:aule-worker>"
    CTL="$<TARGET_FILE:aule-ctl>")
  foreach(suite test_worker test_worker_parts)
    target_compile_definitions(${suite} PRIVATE
      WORKER_TEXT="${PROJECT_SOURCE_DIR}/tools/worker/prompt.txt")
  endforeach()

  foreach(case holds corrupt broken interrupted refused tiers)
    add_test(NAME quickstart_${case} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_quickstart.sh
      ${case} ${PROJECT_BINARY_DIR})
    set_tests_properties(quickstart_${case} PROPERTIES TIMEOUT 1800 LABELS "process;slow"
      SKIP_RETURN_CODE 77 ENVIRONMENT "${validation}")
  endforeach()
endif()
