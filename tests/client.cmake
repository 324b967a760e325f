# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The client library: its parts alone, against a fake daemon, and (test_client, _refused,
# _process, _layers, _attention, _waits, _contiguous, _kv) against the real one, by both lanes.

find_package(nng CONFIG REQUIRED)   # the fake daemon speaks it, too

add_library(client_expect STATIC client_expect.c)
target_include_directories(client_expect PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(client_expect PUBLIC aule_client_static PRIVATE aule_flags PkgConfig::CHECK)

aule_check(test_client_parts SOURCES test_client_parts.c LIBS aule_client_static LABELS unit)
aule_check(test_client_answers SOURCES test_client_answers.c LIBS aule_client_static aule_schema LABELS unit tsan)
aule_check(test_client_forms SOURCES test_client_forms.c LIBS client_expect LABELS unit)
foreach(suite opening fake gone wire reaped run fake_steps)
  aule_check(test_client_${suite} SOURCES test_client_${suite}.c client_world.c fake_daemon.c
             LIBS client_expect aule_schema nng::nng LABELS process tsan ENVIRONMENT ${tsan_environment})
endforeach()
foreach(suite fake_attention fake_ways fake_failures)
  aule_check(test_client_${suite} SOURCES test_client_${suite}.c attention_journal.c client_world.c fake_daemon.c
             LIBS client_expect aule_schema nng::nng LABELS process tsan ENVIRONMENT ${tsan_environment})
endforeach()
foreach(suite test_client test_client_refused test_client_refused_caches test_client_process test_client_layers)
  aule_check(${suite} SOURCES ${suite}.c client_step.c LIBS client_expect aule_schema daemon_harness
             LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
endforeach()
foreach(suite attention waits)
  aule_check(test_client_${suite} SOURCES test_client_${suite}.c client_scene.c LIBS client_expect daemon_harness
             LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
endforeach()
foreach(suite contiguous kv)
  aule_check(test_client_${suite} SOURCES test_client_${suite}.c client_rig.c LIBS client_expect daemon_harness
             LABELS process VALIDATED COST 60)
endforeach()
aule_check(test_client_lane SOURCES test_client_lane.c client_step.c LIBS client_expect aule_schema daemon_harness
           LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)

aule_lanes(test_client NARROW)
aule_lanes(test_client_process NARROW)
aule_lanes(test_client_layers)
aule_lanes(test_client_refused LONG)
aule_lanes(test_client_refused_caches LONG)
aule_lanes(test_client_attention LONG NARROW)
aule_lanes(test_client_waits LONG NARROW)
aule_lanes(test_client_contiguous LONG)
aule_lanes(test_client_kv LONG)
# Of that suite, whose answers other builds judge, ThreadSanitizer looks at the part in which threads share a session.
if(AULE_SANITIZE MATCHES thread)
  aule_twin(test_client_contiguous threads "CK_RUN_CASE=nothing is left" ${tsan_environment})
  set_property(TEST test_client_contiguous_threads APPEND PROPERTY LABELS tsan)
endif()
