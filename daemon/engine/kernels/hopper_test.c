// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper_test.c - runs a native kernel on small problems, each in a submission of its own, and
// compares the results with float64. A problem has each kind of tile: masked, late and exact. The
// problems differ in the size of blocks; in one, the kernel has to compute items again. The thread
// that compiles, beside other sessions' work.

#include "engine/vulkan/vk.h"
#include "hopper.h"
#include "matrix.h"
#include "shaders/hopper/index.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// One sequence of QUERIES queries behind a context, with KEYS keys in all.
enum {
    QUERIES = 40,
    KEYS = 600,
    KV_HEADS = 2,
    GROUP = 2,
    HEADS = KV_HEADS * GROUP,
    MOST_BLOCKS = (KEYS + HOPPER_LEAST_BLOCK - 1) / HOPPER_LEAST_BLOCK,
    QUERY_STEP = 3, // every third query is compared, the last one, too
    COMPARED = (QUERIES + QUERY_STEP - 1) / QUERY_STEP * HEADS, // rows
};
_Static_assert((QUERIES - 1) % QUERY_STEP == 0, "the last query is compared");
// Besides what other submissions take, which may stand before it in the queue.
#define TIME_LIMIT_NS UINT64_C(30000000000)
static const double scale = 0.0625, cap = 6;

// A test of one kernel.
struct problem {
    struct geometry geometry;
    enum dtype dtype;        // of Q and out
    enum dtype kv_dtypes[2]; // of K and V: elements of one size
    uint32_t dim_k, dim_v;
    bool shaped;
    uint32_t num_items;
    int block, num_blocks;
    // The last key's V is infinite. Only the last query sees this key. Its item's sums become
    // infinite or NaN, so the kernel computes the item again, and the other rows must come right.
    bool spoiled;
    bool later;
};

// The problems of each kernel.
static const struct {
    int block;
    bool spoiled;
    bool raw;   // K and V have 8 bits
    bool later; // a second launch joins the first one's work
} kinds[] = {{HOPPER_LEAST_BLOCK, false, false, false},
             {32, true, false, false},
             {HOPPER_MOST_BLOCK, false, false, true},
             {32, false, true, false}};

// What the GPU reads, in front of the tensors.
struct input {
    struct gpu_run run;
    struct gpu_item items[QUERIES];
    uint64_t chunk;
    uint32_t table[MOST_BLOCKS];
    char extras[4096] __attribute__((aligned(128)));
};

static uint64_t pool_at(const struct problem *problem)
{
    return (sizeof(struct input) + QUERIES * HEADS * problem->dim_k * 2 + 255) & ~UINT64_C(255);
}

static uint64_t input_bytes(const struct problem *problem)
{
    return pool_at(problem) + (uint64_t)problem->num_blocks * (uint64_t)problem->block * KV_HEADS *
                                  (problem->dim_k + problem->dim_v) *
                                  dtype_size(problem->kv_dtypes[0]);
}

// Whole numbers: exact in all types. The first 64 dims differ from zero.
static int q_at(int query, int head, int dim)
{
    return dim < 64 ? (query * 7 + head * 5 + dim * dim * 3 + dim * query) % 7 - 3 : dim % 2;
}

static int k_at(int key, int head, int dim)
{
    return dim < 64 ? (key * 11 + head * 3 + dim * 5 + key * dim % 13) % 7 - 3 : key % 2;
}

static int v_at(int key, int head, int dim)
{
    return (key * 5 + head + dim * 7 + key * dim % 11) % 17 - 8;
}

static uint16_t element(int number, enum dtype dtype)
{
    return (uint16_t)matrix_element(number, dtype);
}

// The same in 8 bits, of a number up to 16.
static uint8_t small_element(int number, enum dtype dtype)
{
    uint16_t half = element(number, DTYPE_F16);
    if (dtype == DTYPE_INT8)
        return (uint8_t)number;
    if (dtype == DTYPE_FP8_E5M2)
        return (uint8_t)(half >> 8);
    return number ? (uint8_t)((half >> 8 & 0x80) | ((half & 0x7fff) - (8 << 10)) >> 7) : 0;
}

