// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix.glsl - products of small matrices by a warp of 32 lanes: C[16, 8] += A[16, 16] B[16, 8],
// f16 with f32 sums. Each lane writes its own elements. The assignment of elements to lanes is that
// of NVIDIA's driver for KHR cooperative matrices; the engine checks it first (matrix_probe.comp).
// With MATRIX_EMULATED the same is done in shared memory on any device, for tests. Knows nothing of
// attention.
//
// With MATRIX_BF16 elements are bf16; MATRIX_DTYPE names the type. float16_t then stands for bf16,
// because the build changes the module (bfloat.c). So code may move such elements as words, but
// must not compute with them or read their bits.
//
// Lane = 4 g + t. A word has a pair of elements, the lower index in the lower half:
//
//        x                  y                    z                    w
//   A    row g,             row g,               row g + 8,           row g + 8,
//        columns 2t, 2t+1   columns 2t+8, 2t+9   columns 2t, 2t+1     columns 2t+8, 2t+9
//   B    rows 2t, 2t+1,     rows 2t+8, 2t+9,
//        column g           column g
//   C    row g, column 2t   row g, column 2t+1   row g+8, column 2t   row g+8, column 2t+1
//
// matrix_a_turned() takes A by columns: x, y, z, w have columns 2t, 2t+1, 2t+8, 2t+9. Row g is in
// the lower half, row g+8 in the upper.
//
// With MATRIX_EMULATED all operations of a warp contain barriers. So all warps of the workgroup
// must make the same calls in the same order. No call may be in a branch that only some warps take.

#ifndef AULE_MATRIX_GLSL
#define AULE_MATRIX_GLSL

#include "geometry.glsl" // gl_WorkGroupSize is valid only after its declaration

const uint WARP = 32;

#ifdef MATRIX_BF16
#define MATRIX_DTYPE DTYPE_BF16
#else
#define MATRIX_DTYPE DTYPE_F16
#endif

#ifdef MATRIX_EMULATED

const bool EMULATED = true;
shared uint matrix_words[gl_WorkGroupSize.x * 6];

struct MatrixA { uvec4 words; };
struct MatrixB { uvec2 words; };
struct MatrixC { vec4 elements; };

// Two words' lower halves as one word; halves_high(): their upper halves.
uint halves_low(uint a, uint b) { return a & 0xffffu | b << 16; }
uint halves_high(uint a, uint b) { return a >> 16 | b & 0xffff0000u; }

uint warp_number() { return gl_LocalInvocationID.x / WARP; }
uint warp_lane() { return gl_LocalInvocationID.x % WARP; }
MatrixA matrix_a(uvec4 words) { return MatrixA(words); }

MatrixA matrix_a_turned(uvec4 columns)
{
    return MatrixA(uvec4(halves_low(columns.x, columns.y), halves_low(columns.z, columns.w),
                         halves_high(columns.x, columns.y), halves_high(columns.z, columns.w)));
}

MatrixB matrix_b(uvec2 words) { return MatrixB(words); }
MatrixC matrix_c(vec4 elements) { return MatrixC(elements); }
vec4 matrix_elements(MatrixC c) { return c.elements; }
void matrix_scale(inout MatrixC c, vec4 factors) { c.elements *= factors; }
void matrix_add(inout MatrixC c, vec4 terms) { c.elements += terms; }

vec2 matrix_pair(uint word)
{
#ifdef MATRIX_BF16
    return uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u));
#else
    return unpackHalf2x16(word);
#endif
}

