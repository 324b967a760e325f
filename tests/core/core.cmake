# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The suites of daemon/core, over the fake engine: no GPU, no sockets, one thread.

add_library(core_world STATIC fakes/fake_engine.c fakes/fake_run.c rigs/core_world.c)
target_include_directories(core_world PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(core_world PUBLIC aule_core_audit PRIVATE aule_flags PkgConfig::CHECK)

foreach(suite pool tensor metrics core_batch core_copy core_memory)
  aule_check(test_${suite} SOURCES core/test_${suite}.c LIBS core_world LABELS core)
endforeach()
foreach(suite core_run core_scales core_arenas)
  aule_check(test_${suite} SOURCES core/test_${suite}.c rigs/run_world.c LIBS core_world
    LABELS core)
endforeach()
aule_check(test_core_sharing SOURCES core/test_core_sharing.c rigs/sharing_model.c LIBS core_world
  LABELS core)
# How long new runs wait while the GPU is busy: numbers only.
aule_check(test_delay SOURCES core/runs/test_delay.c LIBS aule_core LABELS core)
aule_check(test_core_model SOURCES core/test_core_model.c rigs/core_model.c rigs/model_claims.c
  rigs/model_offers.c LIBS core_world LABELS core)
foreach(suite ownership core_metadata core_death core_tenants offer prefix waits pieces opaque)
  aule_check(test_${suite} SOURCES core/test_${suite}.c rigs/ownership_world.c LIBS core_world
    LABELS core)
endforeach()
foreach(suite loads stores)
  aule_check(test_core_${suite} SOURCES tier/test_core_${suite}.c tier/tiered_world.c
    rigs/ownership_world.c rigs/dice.c LIBS core_world LABELS core tier)
endforeach()
aule_check(test_attached SOURCES core/attached/test_attached.c rigs/dice.c LIBS core_world LABELS core)
aule_check(test_order SOURCES core/test_order.c rigs/dice.c LIBS core_world LABELS core)
aule_check(test_evict SOURCES core/test_evict.c rigs/dice.c LIBS core_world LABELS core)
aule_check(test_queue SOURCES core/test_queue.c rigs/dice.c LIBS core_world LABELS core)
aule_check(test_claims SOURCES core/test_claims.c rigs/ownership_world.c rigs/dice.c LIBS core_world
  LABELS core)
aule_check(test_offer_walk SOURCES core/test_offer_walk.c rigs/dice.c LIBS core_world LABELS core)
foreach(suite scheduler core_tickets core_parameters)
  aule_check(test_${suite} SOURCES core/test_${suite}.c rigs/scheduler_world.c LIBS core_world
    LABELS core)
endforeach()
aule_check(test_slices SOURCES core/runs/test_slices.c rigs/scheduler_world.c LIBS core_world
  LABELS core)
foreach(suite core_step core_layers core_drafts reads)
  aule_check(test_${suite} SOURCES core/steps/test_${suite}.c rigs/step_world.c LIBS core_world
    LABELS core)
endforeach()
aule_check(test_gather SOURCES core/test_gather.c rigs/crowd_world.c rigs/dice.c LIBS core_world
  LABELS core)

# Every allocation of core fails once in this suite.
failing_memory(test_core_memory)