// Element `dim` of K (which = 0) or V (1). NaN behind the last key, if the type has one.
static uint16_t kv_at(const struct problem *problem, int which, int key, int head, int dim)
{
    const enum dtype dtype = problem->kv_dtypes[which];
    const int number = which ? v_at(key, head, dim) : k_at(key, head, dim);
    if (dtype_size(dtype) == 1)
        return key < KEYS ? small_element(number, dtype) : 0x7f;
    if (key >= KEYS)
        return 0x7fff;
    if (problem->spoiled && which && key == KEYS - 1)
        return dtype == DTYPE_F16 ? 0x7c00 : 0x7f80;
    return element(number, dtype);
}

// Fills K or V of one block and head; returns where the next begins.
static char *fill_rows(const struct problem *problem, char *to, int which, int block, int head)
{
    const int dims = (int)(which ? problem->dim_v : problem->dim_k);
    const int first = (problem->num_blocks - 1 - block) * problem->block;
    const size_t size = dtype_size(problem->kv_dtypes[which]);
    for (int row = 0; row < problem->block; row++)
        for (int dim = 0; dim < dims; dim++, to += size) {
            const uint16_t value = kv_at(problem, which, first + row, head, dim);
            memcpy(to, &value, size); // a little-endian host: the low byte of 8 bits
        }
    return to;
}

// Blocks in reverse order.
static void fill_pool(const struct problem *problem, char *pool)
{
    for (int block = 0; block < problem->num_blocks; block++)
        for (int which = 0; which < 2; which++)
            for (int head = 0; head < KV_HEADS; head++)
                pool = fill_rows(problem, pool, which, block, head);
}

static void fill(const struct problem *problem, char *to, uint64_t address, uint64_t out)
{
#define ADDRESS_OF(FIELD) (address + offsetof(struct input, FIELD))
    struct input *input = (struct input *)to;
    uint16_t *q = (uint16_t *)(input + 1);
    input->run = (struct gpu_run){
        .q = address + sizeof *input,
        .out = out,
        .chunks = ADDRESS_OF(chunk),
        .block_table = ADDRESS_OF(table),
        .items = ADDRESS_OF(items),
        .q_token_stride = HEADS * problem->dim_k * 2 / 16,
        .q_head_stride = problem->dim_k * 2 / 16,
        .out_token_stride = HEADS * problem->dim_v * 2 / 16,
        .out_head_stride = problem->dim_v * 2 / 16,
        .num_heads = HEADS,
        .max_blocks = (uint32_t)problem->num_blocks,
        .chunk_stride = 1,
        .chunk_shift = 10,
        .causal = 1,
        .scale_log2e = (float)(scale * 1.4426950408889634),
        .v_scale = 1,
        .soft_cap = (float)cap,
    };
    for (uint32_t i = 0; i < problem->num_items; i++)
        input->items[i] = (struct gpu_item){
            .tile = {.first_row = i * HOPPER_ROWS,
                     .num_tokens = QUERIES,
                     .q_len = QUERIES,
                     .kv_len = KEYS},
            .end_key = KEYS,
            .partial = AULE_NO_PARTIAL,
            .which_half = AULE_BOTH_HALVES,
        };
    input->chunk = address + pool_at(problem);
    for (uint32_t i = 0; i < (uint32_t)problem->num_blocks; i++)
        input->table[i] = (uint32_t)problem->num_blocks - 1 - i;
    for (int query = 0; query < QUERIES; query++)
        for (int head = 0; head < HEADS; head++)
            for (int dim = 0; dim < (int)problem->dim_k; dim++)
                *q++ = element(q_at(query, head, dim), problem->dtype);
    fill_pool(problem, to + pool_at(problem));
    hopper_put(input->extras, &problem->geometry, &input->run, 1);
#undef ADDRESS_OF
}

