// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metrics.c - the table of metrics.h as one array for each column. Constant data: any thread.

#include "metrics.h"

#define NAME(id, kind, name, unit, help) name,
#define UNIT(id, kind, name, unit, help) unit,
#define HELP(id, kind, name, unit, help) help,
#define KIND(id, kind, name, unit, help) METRIC_##kind,

const char *const metric_names[] = {METRIC_MAP(NAME)};
const char *const metric_units[] = {METRIC_MAP(UNIT)};
const char *const metric_helps[] = {METRIC_MAP(HELP)};
const unsigned char metric_kinds[] = {METRIC_MAP(KIND)};
