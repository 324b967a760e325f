// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_rows.glsl - softmax of a row: from scores to weights, and from sums to the output.
// Scores are in units of log2, so 2^s replaces e^s. Formula: tests/oracle/oracle.h. All attention
// kernels use it, so a row has the same meaning in each. Knows no layout of K and V.

#ifndef AULE_ATTENTION_ROWS_GLSL
#define AULE_ATTENTION_ROWS_GLSL

#include "attention_work.glsl"

#include "numbers.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Word { uint bits; };

const bool SHAPED = SOFT_CAP || ALIBI || MASK; // scores are changed before they are weighed
const uint UNSEEN_SCORE = 0xff800000u;         // -infinity, in SHAPED pipelines
// MASK: stands for a score of -infinity of a key that the row sees.
const float LEAST_SCORE = -2.75e38;

// The row whose scores a thread works on.
struct Row {
    uvec2 range;       // keys that it sees; see row_range()
    int position;
    int nearest;       // least distance from the position to a key in range; usually 0
    float slope_log2e;
    float cap_log2e;
    uint64_t mask_bit; // of key 0, counted from the first mask of the batch
};

// ALiBi counts distances from the nearest key: far from all keys the bias is large, and only
// differences matter. It is the nearest of all the row's keys, so that all parts of the row count
// from the same key.
Row row_begin(uint row)
{
    Row self = Row(row_range(row), 0, 0, 0.0, 0.0, uint64_t(0));
    if (row >= num_rows)
        return self;
    if (SOFT_CAP)
        self.cap_log2e = run.soft_cap * LOG2_E;
    if (ALIBI) {
        self.position = row_position(row);
        if (self.range.x < self.range.y)
            self.nearest = max(
                max(int(self.range.x) - self.position, self.position - int(self.range.y - 1)), 0);
        self.slope_log2e = Floats(run.slopes).at[row_head(row)] * LOG2_E;
    }
    if (MASK)
        self.mask_bit = Addresses(run.mask_starts).at[seq] * 8 + uint64_t(row_query(row)) * kv_len;
    return self;
}

bool mask_seen(Row self, uint key)
{
    const uint64_t bit = self.mask_bit + key;
    return (Word(run.mask + (bit >> 5) * 4).bits >> (uint(bit) & 31u) & 1u) != 0;
}

// tanh to about 2.5e-7 of its value, also for small arguments, by the polynomial of Cephes' tanhf.
// It is `precise`, like everything that shapes a score. A compiler may fuse a product and a sum in
// one pipeline and not in another, and the row's bits must not change.
float tanh_exact(float x)
{
    precise const float z = x * x;
    float series = fma(z, -5.70498872745e-3, 2.06390887954e-2);
    series = fma(z, series, -5.37397155531e-2);
    series = fma(z, series, 1.33314422036e-1);
    series = fma(z, series, -3.33332819422e-1);
    const float power = exp2(-2 * LOG2_E * abs(x));
    precise const float small = fma(x * z, series, x), large = 1 - 2 * power / (1 + power);
    return abs(x) < 0.625 ? small : x < 0 ? -large : large;
}

// From scale * q . k to the final score; both times log2(e).
float score_shape(Row self, float score, uint key)
{
    precise float shaped = score;
    if (SOFT_CAP)
        shaped = self.cap_log2e * tanh_exact(score / self.cap_log2e);
    if (ALIBI)
        shaped =
            fma(-self.slope_log2e, float(abs(self.position - int(key)) - self.nearest), shaped);
    return shaped;
}

bool key_between(uint key, uvec2 range)
{
    return (!WINDOW || key >= range.x) && key < range.y;
}

// The row's true maximum, from one that counts ALiBi from the nearest key.
float true_maximum(Row self, float maximum)
{
    return fma(-self.slope_log2e, float(self.nearest), maximum);
}

// Whether a sum of weights is one of no weights. Compares bits, since a compiler may assume that
// there is no NaN, and then takes NaN for 0.
bool weights_none(float sum)
{
    return (floatBitsToUint(sum) & 0x7fffffffu) == 0;
}

// A row without weights either sees no key, or all its scores are -infinity. Then the weights are
// 0 / 0. So they are if a score is NaN or +infinity.
bool row_undefined(uint row, float sum, float maximum)
{
    if ((floatBitsToUint(sum) & 0x7fffffffu) > 0x7f800000u)
        return true;
    if (MASK)
        return !weights_none(sum) && maximum <= LEAST_SCORE;
    if (!weights_none(sum))
        return false;
    const uvec2 range = row_range(row);
    return range.x < range.y;
}

// Returns the factor of a row's sums of weighted values, and its LSE. `maximum` is the true one. A
// sink joins the sum of weights like a key without a value. A row that sees nothing and has no sink
// gives zeros and -infinity, and so does a row that is no query. A row whose weights are undefined
// gives NaN and NaN.
vec2 row_end(uint row, float sum, float maximum)
{
    float keep = 1;
    if (SINKS && row_query(row) < q_len) {
        const float sink = Floats(run.sinks).at[row_head(row)] * LOG2_E,
                    larger = max(maximum, sink);
        keep = exp2(maximum - larger);
        sum = fma(sum, keep, sink > NO_MAXIMUM ? exp2(sink - larger) : 0.0);
        maximum = larger;
    }
    if (row_undefined(row, sum, maximum))
        return vec2(uintBitsToFloat(0x7fc00000u));
    if (weights_none(sum))
        return vec2(0, uintBitsToFloat(0xff800000u));
    if (V_FACTOR)
        keep *= V_IN_K != 0 ? run.k_scale : run.v_scale;
    return vec2(keep / sum, LSE ? (maximum + log2(sum)) * run.lse_unit : 0.0);
}

// The sums of a row with the sum of weights `weights`. Without weights they may be NaN on tensor
// cores: other rows of the tile may see a value that is not finite, and 0 times it is NaN.
vec4 sums_weighed(vec4 sums, float weights)
{
    return weights_none(weights) ? vec4(0) : sums;
}

// Weights that are rounded to f16 do not add up to exactly the sum of weights. So a mean of values
// near f16's largest number may exceed it, and would become infinite. `bits` are floats.
const bool BOUNDED = IO_DTYPE == DTYPE_F16 && V_DTYPE != DTYPE_F32 && V_DTYPE != DTYPE_BF16;
const uint MOST_HALF = 0x477fe000u;       // 65504
const uint BEYOND_ROUNDING = 0x47804000u; // 65664

uvec4 mean_bounded(uvec4 bits)
{
    const uvec4 above = (bits & 0x7fffffffu) - (MOST_HALF + 1);
    return BOUNDED ? mix(bits, bits & 0x80000000u | MOST_HALF,
                         lessThan(above, uvec4(BEYOND_ROUNDING - MOST_HALF - 1)))
                   : bits;
}

// Makes -0 a +0. The sign of a zero may depend on how many tiles were walked.
uvec4 plus_zero(vec4 value)
{
    const uvec4 bits = floatBitsToUint(value);
    return mix(bits, uvec4(0), equal(bits, uvec4(0x80000000u)));
}

#endif