static double number_of(uint16_t element, enum dtype dtype)
{
    int bits = dtype == DTYPE_F16 ? 10 : 7, bias = dtype == DTYPE_F16 ? 15 : 127;
    int exponent = (element & 0x7fff) >> bits, fraction = element & ((1 << bits) - 1);
    if (exponent == 2 * bias + 1)
        return NAN;
    double size = exponent ? ldexp(fraction + (1 << bits), exponent - bias - bits)
                           : ldexp(fraction, 1 - bias - bits);
    return element & 0x8000 ? -size : size;
}

static double score_of(const struct problem *problem, int query, int head, int key)
{
    int product = 0;
    for (int dim = 0; dim < (int)problem->dim_k; dim++)
        product += q_at(query, head, dim) * k_at(key, head / GROUP, dim);
    return problem->shaped ? cap * tanh(scale * product / cap) : scale * product;
}

// The result of one row in float64, where V is not spoiled.
static void attend(const struct problem *problem, int query, int head, double *out)
{
    int end = KEYS - QUERIES + query + 1;
    double scores[KEYS], most = -INFINITY, sum = 0;
    for (int key = 0; key < end; key++) {
        scores[key] = score_of(problem, query, head, key);
        most = fmax(most, scores[key]);
    }
    memset(out, 0, problem->dim_v * sizeof *out);
    for (int key = 0; key < end; key++) {
        double weight = exp(scores[key] - most);
        sum += weight;
        for (int dim = 0; dim < (int)problem->dim_v; dim++)
            out[dim] += weight * v_at(key, head / GROUP, dim);
    }
    for (int dim = 0; dim < (int)problem->dim_v; dim++)
        out[dim] /= sum;
}

// Results of the rows that are compared, [COMPARED][dim_v]. They are the same for all problems of a
// kernel. NULL: no memory.
static double *attend_all(const struct problem *problem)
{
    double *results = calloc((size_t)COMPARED * problem->dim_v, sizeof *results), *to = results;
    for (int query = 0; results && query < QUERIES; query += QUERY_STEP)
        for (int head = 0; head < HEADS; head++, to += problem->dim_v)
            attend(problem, query, head, to);
    return results;
}

// The largest difference in a row; NaN if there is one. V is at most 8.
static double row_error(const struct problem *problem, const uint16_t *row, const double *expected)
{
    double largest = 0;
    for (uint32_t dim = 0; dim < problem->dim_v; dim++) {
        const double error = fabs(number_of(row[dim], problem->dtype) - expected[dim]);
        if (isnan(error))
            return NAN;
        largest = error > largest ? error : largest;
    }
    return largest;
}

// The same of all rows that are compared. A row that sees spoiled V has no finite result: where it
// has one, the difference is infinite.
static double largest_error(const struct problem *problem, const uint16_t *output,
                            const double *expected)
{
    double largest = 0;
    for (int query = 0; query < QUERIES; query += QUERY_STEP)
        for (int head = 0; head < HEADS; head++, expected += problem->dim_v) {
            const uint16_t *row = output + (size_t)(query * HEADS + head) * problem->dim_v;
            double error = row_error(problem, row, expected);
            if (problem->spoiled && query == QUERIES - 1)
                error = isfinite(error) ? INFINITY : 0;
            if (isnan(error))
                return NAN;
            largest = error > largest ? error : largest;
        }
    return largest;
}

// The objects of a test.
struct rig {
    struct device *device;
    struct transfer *transfer;
    const struct native *native;
    const double *expected;
    struct buffer input, output;
};

static enum status rig_launch(const struct problem *problem, const struct rig *rig,
                              struct error *error)
{
    const struct gpu_dispatch constants = {
        .runs = rig->input.address + offsetof(struct input, run),
        .num_runs = 1,
        .num_items = problem->num_items,
        .items = rig->input.address + offsetof(struct input, items),
    };
    struct hopper_launch launch = {
        .constants = &constants,
        .geometry = &problem->geometry,
        .extras = rig->input.address + offsetof(struct input, extras),
        .first_blocks = 1, // so that it takes several units
        .later_blocks = 1,
    };
    enum status status = transfer_begin(rig->transfer, error);
    if (status != STATUS_OK)
        return status;
    hopper_record(rig->device, rig->transfer->commands, rig->native, &launch);
    launch.is_later = true;
    if (problem->later)
        hopper_record(rig->device, rig->transfer->commands, rig->native, &launch);
    rig->transfer->limit_ns = TIME_LIMIT_NS;
    return transfer_end(rig->transfer, error);
}

