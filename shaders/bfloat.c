// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// bfloat.c - a build step that changes the 16-bit type of a SPIR-V module from f16 to bf16. So
// compilers that do not know bf16 can make such modules. This is right for shaders that only move
// such numbers as bits, convert them from and to f32, and multiply matrices of them. It refuses all
// others. Usage: bfloat MODULE RESULT.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// SPIR-V's numbers for what is read, and SPV_KHR_bfloat16's for what is written.
enum {
    MAGIC = 0x07230203,
    HEADER_WORDS = 5,
    BOUND = 3, // word of the header: all ids are less
    OP_NAME = 5,
    OP_MEMBER_NAME = 6,
    OP_EXTENSION = 10,
    OP_CAPABILITY = 17,
    OP_TYPE_FLOAT = 22,
    OP_TYPE_VECTOR = 23,
    OP_TYPE_FIRST = 19,
    OP_TYPE_LAST = 39,
    OP_CONSTANT = 43,
    OP_DECORATE = 71,
    OP_TYPE_MATRIX = 4456, // cooperative
    CAPABILITY_FLOAT16 = 9,
    CAPABILITY_BFLOAT16 = 5116,
    CAPABILITY_BFLOAT16_MATRIX = 5118,
    ENCODING_BFLOAT16 = 0,
};
static const char extension[] = "SPV_KHR_bfloat16";

// Instructions that may make a 16-bit number, or a pair or matrix of them.
static const uint16_t movers[] = {
    1 /* OpUndef */,
    44 /* ConstantComposite */,
    46 /* ConstantNull */,
    54 /* Function */,
    55 /* FunctionParameter */,
    57 /* FunctionCall */,
    61 /* Load */,
    77 /* VectorExtract */,
    78 /* VectorInsert */,
    79 /* VectorShuffle */,
    80 /* CompositeConstruct */,
    81 /* CompositeExtract */,
    82 /* CompositeInsert */,
    83 /* CopyObject */,
    115 /* FConvert */,
    124 /* Bitcast */,
    169 /* Select */,
    245 /* Phi */,
    400 /* CopyLogical */,
    4457 /* MatrixLoad */,
    4459 /* MatrixMulAdd */,
    OP_CONSTANT /* of 0 */,
};

struct module {
    const char *path;
    uint32_t *words;
    size_t count;
};

static void fail(const char *path, const char *why)
{
    fprintf(stderr, "bfloat: %s: %s\n", path, why);
    exit(EXIT_FAILURE);
}

static struct module module_read(const char *path)
{
    struct module module = {.path = path};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        fail(path, "cannot be read");
    long size = ftell(file);
    rewind(file);
    module.count = size > 0 ? (size_t)size / sizeof *module.words : 0;
    module.words = malloc((module.count + 1) * sizeof *module.words);
    if (!module.words ||
        fread(module.words, sizeof *module.words, module.count, file) != module.count)
        fail(path, "cannot be read");
    fclose(file);
    if (module.count < HEADER_WORDS || module.words[0] != MAGIC)
        fail(path, "is no SPIR-V module");
    return module;
}

static void put(struct module *out, uint32_t word)
{
    out->words[out->count++] = word;
}

static void put_extension(struct module *out)
{
    put(out, 2u << 16 | OP_CAPABILITY);
    put(out, CAPABILITY_BFLOAT16);
    put(out, 2u << 16 | OP_CAPABILITY);
    put(out, CAPABILITY_BFLOAT16_MATRIX);
    uint32_t length = sizeof extension / sizeof(uint32_t) + 1; // its words are filled up with zeros
    put(out, (length + 1) << 16 | OP_EXTENSION);
    memset(out->words + out->count, 0, length * sizeof(uint32_t));
    memcpy(out->words + out->count, extension, sizeof extension);
    out->count += length;
}

static bool is_type(uint32_t op)
{
    return (op >= OP_TYPE_FIRST && op <= OP_TYPE_LAST) || op == OP_TYPE_MATRIX;
}

// Whether the instruction may make its result. `ours[id]`: the id is a 16-bit type, or a vector or
// matrix of it.
static bool is_allowed(const uint32_t *words, uint32_t op, uint32_t length, uint32_t bound,
                       const bool *ours)
{
    if (length < 3 || is_type(op) || op == OP_NAME || op == OP_MEMBER_NAME || op == OP_DECORATE)
        return true;
    if (words[1] >= bound || !ours[words[1]])
        return true;
    if (op == OP_CONSTANT && words[3] != 0)
        return false;
    for (size_t i = 0; i < sizeof movers / sizeof *movers; i++)
        if (movers[i] == op)
            return true;
    return false;
}

// Writes one instruction, changed if need be.
static void put_instruction(struct module *out, const uint32_t *words, uint32_t length, bool *ours)
{
    uint32_t op = words[0] & 0xffffu;
    if (op == OP_CAPABILITY && words[1] == CAPABILITY_FLOAT16)
        return;
    if (op == OP_TYPE_FLOAT && words[2] == 16) {
        ours[words[1]] = true;
        put(out, 4u << 16 | OP_TYPE_FLOAT);
        put(out, words[1]);
        put(out, words[2]);
        put(out, ENCODING_BFLOAT16);
        return;
    }
    if (op == OP_TYPE_VECTOR || op == OP_TYPE_MATRIX)
        ours[words[1]] = ours[words[2]];
    for (uint32_t i = 0; i < length; i++)
        put(out, words[i]);
}

static struct module module_convert(const struct module *in)
{
    uint32_t bound = in->words[BOUND];
    struct module out = {.path = in->path, .words = malloc((in->count + 32) * sizeof *out.words)};
    bool *ours = calloc(bound, sizeof *ours);
    if (!out.words || !ours)
        fail(in->path, "there is no memory for it");
    memcpy(out.words, in->words, HEADER_WORDS * sizeof *out.words);
    out.count = HEADER_WORDS;
    bool extended = false, found = false;
    for (size_t at = HEADER_WORDS; at < in->count;) {
        const uint32_t *words = in->words + at;
        uint32_t op = words[0] & 0xffffu, length = words[0] >> 16;
        if (length == 0 || length > in->count - at)
            fail(in->path, "has an instruction that does not end");
        if (!is_allowed(words, op, length, bound, ours)) {
            fprintf(stderr, "bfloat: instruction %u at word %zu makes a number of 16 bits\n", op,
                    at);
            fail(in->path, "counts with numbers of 16 bits, which would be others as bf16");
        }
        if (op != OP_CAPABILITY && !extended) { // capabilities stand first, extensions behind them
            put_extension(&out);
            extended = true;
        }
        found = found || (op == OP_TYPE_FLOAT && words[2] == 16);
        put_instruction(&out, words, length, ours);
        at += length;
    }
    if (!found)
        fail(in->path, "has no numbers of 16 bits");
    free(ours);
    return out;
}

static void write_module(const struct module *module, const char *path)
{
    FILE *file = fopen(path, "wb");
    bool written =
        file && fwrite(module->words, sizeof *module->words, module->count, file) == module->count;
    if (!file || fclose(file) != 0 || !written)
        fail(path, "cannot be written");
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: bfloat MODULE RESULT\n");
        return EXIT_FAILURE;
    }
    struct module in = module_read(argv[1]), out = module_convert(&in);
    write_module(&out, argv[2]);
    free(in.words);
    free(out.words);
    return EXIT_SUCCESS;
}
