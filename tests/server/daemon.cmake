# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# daemon_harness: starts and stops a real aule-daemon; suites of process tests link it.
# test_daemon*: the daemon from outside, by a raw client of nng and wire.h, and by hostile clients.

add_library(daemon_harness STATIC rigs/daemon_harness.c)
target_include_directories(daemon_harness PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(daemon_harness PRIVATE
  AULE_DAEMON_PATH="${CMAKE_BINARY_DIR}/daemon/aule-daemon"
  AULE_DAEMON_CORRUPT_PATH="${CMAKE_CURRENT_BINARY_DIR}/aule-daemon-corrupt"
  AULE_DAEMON_STAGED_PATH="${CMAKE_CURRENT_BINARY_DIR}/aule-daemon-staged")
target_link_libraries(daemon_harness PUBLIC aule_base PRIVATE aule_flags)
if(TARGET aule-daemon)
  # One corrupts a block, so that tests prove that they notice. The other copies all arenas.
  foreach(kind corrupt staged)
    add_executable(aule-daemon-${kind} server/${kind}_daemon.c
      ${PROJECT_SOURCE_DIR}/daemon/main.c ${PROJECT_SOURCE_DIR}/daemon/options.c)
    target_link_libraries(aule-daemon-${kind} PRIVATE aule_server aule_base aule_flags m
      ${CMAKE_DL_LIBS})
  endforeach()
  target_link_options(aule-daemon-corrupt PRIVATE
    -Wl,--wrap=core_step,--wrap=core_prefix_publish)
  target_link_options(aule-daemon-staged PRIVATE -Wl,--wrap=engine_create)
  add_dependencies(daemon_harness aule-daemon aule-daemon-corrupt aule-daemon-staged)
endif()

find_path(NNG_HEADERS nng/nng.h REQUIRED)
find_library(NNG_SHARED NAMES nng REQUIRED)   # the daemon links it static, a client shared
foreach(suite test_daemon test_daemon_log test_daemon_rlimits test_daemon_work test_daemon_leases
  test_daemon_ends test_daemon_limits test_daemon_users
  test_daemon_commands test_daemon_refused)
  aule_check(${suite} SOURCES server/${suite}.c rigs/daemon_suite.c rigs/daemon_step.c
             rigs/raw_client.c LIBS daemon_harness aule_schema ${NNG_SHARED}
             LABELS process ENVIRONMENT ${tsan_environment} VALIDATED)
  target_include_directories(${suite} PRIVATE ${NNG_HEADERS})
endforeach()
foreach(suite test_daemon_connections test_daemon_hostile)
  aule_check(${suite} SOURCES server/${suite}.c rigs/hostile_world.c rigs/daemon_suite.c
             rigs/daemon_step.c rigs/raw_client.c LIBS daemon_harness aule_schema ${NNG_SHARED}
             LABELS process ENVIRONMENT ${tsan_environment} VALIDATED)
  target_include_directories(${suite} PRIVATE ${NNG_HEADERS})
endforeach()
aule_check(test_pid_namespaces SOURCES server/test_pid_namespaces.c rigs/client_step.c
  LIBS client_expect aule_schema daemon_harness LABELS process)
aule_check(test_daemon_exports SOURCES server/test_daemon_exports.c rigs/hostile_world.c
           rigs/importer.c rigs/daemon_suite.c rigs/daemon_step.c rigs/raw_client.c rigs/dice.c
           LIBS daemon_harness aule_schema ${NNG_SHARED}
           LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
target_include_directories(test_daemon_exports PRIVATE ${NNG_HEADERS})
add_dependencies(test_daemon_exports vulkan_importer)
# Most commands run with each way of device memory; sanitizers draw one of them for each.
if(AULE_SANITIZE)
  set_property(TEST test_daemon_commands APPEND PROPERTY ENVIRONMENT AULE_TEST_ONE_IN=2)
endif()
set_property(TEST test_daemon_commands test_daemon_connections test_daemon_hostile
  test_daemon_refused APPEND PROPERTY LABELS tsan)

if(TARGET aule_server)
  aule_check(test_server_parts SOURCES server/test_server_parts.c LIBS aule_server LABELS unit tsan)
  target_link_options(test_server_parts PRIVATE -Wl,--wrap=mmap)
  aule_check(test_server_log SOURCES server/test_server_log.c LIBS aule_server LABELS unit tsan)
  aule_check(test_server_mark SOURCES server/test_server_mark.c LIBS aule_server LABELS unit)
  target_link_options(test_server_mark PRIVATE -Wl,--wrap=bind)
  aule_check(test_server_tokens SOURCES server/test_server_tokens.c LIBS aule_server LABELS unit)
  target_link_options(test_server_tokens PRIVATE -Wl,--wrap=engine_arena_export)
  aule_check(test_server_wait SOURCES server/test_server_wait.c LIBS aule_server LABELS unit)
  target_link_options(test_server_wait PRIVATE
    -Wl,--wrap=epoll_pwait2,--wrap=engine_has_news,--wrap=core_wake_ns,--wrap=core_slept)
  aule_check(test_server_listener SOURCES server/test_server_listener.c rigs/raw_client.c
             LIBS aule_server LABELS process tsan
             ENVIRONMENT ${tsan_environment})
  failing_memory(test_server_listener)
  # The fake engine comes first on the link line, so that the linker takes nothing from the real
  # one.
  aule_check(test_server_lost SOURCES server/test_server_lost.c rigs/raw_client.c
             fakes/fake_engine.c fakes/fake_run.c LIBS aule_server LABELS process tsan
             ENVIRONMENT ${tsan_environment})
  target_link_options(test_server_lost PRIVATE
                      -Wl,--wrap=engine_poll,--wrap=engine_wait,--wrap=engine_submit
                      -Wl,--wrap=engine_arena_create,--wrap=engine_arena_destroy
                      -Wl,--wrap=engine_destroy_within,--wrap=engine_batch_create
                      -Wl,--wrap=core_pieces_next)
  # Every allocation after a ring command was taken fails once in this suite.
  aule_check(test_server_memory SOURCES server/test_server_memory.c rigs/ring_end.c
             rigs/daemon_suite.c rigs/daemon_step.c rigs/raw_client.c
             fakes/fake_engine.c fakes/fake_run.c LIBS daemon_harness aule_server
             LABELS process tsan ENVIRONMENT ${tsan_environment})
  failing_memory(test_server_memory)
  target_link_options(test_server_memory PRIVATE
    -Wl,--wrap=ring_take,--wrap=ring_put,--wrap=engine_poll
    -Wl,--wrap=listener_receive,--wrap=dispatch_message)
endif()

foreach(suite ring places waits)
  aule_check(test_daemon_${suite} SOURCES server/test_daemon_${suite}.c rigs/ring_end.c
             rigs/daemon_suite.c rigs/daemon_step.c rigs/raw_client.c rigs/dice.c
             LIBS daemon_harness aule_schema ${NNG_SHARED} LABELS process tsan
             ENVIRONMENT ${tsan_environment} VALIDATED)
  target_include_directories(test_daemon_${suite} PRIVATE ${NNG_HEADERS})
endforeach()

# Allocations of the real daemon fail. Sanitizers have an allocator of their own.
if(TARGET aule-daemon AND NOT AULE_SANITIZE)
  add_library(failing_daemon MODULE fakes/failing_daemon.c)
  target_include_directories(failing_daemon PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(failing_daemon PRIVATE aule_flags)
  aule_check(test_daemon_memory SOURCES server/test_daemon_memory.c rigs/dice.c
             LIBS daemon_harness aule_client_static LABELS process)
  target_compile_definitions(test_daemon_memory PRIVATE
    FAILING_DAEMON_PATH="$<TARGET_FILE:failing_daemon>")
  add_dependencies(test_daemon_memory failing_daemon)
endif()

# Several users; only root can become them.
if(TARGET aule-daemon AND TARGET aule-ctl)
  add_test(NAME test_tenants COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/server/test_tenants.sh
    $<TARGET_FILE:aule-daemon> $<TARGET_FILE:aule-ctl> $<TARGET_FILE:example_prompt>
    $<TARGET_FILE_DIR:aule-client>)
  add_test(NAME test_compile_apart COMMAND
    ${CMAKE_CURRENT_SOURCE_DIR}/server/test_compile_apart.sh $<TARGET_FILE:aule-daemon>
    $<TARGET_FILE:aule-ctl> $<TARGET_FILE:example_prompt> $<TARGET_FILE_DIR:aule-client>)
  set_tests_properties(test_compile_apart PROPERTIES TIMEOUT 300 LABELS "process;device"
    SKIP_RETURN_CODE 77)
  set_tests_properties(test_tenants PROPERTIES TIMEOUT 300 LABELS process SKIP_RETURN_CODE 77)
endif()
