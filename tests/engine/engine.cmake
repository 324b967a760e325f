# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The engine on a real Vulkan device. allocator_may_return_null: one test runs out of memory.
# ignore_noninstrumented_modules: ThreadSanitizer must not check a driver's own threads.

# One program and two tests, by Check's tags of its cases, so that no core idles at the end:
#   test_engine          cases without a tag
#   test_engine_kernels  kernels against each other: splits, kernels, warps, cascade, company
# Loops over compiled kernels draw one entry in ONE_IN; the host's code, which sanitizers look at,
# is the same for all entries.
# Another process that imports device memory, with Vulkan alone.
find_package(Vulkan REQUIRED)
add_executable(vulkan_importer rigs/vulkan_importer.c)
target_link_libraries(vulkan_importer PRIVATE aule_flags Vulkan::Vulkan)

set(one_in 16)
if(AULE_SANITIZE)
  set(one_in 24)
endif()
aule_check(test_engine
           SOURCES engine/test_engine.c engine/test_engine_device.c engine/test_engine_cache.c
                   engine/test_engine_run.c engine/test_engine_kinds.c engine/test_engine_check.c
                   engine/test_engine_split.c engine/test_engine_kernels.c
                   engine/test_engine_warps.c engine/test_engine_fault.c engine/test_engine_file.c
                   engine/test_engine_cascade.c engine/test_engine_company.c
                   engine/test_engine_step.c engine/test_engine_export.c engine/test_engine_haul.c
                   engine/test_engine_compile.c rigs/dice.c
                   rigs/engine_world.c rigs/importer.c
           LIBS aule_core aule_engine aule_shaders LABELS engine gpu tsan VALIDATED COST 250
           TIMEOUT 36000 # with --long; Check's limit for each test is far less
           ENVIRONMENT AULE_TEST_ONE_IN=${one_in} ASAN_OPTIONS=allocator_may_return_null=1
                       TSAN_OPTIONS=${tsan_options}:allocator_may_return_null=1)
add_dependencies(test_engine vulkan_importer aule-daemon)
target_compile_definitions(test_engine PRIVATE AULE_DAEMON="$<TARGET_FILE:aule-daemon>")
aule_twin(test_engine kernels CK_INCLUDE_TAGS=kernels ${validation})
set_tests_properties(test_engine_kernels PROPERTIES TIMEOUT 36000)
# The kernels' cases run no thread that others do not, so ThreadSanitizer sees them with --long.
set_tests_properties(test_engine_kernels PROPERTIES LABELS "engine;gpu;tsan_long")
set_property(TEST test_engine APPEND PROPERTY ENVIRONMENT "CK_EXCLUDE_TAGS=kernels")
# So that a test decides when a deadline passes.
target_link_options(test_engine PRIVATE -Wl,--wrap=vkWaitSemaphores,--wrap=vkWaitForFences)

# The queues of a device that is opened twice. What Vulkan says of it is the test's.
aule_check(test_device SOURCES engine/test_device.c rigs/engine_world.c rigs/dice.c
           LIBS aule_core aule_engine aule_shaders LABELS engine)
target_link_options(test_device PRIVATE
  -Wl,--wrap=vkCreateDevice,--wrap=vkEnumerateDeviceExtensionProperties
  -Wl,--wrap=vkGetInstanceProcAddr,--wrap=vkGetPhysicalDeviceQueueFamilyProperties
  -Wl,--wrap=vkGetDeviceQueue,--wrap=native_probe)

# Polling for announced submissions: no device, no thread, and a clock of the test's own.
aule_check(test_expect SOURCES engine/test_expect.c LIBS aule_engine aule_shaders LABELS engine)
target_link_options(test_expect PRIVATE -Wl,--wrap=clock_now_ns)

# Files that are replaced as a whole: no device.
aule_check(test_file SOURCES engine/test_file.c LIBS aule_engine aule_shaders LABELS engine)

# The queue of compiles: no device.
aule_check(test_compiler SOURCES engine/test_compiler.c rigs/dice.c LIBS aule_engine aule_shaders
           LABELS engine tsan)

# Finding common parts of block tables: no device.
aule_check(test_sharing SOURCES engine/test_sharing.c rigs/dice.c LIBS aule_engine LABELS engine)