static struct problem problem_of(uint32_t number, size_t kind)
{
    struct problem problem = {.geometry = hopper_geometry(number)};
    uint32_t *spec = problem.geometry.spec;
    problem.block = kinds[kind].block;
    problem.num_blocks = (KEYS + problem.block - 1) / problem.block;
    problem.spoiled = kinds[kind].spoiled;
    problem.later = kinds[kind].later;
    if (kinds[kind].raw)
        spec[AULE_SPEC_K_DTYPE] = DTYPE_FP8_E4M3, spec[AULE_SPEC_V_DTYPE] = DTYPE_INT8;
    spec[AULE_SPEC_NUM_KV_HEADS] = KV_HEADS;
    spec[AULE_SPEC_BLOCK_SIZE] = (uint32_t)problem.block;
    problem.dtype = (enum dtype)spec[AULE_SPEC_IO_DTYPE];
    problem.kv_dtypes[0] = (enum dtype)spec[AULE_SPEC_K_DTYPE];
    problem.kv_dtypes[1] = (enum dtype)spec[AULE_SPEC_V_DTYPE];
    problem.dim_k = spec[AULE_SPEC_HEAD_DIM_K];
    problem.dim_v = spec[AULE_SPEC_HEAD_DIM_V];
    problem.shaped = spec[AULE_SPEC_FEATURES] & AULE_FEATURE_SOFT_CAP;
    problem.num_items = (QUERIES * GROUP + HOPPER_ROWS - 1) / HOPPER_ROWS;
    return problem;
}

// Runs the kernel on one problem.
static enum status rig_run(const struct problem *problem, struct rig *rig, const char *name,
                           struct error *error)
{
    const double bound = problem->dtype == DTYPE_F16 ? 0.02 : 0.15; // roundings of numbers up to 8
    const uint64_t output_bytes = (uint64_t)QUERIES * HEADS * problem->dim_v * 2;
    enum status status = buffer_init(rig->device, MEMORY_METADATA, input_bytes(problem),
                                     "native kernel's input", &rig->input, error);
    if (status == STATUS_OK)
        status = buffer_init(rig->device, MEMORY_STAGING, output_bytes, "native kernel's output",
                             &rig->output, error);
    if (status == STATUS_OK) {
        // Wrong where the kernel writes nothing: NaN; where NaN is right, 0.
        memset(rig->output.mapped, problem->spoiled ? 0 : 0xff, output_bytes);
        fill(problem, rig->input.mapped, rig->input.address, rig->output.address);
        status = rig_launch(problem, rig, error);
    }
    const double wrong =
        status == STATUS_OK ? largest_error(problem, rig->output.mapped, rig->expected) : 0;
    if (status == STATUS_OK && !(wrong <= bound))
        status = error_set(error, STATUS_UNSUPPORTED,
                           "%s is wrong by %g in its self-test (blocks of %d%s%s)", name, wrong,
                           problem->block, problem->spoiled ? ", one V infinite" : "",
                           dtype_size(problem->kv_dtypes[0]) == 1 ? ", K and V of 8 bits" : "");
    if (status == STATUS_DEVICE_LOST) // the GPU may still use them
        return status;
    buffer_finish(rig->device, &rig->input);
    buffer_finish(rig->device, &rig->output);
    return status;
}

enum status hopper_test(struct device *device, struct transfer *transfer, uint32_t number,
                        const struct native *native, struct error *error)
{
    const struct problem first = problem_of(number, 0);
    double *expected = attend_all(&first);
    struct rig rig = {device, transfer, native, expected, {0}, {0}};
    enum status status = STATUS_OK;
    if (!expected)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the self-test of a native kernel");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && status == STATUS_OK; i++) {
        const struct problem problem = problem_of(number, i);
        if (hopper_serves(&problem.geometry))
            status = rig_run(&problem, &rig, native->code->name, error);
    }
    free(expected);
    return status;
}
