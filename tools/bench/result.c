// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// result.c - see result.h.

#include "result.h"

#include <stdio.h>
#include <string.h>

// Rates include the process border where times do.
static double step_us(const struct result *r)
{
    return r->clients > 1 ? r->times.wall_us : r->times.median_us;
}

static double bytes(const struct result *r)
{
    return workload_bytes(r->workload, r->kv_dtype);
}

// 0 if it was only checked.
static double rate(const struct result *r, double amount, double unit)
{
    return r->times.runs ? amount / step_us(r) / unit : 0;
}

static double gb_per_s(const struct result *r)
{
    return rate(r, bytes(r), 1e3);
}

static double tflops(const struct result *r)
{
    return rate(r, workload_flops(r->workload), 1e6);
}

// 0: not known.
static double ceiling_ratio(const struct result *r)
{
    return r->workload->bound_by_memory && r->read_gb_per_s > 0 ? gb_per_s(r) / r->read_gb_per_s
                                                                : 0;
}

static uint32_t longest(const struct result *r)
{
    uint32_t most = 0, q_len, kv_len;
    for (uint32_t s = 0; s < workload_num_seqs(r->workload); s++) {
        workload_seq(r->workload, s, &q_len, &kv_len);
        most = kv_len > most ? kv_len : most;
    }
    return most;
}

// The keys, in the order of the line. Numbers with UNKNOWN are null if they are 0.
enum flag { KNOWN, UNKNOWN };

// Keys that only a measurement has.
static enum flag measured(const struct result *r)
{
    return r->times.runs ? KNOWN : UNKNOWN;
}

static bool add_number(cJSON *json, const char *name, double number, enum flag flag)
{
    return flag == UNKNOWN && !(number > 0) ? cJSON_AddNullToObject(json, name) != NULL
                                            : cJSON_AddNumberToObject(json, name, number) != NULL;
}

// The type of q and then of K and V, and whether K and V have a scale for each row.
static void dtypes_text(const struct result *r, char *text, size_t size)
{
    snprintf(text, size, "%s/%s%s", dtype_name((int)r->dtype), dtype_name((int)r->kv_dtype),
             r->workload->token_scales ? "+scales" : "");
}

static bool add_texts(cJSON *json, const struct result *r)
{
    char dtype[32];
    dtypes_text(r, dtype, sizeof dtype);
    const struct {
        const char *name, *text;
    } texts[] = {
        {"workload", r->workload->name},
        {"device", r->device},
        {"driver", r->driver},
        {"via", r->via},
        {"dtype", dtype},
        {"variant", r->variant},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!cJSON_AddStringToObject(json, texts[i].name, texts[i].text))
            return false;
    }
    return true;
}

struct number {
    const char *name;
    double number;
    enum flag flag;
};

static bool add_numbers(cJSON *json, const struct number *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!add_number(json, numbers[i].name, numbers[i].number, numbers[i].flag))
            return false;
    }
    return true;
}

static bool add_rates(cJSON *json, const struct result *r)
{
    const struct number numbers[] = {
        {"median_us", r->times.median_us, measured(r)}, {"p99_us", r->times.p99_us, measured(r)},
        {"gb_per_s", gb_per_s(r), measured(r)},         {"tflops", tflops(r), measured(r)},
        {"ceiling_ratio", ceiling_ratio(r), UNKNOWN},
    };
    return add_numbers(json, numbers, sizeof numbers / sizeof *numbers);
}

static bool add_rest(cJSON *json, const struct result *r)
{
    const struct number numbers[] = {
        {"head_dim", r->workload->head_dim, KNOWN},
        {"checked_rows", r->verdict.num_rows, KNOWN},
        {"worst_error", r->verdict.worst, KNOWN},
        {"runs", r->times.runs, KNOWN},
        {"wall_us", r->times.wall_us, measured(r)},
        {"gpu_us", r->times.gpu_us, UNKNOWN},
        {"floor_us", r->floor_us, UNKNOWN},
        {"read_gb_per_s", r->read_gb_per_s, UNKNOWN},
        {"seqs", workload_num_seqs(r->workload), KNOWN},
        {"longest", longest(r), KNOWN},
        {"clients", r->clients, KNOWN},
        {"splits", r->splits, KNOWN},
    };
    return (!r->kernels[0] || cJSON_AddStringToObject(json, "kernels", r->kernels)) &&
           cJSON_AddStringToObject(json, "place", "paged") != NULL &&
           add_numbers(json, numbers, sizeof numbers / sizeof *numbers);
}

bool line_print(cJSON *json, bool complete)
{
    char *text = json && complete ? cJSON_PrintUnformatted(json) : NULL;
    const bool printed = text != NULL;
    if (printed)
        puts(text);
    else
        fprintf(stderr, "aule-bench: no host memory\n");
    fflush(stdout);
    cJSON_free(text);
    cJSON_Delete(json);
    return printed;
}

bool result_print_json(const struct result *r)
{
    cJSON *json = cJSON_CreateObject();
    return line_print(json, json && add_texts(json, r) && add_rates(json, r) &&
                                cJSON_AddBoolToObject(json, "checked", r->checked) &&
                                add_rest(json, r));
}

void result_print_text(const struct result *r)
{
    double ratio = ceiling_ratio(r);
    char share[64] = "", floor[64] = "", dtypes[32];
    dtypes_text(r, dtypes, sizeof dtypes);
    if (ratio > 0)
        snprintf(share, sizeof share, ", %.1f %% of a read", 100 * ratio);
    if (r->floor_us > 0)
        snprintf(floor, sizeof floor, "; a read of as much %.1f us", r->floor_us);
    printf("%-4s %9.1f us (p99 %.1f, wall %.1f, %u runs%s)  %.4g GB/s  %.4g TFLOP/s%s; %s, "
           "head_dim %u, %s; %u rows "
           "%s to %.1e\n",
           r->workload->name, r->times.median_us, r->times.p99_us, r->times.wall_us, r->times.runs,
           floor, gb_per_s(r), tflops(r), share, dtypes, r->workload->head_dim, r->variant,
           r->verdict.num_rows, r->checked ? "right" : "WRONG", r->verdict.worst);
    fflush(stdout);
}

void result_print_check(const struct result *r)
{
    char dtypes[32];
    dtypes_text(r, dtypes, sizeof dtypes);
    printf("%-4s %u rows right to %.1e (%s, head_dim %u, %s)\n", r->workload->name,
           r->verdict.num_rows, r->verdict.worst, dtypes, r->workload->head_dim, r->variant);
    fflush(stdout);
}
