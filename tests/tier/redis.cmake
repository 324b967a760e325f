# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The suites of daemon/tier/redis: its parts alone, and all of it on real servers. test_redis skips
# without redis-server.

pkg_check_modules(HIREDIS IMPORTED_TARGET hiredis)
if(HIREDIS_FOUND)
  aule_check(test_redis_parts SOURCES tier/test_redis_parts.c rigs/dice.c LIBS aule_tier LABELS unit)
  aule_check(test_redis SOURCES tier/test_redis.c tier/test_redis_faults.c tier/redis_world.c
    ${redis_server} rigs/dice.c LIBS aule_tier PkgConfig::HIREDIS LABELS process redis COST 60)
  pkg_check_modules(OPENSSL IMPORTED_TARGET openssl>=3.0)
  if(OPENSSL_FOUND)
    aule_check(test_redis_tls SOURCES tier/test_redis_tls.c tier/redis_world.c ${redis_server}
      LIBS aule_tier PkgConfig::HIREDIS PkgConfig::OPENSSL LABELS process redis COST 20)
  endif()
  aule_check(test_client_redis SOURCES client/waiting/test_client_redis.c ${redis_server}
    rigs/text_world.c rigs/client_rig.c LIBS client_expect daemon_harness PkgConfig::HIREDIS
    LABELS process redis tier COST 60)
  foreach(suite test_redis_parts test_client_redis)
    target_compile_definitions(${suite} PRIVATE $<$<BOOL:${OPENSSL_FOUND}>:AULE_HAVE_TLS>)
  endforeach()
endif()

# Two network namespaces as two machines; only root can make them.
if(TARGET aule-daemon AND TARGET aule-ctl AND TARGET aule-worker)
  add_test(NAME test_tier_networks COMMAND
    ${CMAKE_CURRENT_SOURCE_DIR}/server/test_tier_networks.sh $<TARGET_FILE:aule-daemon>
    $<TARGET_FILE:aule-ctl> $<TARGET_FILE:aule-worker>
    ${PROJECT_SOURCE_DIR}/tools/worker/prompt.txt)
  set_tests_properties(test_tier_networks PROPERTIES TIMEOUT 300 LABELS "process;redis"
    SKIP_RETURN_CODE 77)
endif()