MatrixC matrix_multiply(MatrixA a, MatrixB b, MatrixC c)
{
    const uint first = warp_number() * WARP * 6, mine = first + warp_lane() * 6;
    barrier();
    for (uint i = 0; i < 4; i++)
        matrix_words[mine + i] = a.words[i];
    for (uint i = 0; i < 2; i++)
        matrix_words[mine + 4 + i] = b.words[i];
    barrier();
    const uint row = warp_lane() / 4, column = warp_lane() % 4 * 2;
    vec4 sums = c.elements;
    uint k = 0;
    // lavapipe turns each load into several branches, and ends a shader's loops after 65,535 rounds
    // in all.
    [[dont_unroll]] do {
        const uint of_a = first + (row * 4 + k % 8 / 2) * 6 + k / 8;
        const uint of_b = first + (column * 4 + k % 8 / 2) * 6 + 4 + k / 8;
        const vec2 upper = matrix_pair(matrix_words[of_a]),
                   lower = matrix_pair(matrix_words[of_a + 2]);
        const vec2 left = matrix_pair(matrix_words[of_b]),
                   right = matrix_pair(matrix_words[of_b + 4 * 6]);
        sums = fma(vec4(upper.xx, lower.xx), vec4(left.x, right.x, left.x, right.x), sums);
        sums = fma(vec4(upper.yy, lower.yy), vec4(left.y, right.y, left.y, right.y), sums);
        k += 2;
    } while (k < 16);
    c.elements = sums;
    return c;
}

// The `word` of lane `lane` in this warp.
uint warp_shuffle(uint word, uint lane)
{
    barrier();
    matrix_words[gl_LocalInvocationID.x] = word;
    barrier();
    return matrix_words[warp_number() * WARP + lane];
}

// Makes what the warp's lanes wrote to shared memory visible to all of them.
void warp_wait()
{
    barrier();
}

// A vote only saves work, but a branch on it would not be uniform in the workgroup. So all vote yes
// here.
bool warp_any(bool value) { return true; }

uint warp_first(uint value) { return value; }

bool matrix_sizes_fit() { return true; }

#else

#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

const bool EMULATED = false;

#define MatrixA coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>

uint warp_number() { return gl_SubgroupID; }
uint warp_lane() { return gl_SubgroupInvocationID; }

// A from the halves of its words.
MatrixA matrix_a_halves(f16vec2 x, f16vec2 y, f16vec2 z, f16vec2 w)
{
    MatrixA a;
    a[0] = x.x;
    a[1] = x.y;
    a[2] = y.x;
    a[3] = y.y;
    a[4] = z.x;
    a[5] = z.y;
    a[6] = w.x;
    a[7] = w.y;
    return a;
}

MatrixA matrix_a(uvec4 words)
{
    return matrix_a_halves(unpackFloat2x16(words.x), unpackFloat2x16(words.y),
                           unpackFloat2x16(words.z), unpackFloat2x16(words.w));
}

MatrixA matrix_a_turned(uvec4 columns)
{
    const f16vec2 x = unpackFloat2x16(columns.x), y = unpackFloat2x16(columns.y);
    const f16vec2 z = unpackFloat2x16(columns.z), w = unpackFloat2x16(columns.w);
    return matrix_a_halves(f16vec2(x.x, y.x), f16vec2(z.x, w.x), f16vec2(x.y, y.y),
                           f16vec2(z.y, w.y));
}

#ifdef MATRIX_BF16

// bf16 has products of 16x16x16 only. B and C are the left or the right half of a wide matrix,
// which exists only inside a product.
struct MatrixB { uvec2 words; };
struct MatrixC { vec4 elements; };
#define MatrixWideB coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MatrixWideC coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

MatrixB matrix_b(uvec2 words) { return MatrixB(words); }
MatrixC matrix_c(vec4 elements) { return MatrixC(elements); }
vec4 matrix_elements(MatrixC c) { return c.elements; }
void matrix_scale(inout MatrixC c, vec4 factors) { c.elements *= factors; }

MatrixWideB matrix_wide_b(uvec2 left, uvec2 right)
{
    const f16vec2 x = unpackFloat2x16(left.x), y = unpackFloat2x16(left.y);
    const f16vec2 z = unpackFloat2x16(right.x), w = unpackFloat2x16(right.y);
    MatrixWideB b;
    b[0] = x.x;
    b[1] = x.y;
    b[2] = y.x;
    b[3] = y.y;
    b[4] = z.x;
    b[5] = z.y;
    b[6] = w.x;
    b[7] = w.y;
    return b;
}

