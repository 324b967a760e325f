# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors

aule_check(test_attention SOURCES test_attention.c attention_rig.c attention_cases.c LIBS aule_engine aule_oracle
           LABELS device VALIDATED TIMEOUT 900)
