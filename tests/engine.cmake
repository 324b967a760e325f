# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The engine on a real Vulkan device. allocator_may_return_null: one test lets memory run out.
# ignore_noninstrumented_modules: a driver's own threads are not ThreadSanitizer's to judge.

aule_check(test_engine
           SOURCES test_engine.c test_engine_device.c test_engine_cache.c test_engine_run.c test_engine_kinds.c
                   test_engine_check.c test_engine_split.c test_engine_kernels.c test_engine_warps.c test_engine_fault.c
                   test_engine_file.c test_engine_tune.c test_engine_cascade.c test_engine_step.c dice.c engine_world.c
           LIBS aule_core aule_engine aule_shaders LABELS engine gpu tsan VALIDATED COST 60
           ENVIRONMENT "ASAN_OPTIONS=allocator_may_return_null=1;TSAN_OPTIONS=${tsan_options}:allocator_may_return_null=1")
target_link_options(test_engine PRIVATE -Wl,--wrap=vkWaitSemaphores,--wrap=vkWaitForFences) # a deadline passes when a test wants it

# Tuning's table, trial and file: no device.
aule_check(test_tune SOURCES test_tune.c LIBS aule_engine aule_shaders LABELS engine tsan)

# What block tables have in common: no device.
aule_check(test_sharing SOURCES test_sharing.c dice.c LIBS aule_engine LABELS engine)

# When the completer looks at the GPU, sleeps and waits: no device.
aule_check(test_pace SOURCES test_pace.c LIBS aule_engine LABELS engine)