// Makes one wide product of two products with the same A.
void matrix_multiply_two(MatrixA a, MatrixB b, MatrixB right_b, inout MatrixC c,
                         inout MatrixC right_c)
{
    MatrixWideC sums;
    sums[0] = c.elements.x;
    sums[1] = c.elements.y;
    sums[2] = right_c.elements.x;
    sums[3] = right_c.elements.y;
    sums[4] = c.elements.z;
    sums[5] = c.elements.w;
    sums[6] = right_c.elements.z;
    sums[7] = right_c.elements.w;
    sums = coopMatMulAdd(a, matrix_wide_b(b.words, right_b.words), sums);
    c.elements = vec4(sums[0], sums[1], sums[4], sums[5]);
    right_c.elements = vec4(sums[2], sums[3], sums[6], sums[7]);
}

// The right half's sums are not used, so the compiler may leave them out.
MatrixC matrix_multiply(MatrixA a, MatrixB b, MatrixC c)
{
    MatrixC none = MatrixC(vec4(0));
    matrix_multiply_two(a, b, MatrixB(uvec2(0)), c, none);
    return c;
}

bool matrix_sizes_fit()
{
    MatrixA a;
    MatrixWideB b;
    MatrixWideC c;
    return a.length() == 8 && b.length() == 8 && c.length() == 8;
}

#else

#define MatrixB coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define MatrixC coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

MatrixB matrix_b(uvec2 words)
{
    const f16vec2 x = unpackFloat2x16(words.x), y = unpackFloat2x16(words.y);
    MatrixB b;
    b[0] = x.x;
    b[1] = x.y;
    b[2] = y.x;
    b[3] = y.y;
    return b;
}

MatrixC matrix_c(vec4 elements)
{
    MatrixC c;
    c[0] = elements.x;
    c[1] = elements.y;
    c[2] = elements.z;
    c[3] = elements.w;
    return c;
}

vec4 matrix_elements(MatrixC c) { return vec4(c[0], c[1], c[2], c[3]); }

void matrix_scale(inout MatrixC c, vec4 factors)
{
    c[0] *= factors.x;
    c[1] *= factors.y;
    c[2] *= factors.z;
    c[3] *= factors.w;
}

void matrix_add(inout MatrixC c, vec4 terms)
{
    c[0] += terms.x;
    c[1] += terms.y;
    c[2] += terms.z;
    c[3] += terms.w;
}

MatrixC matrix_multiply(MatrixA a, MatrixB b, MatrixC c) { return coopMatMulAdd(a, b, c); }

// Whether a lane has as many elements as are written; another driver may give it fewer.
bool matrix_sizes_fit()
{
    MatrixA a;
    MatrixB b;
    MatrixC c;
    return a.length() == 8 && b.length() == 4 && c.length() == 4;
}

#endif

// Named halves take one instruction; shifts and masks take two.
uint halves_low(uint a, uint b)
{
    return packFloat2x16(f16vec2(unpackFloat2x16(a).x, unpackFloat2x16(b).x));
}

uint halves_high(uint a, uint b)
{
    return packFloat2x16(f16vec2(unpackFloat2x16(a).y, unpackFloat2x16(b).y));
}

uint warp_shuffle(uint word, uint lane) { return subgroupShuffle(word, lane); }
bool warp_any(bool value) { return subgroupAny(value); }

// Tells the compiler that all lanes have the same value. Else it keeps a loop's state twice, for
// lanes that might leave early.
uint warp_first(uint value) { return subgroupBroadcastFirst(value); }

void warp_wait() { subgroupMemoryBarrierShared(); subgroupBarrier(); }

#endif

#if defined(MATRIX_EMULATED) || !defined(MATRIX_BF16)

// Two products with the same A. A macro, so that no sum is copied.
#define matrix_multiply_two(A, B, RIGHT_B, C, RIGHT_C)                                             \
    {                                                                                              \
        C = matrix_multiply(A, B, C);                                                              \
        RIGHT_C = matrix_multiply(A, RIGHT_B, RIGHT_C);                                            \
    }

#endif

