// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hopper_test.c - runs a native kernel once on a small problem, in a submission of its own, and
// compares the result with float64. The problem has each kind of tile: masked, late and exact. The
// thread that opens the device.

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
    DIM = HOPPER_DIM,
    BLOCK = 32,
    BLOCKS = (KEYS + BLOCK - 1) / BLOCK,
    ITEMS = (QUERIES * GROUP + HOPPER_ROWS - 1) / HOPPER_ROWS,
};
#define TIME_LIMIT_NS UINT64_C(10000000000)
static const double scale = 0.0625;

// What the GPU reads.
struct input {
    struct gpu_run run;
    struct gpu_item items[ITEMS];
    uint64_t chunk;
    uint32_t table[BLOCKS];
    uint16_t q[QUERIES][HEADS][DIM] __attribute__((aligned(16)));
    uint16_t pool[BLOCKS][2][KV_HEADS][BLOCK][DIM] __attribute__((aligned(256)));
    char extras[2048] __attribute__((aligned(128)));
};

struct output {
    uint16_t out[QUERIES][HEADS][DIM];
};

// Whole numbers: exact in both types.
static int q_at(int query, int head, int dim)
{
    return (query * 7 + head * 5 + dim * dim * 3 + dim * query) % 7 - 3;
}

static int k_at(int key, int head, int dim)
{
    return (key * 11 + head * 3 + dim * 5 + key * dim % 13) % 7 - 3;
}

static int v_at(int key, int head, int dim)
{
    return (key * 5 + head + dim * 7 + key * dim % 11) % 17 - 8;
}

static void fill_pool(struct input *input, enum dtype dtype)
{
    for (int key = 0; key < BLOCKS * BLOCK; key++)
        for (int head = 0; head < KV_HEADS; head++)
            for (int dim = 0; dim < DIM; dim++) {
                // Blocks in reverse order; NaN behind the last key.
                int block = BLOCKS - 1 - key / BLOCK, row = key % BLOCK;
                uint16_t *k = &input->pool[block][0][head][row][dim];
                uint16_t *v = &input->pool[block][1][head][row][dim];
                *k = key < KEYS ? (uint16_t)matrix_element(k_at(key, head, dim), dtype) : 0x7fff;
                *v = key < KEYS ? (uint16_t)matrix_element(v_at(key, head, dim), dtype) : 0x7fff;
            }
}

