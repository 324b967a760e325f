# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The client library: its parts alone; with a fake daemon; and (test_client, _refused, _process,
# _layers, _attention, _waits, _contiguous, _kv) with the real daemon, by both lanes.

find_package(nng CONFIG REQUIRED)   # the fake daemon speaks it, too

add_library(client_expect STATIC rigs/client_expect.c)
target_include_directories(client_expect PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(client_expect PUBLIC aule_client_static PRIVATE aule_flags PkgConfig::CHECK)

aule_check(test_client_parts SOURCES client/test_client_parts.c LIBS aule_client_static LABELS unit)
aule_check(test_client_answers SOURCES client/test_client_answers.c LIBS aule_client_static
  aule_schema LABELS unit tsan)
aule_check(test_client_forms SOURCES client/test_client_forms.c LIBS client_expect LABELS unit)
foreach(suite opening fake gone wire reaped run fake_steps)
  aule_check(test_client_${suite} SOURCES client/test_client_${suite}.c rigs/client_world.c
             fakes/fake_daemon.c
             LIBS client_expect aule_schema nng::nng LABELS process tsan
             ENVIRONMENT ${tsan_environment})
endforeach()
foreach(suite fake_attention fake_ways fake_failures)
  aule_check(test_client_${suite} SOURCES client/test_client_${suite}.c
             attention/attention_journal.c rigs/client_world.c fakes/fake_daemon.c
             LIBS client_expect aule_schema nng::nng LABELS process tsan
             ENVIRONMENT ${tsan_environment})
endforeach()
foreach(suite test_client test_client_refused test_client_refused_caches test_client_process
  test_client_layers)
  aule_check(${suite} SOURCES client/${suite}.c rigs/client_step.c LIBS client_expect aule_schema
             daemon_harness
             LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
endforeach()
foreach(suite attention waits)
  aule_check(test_client_${suite} SOURCES client/test_client_${suite}.c rigs/client_scene.c
             LIBS client_expect daemon_harness
             LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
endforeach()
foreach(suite contiguous kv)
  aule_check(test_client_${suite} SOURCES client/test_client_${suite}.c rigs/client_rig.c
             LIBS client_expect daemon_harness
             LABELS process VALIDATED COST 60)
endforeach()
aule_check(test_client_lane SOURCES client/test_client_lane.c rigs/client_step.c LIBS client_expect
           aule_schema daemon_harness
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
# ThreadSanitizer runs only the part of that suite in which threads share a session. Other builds
# check its answers.
if(AULE_SANITIZE MATCHES thread)
  aule_twin(test_client_contiguous threads "CK_RUN_CASE=nothing is left" ${tsan_environment})
  set_property(TEST test_client_contiguous_threads APPEND PROPERTY LABELS tsan)
endif()

# A program of 0.1 with today's library. It is linked with a stub that has the name of 0.1; the
# loader finds today's library.
set(old ${CMAKE_CURRENT_SOURCE_DIR}/client/aule-0.1)
add_library(aule_client_0_1 SHARED client/aule-0.1/stub.c)
set_target_properties(aule_client_0_1 PROPERTIES OUTPUT_NAME aule-client SOVERSION 0
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/aule-0.1)
target_link_options(aule_client_0_1 PRIVATE -Wl,--version-script=${old}/stub.map)
foreach(header 0_1 now)
  add_library(layout_${header} OBJECT client/aule-0.1/layout.c)
  target_compile_definitions(layout_${header} PRIVATE LAYOUT=layout_${header})
  target_link_libraries(layout_${header} PRIVATE aule_flags)
endforeach()
target_include_directories(layout_0_1 PRIVATE ${old})
target_include_directories(layout_now PRIVATE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/client/include)
target_compile_definitions(layout_now PRIVATE NOW)
aule_check(test_client_0_1 SOURCES client/test_client_0_1.c $<TARGET_OBJECTS:layout_0_1>
           $<TARGET_OBJECTS:layout_now>
           LIBS aule_client_0_1 daemon_harness LABELS process VALIDATED)
target_include_directories(test_client_0_1 BEFORE PRIVATE ${old})
add_dependencies(test_client_0_1 aule-client)
set_target_properties(test_client_0_1 PROPERTIES BUILD_WITH_INSTALL_RPATH ON
  INSTALL_RPATH $<TARGET_FILE_DIR:aule-client>)

# The same program with a library in which every struct that may grow has grown.
file(READ ${old}/names.h names)
string(REGEX MATCH "#define GROWING_STRUCTS_0_1.*#define FIXED" growing "${names}")
string(REGEX MATCHALL "aule_[a-z_]+" growing "${growing}")
list(REMOVE_ITEM growing aule_metadata aule_attention_params)   # they grow by what is in them
set(header_now ${PROJECT_SOURCE_DIR}/client/include/aule/aule.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header_now})
file(READ ${header_now} header)
foreach(name ${growing})
  string(REGEX REPLACE "(struct ${name} {[^}]*)}" "\\1    uint64_t grown[9];\n}" header "${header}")
endforeach()
set(grown ${CMAKE_CURRENT_BINARY_DIR}/grown)
file(CONFIGURE OUTPUT ${grown}/include/aule/aule.h CONTENT "${header}" @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/client/include/aule/sized.h ${grown}/include/aule/sized.h
  COPYONLY)
get_target_property(client_sources aule-client SOURCES)
list(TRANSFORM client_sources PREPEND ${PROJECT_SOURCE_DIR}/client/)
add_library(aule_client_grown SHARED ${client_sources})
target_include_directories(aule_client_grown BEFORE PRIVATE ${grown}/include)
target_include_directories(aule_client_grown PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(aule_client_grown PRIVATE aule_flags aule_base aule_schema nng::nng
  Threads::Threads rt)
target_link_options(aule_client_grown PRIVATE
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/client/aule-client.map)
set_target_properties(aule_client_grown PROPERTIES OUTPUT_NAME aule-client SOVERSION 0
  LIBRARY_OUTPUT_DIRECTORY ${grown})
add_dependencies(test_client_0_1 aule_client_grown)
aule_twin(test_client_0_1 grown LD_LIBRARY_PATH=${grown})
