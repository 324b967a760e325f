// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper_test.c - runs a native kernel once on a small problem, in a submission of its own, and
// compares the result with float64. The problem has each kind of tile: masked, late and exact. The
// compiler's thread, beside other sessions' work.

#include "engine/vulkan/vk.h"
#include "hopper.h"
#include "matrix.h"
#include "shaders/hopper/index.h"

#include <math.h>
#include <string.h>

// One sequence of QUERIES queries behind a context, with KEYS keys in all.
enum {
    QUERIES = 40,
    KEYS = 600,
    KV_HEADS = 2,
    GROUP = 2,
    HEADS = KV_HEADS * GROUP,
    BLOCK = 32,
    BLOCKS = (KEYS + BLOCK - 1) / BLOCK,
    MOST_DIM = 256,
};
// Besides what other submissions take, which may stand before it in the queue.
#define TIME_LIMIT_NS UINT64_C(30000000000)
static const double scale = 0.0625, cap = 6;

// A test of one kernel. Tensors are 2-byte elements.
struct problem {
    struct geometry geometry;
    enum dtype dtype;
    uint32_t dim_k, dim_v;
    bool shaped;
    uint32_t num_items;
};

// What the GPU reads, in front of the tensors.
struct input {
    struct gpu_run run;
    struct gpu_item items[QUERIES];
    uint64_t chunk;
    uint32_t table[BLOCKS];
    char extras[4096] __attribute__((aligned(128)));
};

static uint64_t pool_at(const struct problem *problem)
{
    return (sizeof(struct input) + QUERIES * HEADS * problem->dim_k * 2 + 255) & ~UINT64_C(255);
}

static uint64_t input_bytes(const struct problem *problem)
{
    return pool_at(problem) +
           (uint64_t)BLOCKS * BLOCK * KV_HEADS * (problem->dim_k + problem->dim_v) * 2;
}

// Whole numbers: exact in both types. The first 64 dims differ from zero.
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

