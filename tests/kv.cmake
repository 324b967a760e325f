# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors

aule_check(test_kv
           SOURCES test_kv.c test_kv_rope.c test_kv_gather.c test_kv_merge.c kv_world.c engine_world.c dice.c
           LIBS aule_engine aule_shaders aule_numbers LABELS device gpu VALIDATED COST 90)
