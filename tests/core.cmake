# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The suites of daemon/core, over the fake engine: no GPU, no sockets, one thread.

add_library(core_world STATIC fake_engine.c fake_run.c core_world.c)
target_include_directories(core_world PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(core_world PUBLIC aule_core PRIVATE aule_flags PkgConfig::CHECK)

foreach(suite pool tensor core_batch core_copy core_memory)
  aule_check(test_${suite} SOURCES test_${suite}.c LIBS core_world LABELS core)
endforeach()
foreach(suite core_run core_scales)
  aule_check(test_${suite} SOURCES test_${suite}.c run_world.c LIBS core_world LABELS core)
endforeach()
aule_check(test_core_model SOURCES test_core_model.c core_model.c LIBS core_world LABELS core)
foreach(suite ownership core_metadata core_death core_tenants prefix)
  aule_check(test_${suite} SOURCES test_${suite}.c ownership_world.c LIBS core_world LABELS core)
endforeach()
foreach(suite scheduler core_tickets core_parameters)
  aule_check(test_${suite} SOURCES test_${suite}.c scheduler_world.c LIBS core_world LABELS core)
endforeach()
foreach(suite core_step core_layers)
  aule_check(test_${suite} SOURCES test_${suite}.c step_world.c LIBS core_world LABELS core)
endforeach()

# Every allocation of core fails once there.
target_link_options(test_core_memory PRIVATE
  -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc -Wl,--wrap=strdup)
