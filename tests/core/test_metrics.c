// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_metrics.c - the table of metrics follows the rules of Prometheus.

#include "core/metrics.h"
#include "rigs/check_main.h"

#include <ctype.h>
#include <string.h>

// Bytes of the name without its label.
static size_t stem(int metric)
{
    return strcspn(metric_names[metric], "{");
}

static bool same_stem(int a, int b)
{
    return stem(a) == stem(b) && strncmp(metric_names[a], metric_names[b], stem(a)) == 0;
}

static bool ends_with(int metric, const char *suffix)
{
    size_t size = strlen(suffix);
    return stem(metric) >= size &&
           strncmp(metric_names[metric] + stem(metric) - size, suffix, size) == 0;
}

START_TEST(a_name_is_one_of_prometheus)
{
    const char *name = metric_names[_i], *label = name + stem(_i);
    ck_assert_int_eq(strncmp(name, "aule_", 5), 0);
    for (size_t i = 0; i < stem(_i); i++)
        ck_assert_msg(islower((unsigned char)name[i]) || name[i] == '_', "%s", name);
    ck_assert_msg(!*label ||
                      (strstr(label, "=\"") && strcmp(label + strlen(label) - 2, "\"}") == 0),
                  "%s", name);
    ck_assert_msg(ends_with(_i, "_total") == (metric_kinds[_i] == METRIC_COUNTER), "%s", name);
    ck_assert_msg(strstr(name, metric_units[_i]) != NULL, "%s in %s", name, metric_units[_i]);
    ck_assert_uint_gt(strlen(metric_helps[_i]), 0);
}
END_TEST

START_TEST(metrics_of_one_name_stand_together_and_mean_one_thing)
{
    for (int other = 0; other < _i; other++) {
        ck_assert_str_ne(metric_names[other], metric_names[_i]);
        if (!same_stem(other, _i))
            continue;
        ck_assert(same_stem(_i - 1, _i));
        ck_assert_uint_eq(metric_kinds[other], metric_kinds[_i]);
        ck_assert_str_eq(metric_units[other], metric_units[_i]);
        ck_assert_str_eq(metric_helps[other], metric_helps[_i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *table = tcase_create("table");
    tcase_add_loop_test(table, a_name_is_one_of_prometheus, 0, NUM_METRICS);
    tcase_add_loop_test(table, metrics_of_one_name_stand_together_and_mean_one_thing, 0,
                        NUM_METRICS);
    suite_add_tcase(suite, table);
    return check_main(suite);
}