// Blocks in reverse order; NaN behind the last key.
static void fill_pool(const struct problem *problem, uint16_t *pool)
{
    const uint32_t dims[2] = {problem->dim_k, problem->dim_v};
    for (int block = BLOCKS - 1; block >= 0; block--)
        for (int which = 0; which < 2; which++)
            for (int head = 0; head < KV_HEADS; head++)
                for (int row = 0; row < BLOCK; row++)
                    for (int dim = 0; dim < (int)dims[which]; dim++) {
                        int key = (BLOCKS - 1 - block) * BLOCK + row;
                        uint16_t *to =
                            pool + (size_t)block * KV_HEADS * BLOCK * (dims[0] + dims[1]);
                        to += (size_t)which * KV_HEADS * BLOCK * dims[0] +
                              (size_t)(head * BLOCK + row) * dims[which] + (size_t)dim;
                        int number = which ? v_at(key, head, dim) : k_at(key, head, dim);
                        *to = key < KEYS ? element(number, problem->dtype) : 0x7fff;
                    }
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
        .max_blocks = BLOCKS,
        .chunk_stride = 1,
        .chunk_shift = 10,
        .causal = 1,
        .scale_log2e = (float)(scale * 1.4426950408889634),
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
    for (uint32_t i = 0; i < BLOCKS; i++)
        input->table[i] = BLOCKS - 1 - i;
    for (int query = 0; query < QUERIES; query++)
        for (int head = 0; head < HEADS; head++)
            for (int dim = 0; dim < (int)problem->dim_k; dim++)
                *q++ = element(q_at(query, head, dim), problem->dtype);
    fill_pool(problem, (uint16_t *)(to + pool_at(problem)));
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

// The result of one row in float64.
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

// The largest difference; NaN if there is one. V is at most 8.
static double largest_error(const struct problem *problem, const uint16_t *output)
{
    double largest = 0;
    for (int query = 0; query < QUERIES; query += 3)
        for (int head = 0; head < HEADS; head++) {
            double expected[MOST_DIM];
            const uint16_t *row = output + (size_t)(query * HEADS + head) * problem->dim_v;
            attend(problem, query, head, expected);
            for (int dim = 0; dim < (int)problem->dim_v; dim++) {
                double error = fabs(number_of(row[dim], problem->dtype) - expected[dim]);
                if (isnan(error))
                    return NAN;
                largest = error > largest ? error : largest;
            }
        }
    return largest;
}

// The objects of a test.
struct rig {
    struct buffer input, output;
    struct native native;
};

static enum status rig_run(const struct problem *problem, struct rig *rig, struct device *device,
                           struct transfer *transfer, struct error *error)
{
    const struct gpu_dispatch constants = {
        .runs = rig->input.address + offsetof(struct input, run),
        .num_runs = 1,
        .num_items = problem->num_items,
        .items = rig->input.address + offsetof(struct input, items),
    };
    const struct hopper_launch launch = {
        .constants = &constants,
        .geometry = &problem->geometry,
        .extras = rig->input.address + offsetof(struct input, extras),
        .most_blocks = 1, // so that it takes several units
    };
    enum status status = transfer_begin(transfer, error);
    if (status != STATUS_OK)
        return status;
    hopper_record(device, transfer->commands, &rig->native, &launch);
    transfer->limit_ns = TIME_LIMIT_NS;
    return transfer_end(transfer, error);
}

static struct problem problem_of(uint32_t number)
{
    struct problem problem = {.geometry = hopper_geometry(number)};
    uint32_t *spec = problem.geometry.spec;
    spec[AULE_SPEC_NUM_KV_HEADS] = KV_HEADS;
    spec[AULE_SPEC_BLOCK_SIZE] = BLOCK;
    problem.dtype = (enum dtype)spec[AULE_SPEC_IO_DTYPE];
    problem.dim_k = spec[AULE_SPEC_HEAD_DIM_K];
    problem.dim_v = spec[AULE_SPEC_HEAD_DIM_V];
    problem.shaped = spec[AULE_SPEC_FEATURES] & AULE_FEATURE_SOFT_CAP;
    problem.num_items = (QUERIES * GROUP + HOPPER_ROWS - 1) / HOPPER_ROWS;
    return problem;
}

// Runs the kernel, which is loaded, on its problem.
static enum status test(struct device *device, struct transfer *transfer, uint32_t number,
                        struct native *native, struct error *error)
{
    const struct problem problem = problem_of(number);
    const struct native_code *code = hopper_code_at(number);
    const double bound = problem.dtype == DTYPE_F16 ? 0.02 : 0.15; // roundings of numbers up to 8
    struct rig rig = {.native = *native};
    enum status status = buffer_init(device, MEMORY_METADATA, input_bytes(&problem),
                                     "native kernel's input", &rig.input, error);
    const uint64_t output_bytes = (uint64_t)QUERIES * HEADS * problem.dim_v * 2;
    if (status == STATUS_OK)
        status = buffer_init(device, MEMORY_STAGING, output_bytes, "native kernel's output",
                             &rig.output, error);
    if (status == STATUS_OK) {
        memset(rig.output.mapped, 0xff, output_bytes);
        fill(&problem, rig.input.mapped, rig.input.address, rig.output.address);
        status = rig_run(&problem, &rig, device, transfer, error);
    }
    double wrong = status == STATUS_OK ? largest_error(&problem, rig.output.mapped) : 0;
    if (status == STATUS_OK && !(wrong <= bound))
        status = error_set(error, STATUS_UNSUPPORTED, "%s is wrong by %g in its self-test",
                           code->name, wrong);
    if (status == STATUS_DEVICE_LOST) // the GPU may still use them
        return status;
    buffer_finish(device, &rig.input);
    buffer_finish(device, &rig.output);
    return status;
}

enum status hopper_try(struct device *device, struct transfer *transfer, uint32_t number,
                       struct native *native, struct error *error)
{
    enum status status = native_load(device, hopper_code_at(number), native, error);
    if (status != STATUS_OK)
        return status;
    status = test(device, transfer, number, native, error);
    if (status == STATUS_DEVICE_LOST)
        *native = (struct native){0}; // the GPU may still run it
    else if (status != STATUS_OK)
        native_unload(device, native);
    return status;
}
