# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# The client library: its parts alone, against a fake daemon, and (test_client) against the real one.

aule_check(test_client_parts SOURCES test_client_parts.c LIBS aule_client_static LABELS unit)
