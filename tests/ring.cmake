# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The rings of a session's segment. The model's threads are coroutines, which sanitizers do not follow.

aule_check(test_ring SOURCES test_ring.c dice.c LIBS aule_schema LABELS unit tsan)
if(NOT AULE_SANITIZE)
  aule_check(test_ring_model SOURCES test_ring_model.c ring_explorer.c LIBS aule_schema xxhash LABELS unit)
endif()
