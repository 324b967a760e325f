# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The worked examples from the documents that aule grew from, one suite for each document. They run
# through libaule-client and a real daemon, by both lanes.

foreach(suite hf mini_sglang ejkernel aule ragged)
  aule_check(test_seed_${suite} SOURCES seeds/test_seed_${suite}.c rigs/seed_world.c
             LIBS client_expect aule_oracle daemon_harness LABELS process VALIDATED)
  aule_lanes(test_seed_${suite} LONG)
endforeach()
