# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The client library: its parts alone, against a fake daemon, and (test_client, _refused,
# _process, _layers, _attention, _waits, _contiguous, _kv) against the real one, by both lanes.

find_package(nng CONFIG REQUIRED)   # the fake daemon speaks it, too

add_library(client_expect STATIC rigs/client_expect.c)
target_include_directories(client_expect PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(client_expect PUBLIC aule_client_static PRIVATE aule_flags PkgConfig::CHECK)

aule_check(test_client_parts SOURCES client/test_client_parts.c LIBS aule_client_static LABELS unit)
aule_check(test_client_answers SOURCES client/lane/test_client_answers.c LIBS aule_client_static
  aule_schema LABELS unit tsan)
aule_check(test_client_peer SOURCES client/test_client_peer.c LIBS client_expect LABELS process)
aule_check(test_client_forms SOURCES client/test_client_forms.c LIBS client_expect LABELS unit)
foreach(suite opening fake gone wire reaped run fake_steps fake_publish fake_sequence)
  aule_check(test_client_${suite} SOURCES client/fake/test_client_${suite}.c rigs/client_world.c
             fakes/fake_daemon.c
             LIBS client_expect aule_schema nng::nng LABELS process tsan
             ENVIRONMENT ${tsan_environment})
endforeach()
foreach(suite fake_attention fake_ways fake_failures)
  aule_check(test_client_${suite} SOURCES client/fake/test_client_${suite}.c
             attention/attention_journal.c rigs/client_world.c fakes/fake_daemon.c
             LIBS client_expect aule_schema nng::nng LABELS process tsan
             ENVIRONMENT ${tsan_environment})
endforeach()
foreach(suite test_client test_client_refused test_client_refused_caches test_client_process
  test_client_layers test_client_users)
  aule_check(${suite} SOURCES client/${suite}.c rigs/client_step.c LIBS client_expect aule_schema
             daemon_harness
             LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
endforeach()
foreach(suite attention waits)
  aule_check(test_client_${suite} SOURCES client/test_client_${suite}.c rigs/client_scene.c
             LIBS client_expect daemon_harness
             LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
endforeach()
aule_check(test_client_sequence
  SOURCES client/test_client_sequence.c rigs/text_world.c rigs/client_rig.c rigs/dice.c
  LIBS client_expect daemon_harness LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
aule_check(test_client_closing
  SOURCES client/waiting/test_client_closing.c rigs/client_world.c fakes/fake_daemon.c
  LIBS client_expect aule_schema nng::nng LABELS process tsan ENVIRONMENT ${tsan_environment})
aule_check(test_client_fake_fd
  SOURCES client/waiting/test_client_fake_fd.c rigs/client_world.c fakes/fake_daemon.c
  LIBS client_expect aule_schema nng::nng LABELS process tsan ENVIRONMENT ${tsan_environment})
aule_check(test_client_fd SOURCES client/waiting/test_client_fd.c rigs/client_step.c
  LIBS client_expect aule_schema daemon_harness
  LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
# A libcuda without a GPU. Its name does not matter, its soname does.
add_library(fake_libcuda SHARED fakes/fake_libcuda.c)
target_link_libraries(fake_libcuda PRIVATE aule_flags)
set_target_properties(fake_libcuda PROPERTIES NO_SONAME ON C_VISIBILITY_PRESET hidden)
set_source_files_properties(fakes/fake_libcuda.c PROPERTIES
  COMPILE_OPTIONS -Wno-missing-prototypes) # they are CUDA's
target_link_options(fake_libcuda PRIVATE -Wl,-soname,libcuda.so.1)
# A libcuda of an old driver.
add_library(fake_old_libcuda SHARED fakes/fake_old_libcuda.c)
target_link_libraries(fake_old_libcuda PRIVATE aule_flags)
set_target_properties(fake_old_libcuda PROPERTIES NO_SONAME ON C_VISIBILITY_PRESET hidden)
target_link_options(fake_old_libcuda PRIVATE -Wl,-soname,libcuda.so.1)
foreach(suite device pool)
  aule_check(test_client_${suite}
    SOURCES client/device/test_client_${suite}.c rigs/client_step.c client/device/cuda_rig.c rigs/importer.c
    LIBS client_expect aule_schema daemon_harness
    LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
  target_compile_definitions(test_client_${suite} PRIVATE
    FAKE_LIBCUDA="$<TARGET_FILE:fake_libcuda>"
    FAKE_OLD_LIBCUDA="$<TARGET_FILE:fake_old_libcuda>")
  add_dependencies(test_client_${suite} vulkan_importer fake_libcuda fake_old_libcuda)
endforeach()
aule_check(test_client_claim
  SOURCES client/waiting/test_client_claim.c rigs/text_world.c rigs/client_rig.c
  LIBS client_expect daemon_harness LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
aule_check(test_client_tier
  SOURCES client/waiting/test_client_tier.c rigs/text_world.c rigs/client_rig.c
  LIBS client_expect daemon_harness LABELS process tier VALIDATED)
aule_check(test_client_files
  SOURCES client/waiting/test_client_files.c rigs/text_world.c rigs/client_rig.c
  LIBS client_expect daemon_harness LABELS process tier VALIDATED)
if(NOT AULE_SANITIZE) # whose libraries have to be the first ones
  add_library(hanging_disk MODULE fakes/hanging_disk.c)
  target_link_libraries(hanging_disk PRIVATE aule_flags ${CMAKE_DL_LIBS})
  target_compile_definitions(test_client_files PRIVATE
    HANGING_DISK="$<TARGET_FILE:hanging_disk>")
  add_dependencies(test_client_files hanging_disk)
endif()
aule_check(test_client_offer
  SOURCES client/test_client_offer.c rigs/text_world.c rigs/client_rig.c
  LIBS client_expect daemon_harness LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)
foreach(suite contiguous kv)
  aule_check(test_client_${suite} SOURCES client/test_client_${suite}.c rigs/client_rig.c
             LIBS client_expect daemon_harness
             LABELS process VALIDATED COST 60)
endforeach()
aule_check(test_client_places SOURCES client/lane/test_client_places.c rigs/client_world.c
           fakes/fake_daemon.c
           LIBS client_expect aule_schema nng::nng LABELS process tsan
           ENVIRONMENT ${tsan_environment})
target_link_options(test_client_places PRIVATE -Wl,--wrap=strdup)
aule_check(test_client_lane SOURCES client/lane/test_client_lane.c rigs/client_step.c LIBS client_expect
           aule_schema daemon_harness
           LABELS process tsan ENVIRONMENT ${tsan_environment} VALIDATED)

# Every allocation of a call fails once in this suite.
aule_check(test_client_memory SOURCES client/lane/test_client_memory.c rigs/client_step.c
           LIBS client_expect aule_schema daemon_harness
           LABELS process tsan ENVIRONMENT AULE_LANE=ring ${tsan_environment} VALIDATED)
failing_memory(test_client_memory)

# Sanitizers look at the host's code, which is nearly the same for both kinds of arenas.
if(AULE_SANITIZE)
  set_property(TEST test_client_attention test_client_contiguous test_client_kv
    APPEND PROPERTY ENVIRONMENT AULE_TEST_ONE_IN=2)
endif()

aule_lanes(test_client NARROW)
aule_lanes(test_client_process NARROW)
aule_lanes(test_client_layers LONG)
aule_lanes(test_client_fd)
aule_lanes(test_client_refused LONG)
aule_lanes(test_client_refused_caches LONG)
aule_lanes(test_client_attention LONG NARROW TWINS "staged arena")
aule_lanes(test_client_sequence LONG)
aule_lanes(test_client_waits LONG NARROW)
aule_lanes(test_client_contiguous LONG TWINS "staged arena")
aule_lanes(test_client_kv LONG TWINS "staged arena")
# Of that suite, whose answers other builds judge, ThreadSanitizer looks at the part in which
# threads share a session.
if(AULE_SANITIZE MATCHES thread)
  aule_twin(test_client_contiguous threads "CK_RUN_CASE=nothing is left" ${tsan_environment})
  set_property(TEST test_client_contiguous_threads APPEND PROPERTY LABELS tsan)
endif()

# A program of today with a later library, in which every struct that may grow has grown. The loader
# finds that library before the one that the program is linked with.
set(headers ${PROJECT_SOURCE_DIR}/client/include/aule)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${headers}/aule.h ${headers}/sized.h ${headers}/sequence.h)
foreach(name aule sized sequence)
  file(READ ${headers}/${name}.h header_${name})
endforeach()
string(REGEX MATCHALL "struct aule_[a-z_]+ \\*+[a-z_]+,[ \n]+size_t [a-z_]+_size" growing
       "${header_sized}${header_sequence}")
string(REGEX REPLACE "struct (aule_[a-z_]+) [^;]*" "\\1" growing "${growing}")
list(REMOVE_DUPLICATES growing)
list(REMOVE_ITEM growing aule_metadata aule_attention_params aule_warm_params) # by what is in them
foreach(name ${growing})
  foreach(header aule sequence)
    string(REGEX REPLACE "(struct ${name} {[^}]*)}" "\\1    uint64_t grown[9];\n}" header_${header}
           "${header_${header}}")
  endforeach()
endforeach()
set(grown ${CMAKE_CURRENT_BINARY_DIR}/grown)
foreach(name aule sized sequence)
  file(CONFIGURE OUTPUT ${grown}/include/aule/${name}.h CONTENT "${header_${name}}" @ONLY)
endforeach()
get_target_property(client_sources aule-client SOURCES)
list(TRANSFORM client_sources PREPEND ${PROJECT_SOURCE_DIR}/client/)
add_library(aule_client_grown SHARED ${client_sources})
target_include_directories(aule_client_grown BEFORE PRIVATE ${grown}/include)
target_include_directories(aule_client_grown PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(aule_client_grown PRIVATE aule_flags aule_base aule_schema Threads::Threads
  rt)
target_link_options(aule_client_grown PRIVATE
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/client/aule-client.map)
get_target_property(soversion aule-client SOVERSION)
set_target_properties(aule_client_grown PROPERTIES OUTPUT_NAME aule-client
  SOVERSION ${soversion} LIBRARY_OUTPUT_DIRECTORY ${grown})
aule_check(test_client_grown SOURCES client/test_client_grown.c LIBS aule-client daemon_harness
           LABELS process VALIDATED ENVIRONMENT LD_LIBRARY_PATH=${grown})
add_dependencies(test_client_grown aule_client_grown)

# examples/, as users write them: against the shared library and a daemon.
set(examples ${PROJECT_SOURCE_DIR}/examples)
add_library(toy_model STATIC ${examples}/toy_model.c)
target_include_directories(toy_model PUBLIC ${examples})
target_link_libraries(toy_model PRIVATE aule_flags PUBLIC aule-client m)
file(GLOB programs CONFIGURE_DEPENDS RELATIVE ${examples} ${examples}/[0-9]*.c)
foreach(program ${programs})
  string(REGEX REPLACE "^[0-9]+_(.*)\\.c$" "example_\\1" name ${program})
  add_executable(${name} ${examples}/${program})
  target_link_libraries(${name} PRIVATE aule_flags toy_model)
  add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/client/run_example.sh
           $<TARGET_FILE:aule-daemon> $<TARGET_FILE:${name}>)
  set_tests_properties(${name} PROPERTIES LABELS process TIMEOUT 300)
endforeach()
