# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The suites of daemon/tier/redis: its parts alone, and all of it on real servers. test_redis skips
# without redis-server.

pkg_check_modules(HIREDIS IMPORTED_TARGET hiredis)
if(HIREDIS_FOUND)
  aule_check(test_redis_parts SOURCES tier/test_redis_parts.c rigs/dice.c LIBS aule_tier LABELS unit)
  aule_check(test_redis SOURCES tier/test_redis.c tier/test_redis_faults.c tier/redis_world.c
    rigs/dice.c LIBS aule_tier PkgConfig::HIREDIS LABELS redis COST 60)
endif()
