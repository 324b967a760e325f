# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The rings of a session's segment. The model's threads are coroutines, which sanitizers do not
# follow.

aule_check(test_ring SOURCES schema/test_ring.c rigs/dice.c LIBS aule_schema LABELS unit tsan)
if(NOT AULE_SANITIZE)
  aule_check(test_ring_model SOURCES schema/test_ring_model.c rigs/ring_explorer.c
             LIBS aule_schema xxhash LABELS unit)
endif()
