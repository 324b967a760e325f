# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The client library: its parts alone, against a fake daemon, and (test_client, _refused,
# _process, _attention, _contiguous, _kv) against the real one.

find_package(nng CONFIG REQUIRED)   # the fake daemon speaks it, too

add_library(client_expect STATIC client_expect.c)
target_include_directories(client_expect PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(client_expect PUBLIC aule_client_static PRIVATE aule_flags PkgConfig::CHECK)

aule_check(test_client_parts SOURCES test_client_parts.c LIBS aule_client_static LABELS unit)
aule_check(test_client_forms SOURCES test_client_forms.c LIBS client_expect LABELS unit)
foreach(suite fake gone wire fake_attention)
  aule_check(test_client_${suite} SOURCES test_client_${suite}.c client_world.c fake_daemon.c
             LIBS client_expect aule_schema nng::nng LABELS process tsan ENVIRONMENT ${tsan_environment})
endforeach()
foreach(suite test_client test_client_refused test_client_process)
  aule_check(${suite} SOURCES ${suite}.c client_step.c LIBS client_expect aule_schema daemon_harness
             LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
endforeach()
aule_check(test_client_attention SOURCES test_client_attention.c LIBS client_expect daemon_harness
           LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
foreach(suite contiguous kv)
  aule_check(test_client_${suite} SOURCES test_client_${suite}.c client_rig.c LIBS client_expect daemon_harness
             LABELS process VALIDATED COST 60)
endforeach()
aule_check(test_client_lane SOURCES test_client_lane.c client_step.c LIBS client_expect aule_schema daemon_harness
           LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)

# The same suites with every run and wait by the ring.
foreach(suite test_client test_client_refused test_client_process)
  add_test(NAME ${suite}_ring COMMAND ${suite})
  set_tests_properties(${suite}_ring PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200 LABELS "process;tsan"
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=300;AULE_LANE=ring;${tsan_environment};${validation}")
endforeach()
