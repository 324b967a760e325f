# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Real worker processes, some killed, against a plain model. The client library is the shared one:
# its hidden symbols do not meet the daemon's. The fake engine comes first on the link line, so that
# the linker takes nothing from the real one.

if(TARGET aule_server)
  aule_check(test_killed SOURCES model/test_killed.c model/plain_model.c model/texts.c model/world.c
             model/worker.c rigs/dice.c fakes/fake_engine.c fakes/fake_run.c
             LIBS aule-client aule_core_audit aule_server LABELS process COST 15)
  target_link_options(test_killed PRIVATE
                      -Wl,--wrap=core_step,--wrap=session_begin_wait
                      -Wl,--wrap=engine_poll,--wrap=engine_submit)
endif()

# The same with tiers that do harm, on real stores.
pkg_check_modules(HIREDIS IMPORTED_TARGET hiredis)
if(TARGET aule_server AND HIREDIS_FOUND)
  aule_check(test_killed_tiers SOURCES model/test_killed_tiers.c model/plain_model.c model/world.c
             model/worker.c ${redis_server} rigs/dice.c fakes/fake_engine.c fakes/fake_run.c
             LIBS aule-client aule_core_audit aule_server PkgConfig::HIREDIS LABELS process redis
             tier COST 20)
  target_link_options(test_killed_tiers PRIVATE
                      -Wl,--wrap=core_step,--wrap=session_begin_wait
                      -Wl,--wrap=engine_poll,--wrap=engine_submit,--wrap=tier_create)
endif()
