// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// merge - one workgroup merges one head of one token of a caller's partial results, in the order of
// the parts. With l_n the LSE of part n to base 2, and m the largest of them:
//
//   out = sum 2^(l_n - m) out_n / sum 2^(l_n - m)
//   lse = m + log2(sum 2^(l_n - m))
//
// An LSE in memory is in the unit merge.lse_unit: times ln(2) if it is a natural logarithm.
//
// A part whose LSE is -infinity is left out by selection, whatever its out holds. If all parts are,
// out is +0 and lse -infinity. `out` and `lse` may be those of a part: all lanes read an element
// before one of them writes its place.
//
// Grid: x = head, token number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. Bindings: none;
// everything is reached by address. Push constants: struct gpu_merging. Specialisation constants:
// LOCAL_SIZE, IO_DTYPE.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_control_flow_attributes : require

#include "geometry.glsl"

#include "numbers.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Merge { gpu_merge merge; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Parts { gpu_part at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Lse { float value; };
layout(push_constant, scalar) uniform Push { gpu_merging push; };

#define NOTHING uintBitsToFloat(0xff800000u) // -infinity

gpu_merge merge;
uint token, head;

uint64_t row_address(uint64_t base, uint token_stride, uint head_stride)
{
    return base + (uint64_t(token) * token_stride + uint64_t(head) * head_stride) * 16;
}

uint64_t lse_address(uint64_t base, uint token_stride)
{
    return base + (uint64_t(token) * token_stride + head) * 4;
}

// Compares bits, since a device may assume that there are no infinities.
bool empty(float lse)
{
    return floatBitsToUint(lse) == 0xff800000u;
}

// A part's addresses are loaded from an address that all lanes share. A software device loads them
// even if no lane is active, and then uses the addresses that it has loaded. So all lanes run every
// loop over the parts at least once: the loop tests at its end, and there is at least one part.
float part_lse(uint part)
{
    const gpu_part self = Parts(merge.parts).at[part];
    return Lse(lse_address(self.lse, self.lse_token_stride)).value;
}

float largest_lse()
{
    float largest = NOTHING;
    uint part = 0;
    do {
        const float lse = part_lse(part);
        if (!empty(lse) && (empty(largest) || lse > largest))
            largest = lse;
    } while (++part < merge.num_parts);
    return largest;
}

float part_weight(uint part, float largest)
{
    const float lse = part_lse(part);
    return empty(lse) ? 0.0 : exp2((lse - largest) * merge.lse_log2);
}

float weights(float largest)
{
    float sum = 0;
    uint part = 0;
    do {
        sum += part_weight(part, largest);
    } while (++part < merge.num_parts);
    return sum;
}

// A lane that does not store reads what others may have written already.
void oct_merge(uint oct, bool stores, float largest, float factor)
{
    const uint at = oct * 8 * DTYPE_BYTES(IO_DTYPE);
    vec4 low = vec4(0), high = vec4(0);
    uint part = 0;
    do {
        const gpu_part self = Parts(merge.parts).at[part];
        const float lse = part_lse(part), weight = part_weight(part, largest);
        const uint64_t row = row_address(self.result, self.out_token_stride, self.out_head_stride);
        const Oct f32 = oct_widen(oct_load(row + at, IO_DTYPE), IO_DTYPE);
        low = empty(lse) ? low : fma(vec4(weight), uintBitsToFloat(f32.first), low);
        high = empty(lse) ? high : fma(vec4(weight), uintBitsToFloat(f32.second), high);
    } while (++part < merge.num_parts);
    if (!stores)
        return;
    const Oct sums = Oct(floatBitsToUint(low * factor), floatBitsToUint(high * factor));
    oct_store(row_address(merge.result, merge.out_token_stride, merge.out_head_stride) + at, IO_DTYPE,
              oct_narrow(sums, IO_DTYPE));
}

void main()
{
    merge = Merge(push.merge).merge;
    token = gl_WorkGroupID.y + gl_WorkGroupID.z * push.items_y;
    head = gl_WorkGroupID.x;
    if (token >= merge.num_tokens || head >= merge.num_heads)
        return;
    const float largest = largest_lse(), sum = weights(largest);
    const uint octs = merge.head_dim / 8;
    uint first = 0;
    do {
        const uint oct = first + gl_LocalInvocationID.x;
        oct_merge(min(oct, octs - 1), oct < octs, largest, sum > 1 ? 1 / sum : 1.0);
        first += gl_WorkGroupSize.x;
    } while (first < octs);
    memoryBarrierBuffer(); // the other threads have read the parts' lse
    barrier();
    if (merge.lse != 0 && gl_LocalInvocationID.x == 0)
        Lse(lse_address(merge.lse, merge.lse_token_stride)).value =
            empty(largest) ? NOTHING : fma(log2(sum), merge.lse_unit, largest);
}
