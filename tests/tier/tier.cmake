# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The suites of daemon/tier: no GPU, no daemon.

foreach(suite stored tier host files)
  aule_check(test_${suite} SOURCES tier/test_${suite}.c tier/tier_world.c rigs/dice.c
    LIBS aule_tier LABELS unit tier)
endforeach()
# So that a test decides which file can be removed, and when a disk answers.
target_link_options(test_files PRIVATE -Wl,--wrap=unlinkat,--wrap=openat64,--wrap=inotify_add_watch)
