# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors

aule_check(test_kv
           SOURCES engine/test_kv.c engine/test_kv_rope.c engine/test_kv_gather.c
                   engine/test_kv_merge.c rigs/kv_world.c rigs/engine_world.c rigs/dice.c
           LIBS aule_engine aule_shaders aule_numbers LABELS device gpu VALIDATED COST 90)