// A pair is two matrices C side by side, whose products have the same A. MATRIX_PAIRS declares an
// array of pairs. If there are only matrices of 16x16, a pair stays one matrix: splitting it for
// each product would cost registers. Macros, so that no sum is copied; the includer defines
// UNROLLED. N counts matrices, I counts pairs.
#if defined(MATRIX_BF16) && !defined(MATRIX_EMULATED)

#define MATRIX_PAIRS(PAIRS, COUNT) MatrixWideC PAIRS[COUNT]
#define pair_clear(PAIRS, I)       PAIRS[I] = MatrixWideC(0.0)
#define pair_multiply(PAIRS, I, A, LEFT_B, RIGHT_B)                                                \
    PAIRS[I] = coopMatMulAdd(A, matrix_wide_b(LEFT_B, RIGHT_B), PAIRS[I])
#define pair_scale(PAIRS, I, UPPER, LOWER)                                                         \
    {                                                                                              \
        UNROLLED for (uint element = 0; element < 4; element++)                                    \
            PAIRS[I][element] *= UPPER;                                                            \
        UNROLLED for (uint element = 4; element < 8; element++)                                    \
            PAIRS[I][element] *= LOWER;                                                            \
    }
#define pair_add(PAIRS, I, LEFT, RIGHT)                                                            \
    {                                                                                              \
        PAIRS[I][0] += LEFT.x;                                                                     \
        PAIRS[I][1] += LEFT.y;                                                                     \
        PAIRS[I][2] += RIGHT.x;                                                                    \
        PAIRS[I][3] += RIGHT.y;                                                                    \
        PAIRS[I][4] += LEFT.z;                                                                     \
        PAIRS[I][5] += LEFT.w;                                                                     \
        PAIRS[I][6] += RIGHT.z;                                                                    \
        PAIRS[I][7] += RIGHT.w;                                                                    \
    }
#define pair_elements(PAIRS, N)                                                                    \
    vec4(PAIRS[(N) / 2][(N) % 2 * 2], PAIRS[(N) / 2][(N) % 2 * 2 + 1],                             \
         PAIRS[(N) / 2][(N) % 2 * 2 + 4], PAIRS[(N) / 2][(N) % 2 * 2 + 5])

#else

#define MATRIX_PAIRS(PAIRS, COUNT) MatrixC PAIRS[(COUNT) * 2]
#define pair_clear(PAIRS, I)                                                                       \
    {                                                                                              \
        PAIRS[(I) * 2] = matrix_c(vec4(0));                                                        \
        PAIRS[(I) * 2 + 1] = matrix_c(vec4(0));                                                    \
    }
#define pair_multiply(PAIRS, I, A, LEFT_B, RIGHT_B)                                                \
    {                                                                                              \
        PAIRS[(I) * 2] = matrix_multiply(A, matrix_b(LEFT_B), PAIRS[(I) * 2]);                     \
        PAIRS[(I) * 2 + 1] = matrix_multiply(A, matrix_b(RIGHT_B), PAIRS[(I) * 2 + 1]);            \
    }
#define pair_scale(PAIRS, I, UPPER, LOWER)                                                         \
    {                                                                                              \
        matrix_scale(PAIRS[(I) * 2], vec4(UPPER, UPPER, LOWER, LOWER));                            \
        matrix_scale(PAIRS[(I) * 2 + 1], vec4(UPPER, UPPER, LOWER, LOWER));                        \
    }
#define pair_add(PAIRS, I, LEFT, RIGHT)                                                            \
    {                                                                                              \
        matrix_add(PAIRS[(I) * 2], LEFT);                                                          \
        matrix_add(PAIRS[(I) * 2 + 1], RIGHT);                                                     \
    }
#define pair_elements(PAIRS, N) matrix_elements(PAIRS[N])

#endif

// The words of A from those of its columns, as for matrix_a_turned().
uvec4 matrix_words_turned(uvec4 columns)
{
    return uvec4(halves_low(columns.x, columns.y), halves_low(columns.z, columns.w),
                 halves_high(columns.x, columns.y), halves_high(columns.z, columns.w));
}

float warp_xor(float value, uint mask)
{
    return uintBitsToFloat(warp_shuffle(floatBitsToUint(value), warp_lane() ^ mask));
}

#endif