static void fill(struct input *input, uint64_t address, uint64_t out, enum dtype dtype)
{
#define ADDRESS_OF(FIELD) (address + offsetof(struct input, FIELD))
    input->run = (struct gpu_run){
        .q = ADDRESS_OF(q),
        .out = out,
        .chunks = ADDRESS_OF(chunk),
        .block_table = ADDRESS_OF(table),
        .items = ADDRESS_OF(items),
        .q_token_stride = HEADS * DIM * 2 / 16,
        .q_head_stride = DIM * 2 / 16,
        .out_token_stride = HEADS * DIM * 2 / 16,
        .out_head_stride = DIM * 2 / 16,
        .num_heads = HEADS,
        .max_blocks = BLOCKS,
        .chunk_stride = 1,
        .chunk_shift = 10,
        .causal = 1,
        .scale_log2e = (float)(scale * 1.4426950408889634),
    };
    for (uint32_t i = 0; i < ITEMS; i++)
        input->items[i] = (struct gpu_item){
            .tile = {.first_row = i * HOPPER_ROWS,
                     .num_tokens = QUERIES,
                     .q_len = QUERIES,
                     .kv_len = KEYS},
            .end_key = KEYS,
            .partial = AULE_NO_PARTIAL,
            .which_half = AULE_BOTH_HALVES,
        };
    input->chunk = ADDRESS_OF(pool);
    for (uint32_t i = 0; i < BLOCKS; i++)
        input->table[i] = BLOCKS - 1 - i;
    for (int query = 0; query < QUERIES; query++)
        for (int head = 0; head < HEADS; head++)
            for (int dim = 0; dim < DIM; dim++)
                input->q[query][head][dim] =
                    (uint16_t)matrix_element(q_at(query, head, dim), dtype);
    fill_pool(input, dtype);
    hopper_put(input->extras);
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

// The result of one row in float64.
static void attend(int query, int head, double out[DIM])
{
    int end = KEYS - QUERIES + query + 1;
    double scores[KEYS], most = -INFINITY, sum = 0;
    for (int key = 0; key < end; key++) {
        int product = 0;
        for (int dim = 0; dim < DIM; dim++)
            product += q_at(query, head, dim) * k_at(key, head / GROUP, dim);
        scores[key] = scale * product;
        most = fmax(most, scores[key]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (int key = 0; key < end; key++) {
        double weight = exp(scores[key] - most);
        sum += weight;
        for (int dim = 0; dim < DIM; dim++)
            out[dim] += weight * v_at(key, head / GROUP, dim);
    }
    for (int dim = 0; dim < DIM; dim++)
        out[dim] /= sum;
}

// The largest difference; NaN if there is one. V is at most 8.
static double largest_error(const struct output *output, enum dtype dtype)
{
    double largest = 0;
    for (int query = 0; query < QUERIES; query += 3)
        for (int head = 0; head < HEADS; head++) {
            double expected[DIM];
            attend(query, head, expected);
            for (int dim = 0; dim < DIM; dim++) {
                double error =
                    fabs(number_of(output->out[query][head][dim], dtype) - expected[dim]);
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

static enum status rig_run(struct rig *rig, struct device *device, struct transfer *transfer,
                           struct error *error)
{
    uint32_t spec[SPEC_CONSTANTS] = {
        [AULE_SPEC_NUM_KV_HEADS] = KV_HEADS, [AULE_SPEC_BLOCK_SIZE] = BLOCK};
    const struct gpu_dispatch constants = {
        .runs = rig->input.address + offsetof(struct input, run),
        .num_runs = 1,
        .num_items = ITEMS,
        .items = rig->input.address + offsetof(struct input, items),
    };
    const struct hopper_launch launch = {
        .constants = &constants,
        .spec = spec,
        .extras = rig->input.address + offsetof(struct input, extras),
        .most_blocks = ITEMS * KV_HEADS,
    };
    uint64_t watchdog_ns = device->watchdog_ns;
    enum status status = transfer_begin(transfer, error);
    if (status != STATUS_OK)
        return status;
    hopper_record(device, transfer->commands, &rig->native, &launch);
    device->watchdog_ns = TIME_LIMIT_NS < watchdog_ns ? TIME_LIMIT_NS : watchdog_ns;
    status = transfer_end(transfer, error);
    device->watchdog_ns = watchdog_ns;
    return status;
}

enum status hopper_test(struct device *device, struct transfer *transfer,
                        const struct native_code *code, enum dtype dtype, struct error *error)
{
    const double bound = dtype == DTYPE_F16 ? 0.02 : 0.15; // some roundings of numbers up to 8
    struct rig rig = {.native = {0}};
    enum status status = native_load(device, code, &rig.native, error);
    if (status == STATUS_OK)
        status = buffer_init(device, MEMORY_METADATA, sizeof(struct input), "native kernel's input",
                             &rig.input, error);
    if (status == STATUS_OK)
        status = buffer_init(device, MEMORY_STAGING, sizeof(struct output),
                             "native kernel's output", &rig.output, error);
    if (status == STATUS_OK) {
        memset(rig.output.mapped, 0xff, sizeof(struct output));
        fill(rig.input.mapped, rig.input.address, rig.output.address, dtype);
        status = rig_run(&rig, device, transfer, error);
    }
    double wrong = status == STATUS_OK ? largest_error(rig.output.mapped, dtype) : 0;
    if (status == STATUS_OK && !(wrong <= bound))
        status = error_set(error, STATUS_UNSUPPORTED, "%s is wrong by %g in its self-test",
                           code->name, wrong);
    if (status == STATUS_DEVICE_LOST) // the GPU may still use them
        return status;
    native_unload(device, &rig.native);
    buffer_finish(device, &rig.input);
    buffer_finish(device, &rig.output);
    return status;
}
