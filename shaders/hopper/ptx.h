// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ptx.h - the instructions of compute capability 9.0 that C++ has no words for: barriers in shared
// memory, copies, warpgroup matrix products, numbers. One function an instruction; see the PTX
// manual. Compiled by clang alone, without headers of a CUDA toolkit.

#ifndef AULE_SHADERS_HOPPER_PTX_H
#define AULE_SHADERS_HOPPER_PTX_H

#include <stdint.h>

#define DEVICE static __attribute__((device)) __attribute__((always_inline)) inline

DEVICE uint32_t thread_number()
{
    return (uint32_t)__nvvm_read_ptx_sreg_tid_x();
}

DEVICE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

DEVICE uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

// ---- shared memory: addresses are 32-bit, in the shared window ----

DEVICE uint32_t shared_address(const void *pointer)
{
    uint32_t address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
        : "=r"(address)
        : "l"(pointer));
    return address;
}

DEVICE void shared_store(uint32_t at, uint32_t value)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

DEVICE uint32_t shared_load(uint32_t at)
{
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}

template <typename T> DEVICE T shared_get(uint32_t at)
{
    if constexpr (sizeof(T) == 8) {
        uint64_t value;
        asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(at) : "memory");
        return __builtin_bit_cast(T, value);
    } else {
        return __builtin_bit_cast(T, shared_load(at));
    }
}

DEVICE void shared_load_pair(uint32_t (&words)[2], uint32_t at)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(at)
                 : "memory");
}

DEVICE void shared_store_chunk(uint32_t at, const uint32_t (&words)[4]) // 16 bytes
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}

DEVICE void shared_zero(uint32_t at) // 16 bytes
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

// What this thread stored in shared memory is seen by copies and matrix products that follow a
// barrier.
DEVICE void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- barriers ----

DEVICE void barrier_make(uint32_t at, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

DEVICE void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

DEVICE void barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

// Waits until the phase of that parity is over. A fresh barrier is in phase 0; the phase before it
// counts as over.
DEVICE void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{ .reg .pred over;\n"
                 "AGAIN_%=: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra AGAIN_%=; }" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

// Whether that phase is over.
DEVICE bool barrier_is_over(uint32_t at, uint32_t parity)
{
    uint32_t over;
    asm volatile("{ .reg .pred over;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over; }"
                 : "=r"(over)
                 : "r"(at), "r"(parity)
                 : "memory");
    return over;
}

// Barriers of whole warps.

DEVICE void named_sync(uint32_t number, uint32_t threads)
{
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

DEVICE void named_arrive(uint32_t number, uint32_t threads)
{
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// The same for barriers NUMBER and NUMBER + 1, as `second` says. The numbers are constants, so that
// none is kept in a register.
template <int NUMBER, int THREADS> DEVICE void pair_sync(uint32_t second)
{
    asm volatile("{ .reg .pred second; setp.ne.u32 second, %0, 0;\n"
                 "@!second barrier.cta.sync.aligned %1, %3;\n"
                 "@second barrier.cta.sync.aligned %2, %3; }" ::"r"(second),
                 "n"(NUMBER), "n"(NUMBER + 1), "n"(THREADS)
                 : "memory");
}

template <int NUMBER, int THREADS> DEVICE void pair_arrive(uint32_t second)
{
    asm volatile("{ .reg .pred second; setp.ne.u32 second, %0, 0;\n"
                 "@!second barrier.cta.arrive.aligned %1, %3;\n"
                 "@second barrier.cta.arrive.aligned %2, %3; }" ::"r"(second),
                 "n"(NUMBER), "n"(NUMBER + 1), "n"(THREADS)
                 : "memory");
}

// Whether `flag` is set in any of the threads.
DEVICE bool named_any(uint32_t number, uint32_t threads, bool flag)
{
    uint32_t any;
    asm volatile("{ .reg .pred mine, all; setp.ne.u32 mine, %3, 0;\n"
                 "barrier.cta.red.or.pred.aligned all, %1, %2, mine; selp.u32 %0, 1, 0, all; }"
                 : "=r"(any)
                 : "r"(number), "r"(threads), "r"((uint32_t)flag)
                 : "memory");
    return any;
}

DEVICE void warp_sync()
{
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

DEVICE bool warp_any(bool flag)
{
    uint32_t any;
    asm volatile("{ .reg .pred mine, all; setp.ne.u32 mine, %1, 0;\n"
                 "vote.sync.any.pred all, mine, 0xffffffff; selp.u32 %0, 1, 0, all; }"
                 : "=r"(any)
                 : "r"((uint32_t)flag));
    return any;
}

template <typename T> DEVICE T lane_xor(T value, int mask)
{
    return __builtin_bit_cast(
        T, __nvvm_shfl_sync_bfly_i32(0xffffffff, __builtin_bit_cast(int, value), mask, 0x1f));
}

DEVICE uint32_t lane_read(uint32_t value, uint32_t lane)
{
    return (uint32_t)__nvvm_shfl_sync_idx_i32(0xffffffff, (int)value, (int)lane, 0x1f);
}

DEVICE uint64_t lane_read(uint64_t value, uint32_t lane)
{
    return lane_read((uint32_t)value, lane) | (uint64_t)lane_read((uint32_t)(value >> 32), lane)
                                                  << 32;
}

template <int COUNT> DEVICE void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> DEVICE void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- copies from device memory to shared memory ----

// What the host wrote into the map before the launch is seen by copies.
DEVICE void map_acquire(uint64_t map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

DEVICE void copy_box(uint32_t to, uint64_t map, const uint32_t place[4], uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier"
                 "::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(place[0]), "r"(place[1]), "r"(place[2]), "r"(place[3]), "r"(barrier)
                 : "memory");
}

// 16 bytes, or 16 zeros.
DEVICE void copy_chunk(uint32_t to, uint64_t from, bool zeros)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(zeros ? 0 : 16)
                 : "memory");
}

// Arrives when this thread's chunks are there.
DEVICE void copy_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- matrix products of a warpgroup ----

DEVICE void load_matrices(uint32_t out[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

// Registers that were written are seen by the products that follow.
DEVICE void product_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void product_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define NAMES_32                                                                                   \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                   \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
             "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128                                                                                  \
    NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "  \
             "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "    \
             "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "    \
             "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "      \
             "%123, %124, %125, %126, %127"
#define EACH_4(MODE, a, i) MODE((a)[i]), MODE((a)[(i) + 1]), MODE((a)[(i) + 2]), MODE((a)[(i) + 3])
#define EACH_16(MODE, a, i)                                                                        \
    EACH_4(MODE, a, i), EACH_4(MODE, a, (i) + 4), EACH_4(MODE, a, (i) + 8),                        \
        EACH_4(MODE, a, (i) + 12)
#define EACH_32_AT(MODE, a, i) EACH_16(MODE, a, i), EACH_16(MODE, a, (i) + 16)
#define EACH_32(MODE, a)       EACH_32_AT(MODE, a, 0)
#define EACH_64(MODE, a)       EACH_32_AT(MODE, a, 0), EACH_32_AT(MODE, a, 32)
#define EACH_128(MODE, a)      EACH_64(MODE, a), EACH_32_AT(MODE, a, 64), EACH_32_AT(MODE, a, 96)

#ifdef AULE_HOPPER_BF16
#define PRODUCT_TYPES "bf16.bf16"
#else
#define PRODUCT_TYPES "f16.f16"
#endif

// What a product reads from shared memory is described by 64 bits. The lower half is an address by
// 16 bytes, and further up the distance of two lines; here it is `b` + `by`, made in the asm, so
// that the compiler does not keep one for each product in a loop. In the upper half, groups of
// eight lines are 1024 bytes apart, with a swizzle of 128 bytes.
#define DESCRIBED(NAME, LOW, BY)                                                                   \
    ".reg .b64 " NAME "; mov.b64 " NAME ", {" LOW ", 0x40000040};\n"                               \
    "add.u64 " NAME ", " NAME ", " BY ";\n"
#define PRODUCT(COLUMNS, COUNT, BEFORE, REST)                                                      \
    "{ " DESCRIBED("second", "%[b]", "%[by]") BEFORE "wgmma.mma_async.sync.aligned.m64n" #COLUMNS  \
                                                     "k16.f32." PRODUCT_TYPES " " NAMES_##COUNT    \
        "}, " REST " }"
#define NO_SUMS         ".reg .pred add; setp.ne.u32 add, 0, 0;\n"
#define A_REGISTERS     "{%[a0], %[a1], %[a2], %[a3]}"
#define A_MEMORY        DESCRIBED("first", "%[a]", "%[a_by]")
#define REGISTERS_OF(a) [a0] "r"((a)[0]), [a1] "r"((a)[1]), [a2] "r"((a)[2]), [a3] "r"((a)[3])

// The functions for sums of 64 x COLUMNS, COUNT numbers a thread:
//
// - product_wait<PENDING>(sums): waits until at most PENDING groups of products run. `sums` are
//   those of a group that ends here: being operands, they are not used before.
// - product<TRANSPOSED>(sums, a, b, by): sums += a[64 x 16] b[16 x COLUMNS]. `a` is a warp's
//   fragment of 16 rows; b + by a descriptor. TRANSPOSED: the columns of b lie together in memory,
//   not the 16 rows.
// - product_first(sums, a, b, by): sums = a b, b not transposed.
// - product_shared(sums, a, a_by, b, by), product_shared_first(): both by descriptors, b not
//   transposed.
#define PRODUCTS(COLUMNS, COUNT)                                                                   \
    template <int PENDING> DEVICE void product_wait(float(&sums)[COUNT])                           \
    {                                                                                              \
        asm volatile("wgmma.wait_group.sync.aligned %[pending];"                                   \
                     : EACH_##COUNT("+f", sums)                                                    \
                     : [pending] "n"(PENDING)                                                      \
                     : "memory");                                                                  \
    }                                                                                              \
    template <int TRANSPOSED>                                                                      \
    DEVICE void product(float(&sums)[COUNT], const uint32_t *a, uint32_t b, uint32_t by)           \
    {                                                                                              \
        asm volatile(PRODUCT(COLUMNS, COUNT, "", A_REGISTERS ", second, 1, 1, 1, %[t];")           \
                     : EACH_##COUNT("+f", sums)                                                    \
                     : REGISTERS_OF(a), [b] "r"(b), [by] "l"((uint64_t)(by)), [t] "n"(TRANSPOSED)  \
                     : "memory");                                                                  \
    }                                                                                              \
    DEVICE void product_first(float(&sums)[COUNT], const uint32_t *a, uint32_t b, uint32_t by)     \
    {                                                                                              \
        asm volatile(PRODUCT(COLUMNS, COUNT, NO_SUMS, A_REGISTERS ", second, add, 1, 1, 0;")       \
                     : EACH_##COUNT("=f", sums)                                                    \
                     : REGISTERS_OF(a), [b] "r"(b), [by] "l"((uint64_t)(by))                       \
                     : "memory");                                                                  \
    }                                                                                              \
    DEVICE void product_shared(float(&sums)[COUNT], uint32_t a, uint32_t a_by, uint32_t b,         \
                               uint32_t by)                                                        \
    {                                                                                              \
        asm volatile(                                                                              \
            PRODUCT(COLUMNS, COUNT, A_MEMORY, "first, second, 1, 1, 1, 0, 0;")                     \
            : EACH_##COUNT("+f", sums)                                                             \
            : [a] "r"(a), [a_by] "l"((uint64_t)(a_by)), [b] "r"(b), [by] "l"((uint64_t)(by))       \
            : "memory");                                                                           \
    }                                                                                              \
    DEVICE void product_shared_first(float(&sums)[COUNT], uint32_t a, uint32_t a_by, uint32_t b,   \
                                     uint32_t by)                                                  \
    {                                                                                              \
        asm volatile(                                                                              \
            PRODUCT(COLUMNS, COUNT, NO_SUMS A_MEMORY, "first, second, add, 1, 1, 0, 0;")           \
            : EACH_##COUNT("=f", sums)                                                             \
            : [a] "r"(a), [a_by] "l"((uint64_t)(a_by)), [b] "r"(b), [by] "l"((uint64_t)(by))       \
            : "memory");                                                                           \
    }

PRODUCTS(64, 32)
PRODUCTS(128, 64)
PRODUCTS(256, 128)

// ---- numbers ----

DEVICE float fused(float a, float b, float c) // a * b + c, rounded once
{
    float result;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
    return result;
}

DEVICE float power_of_2(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

DEVICE float logarithm_2(float x)
{
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

DEVICE float inverse(float x)
{
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

DEVICE float larger(float a, float b) // the other one if one is NaN
{
    float result;
    asm("max.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

// Two numbers as elements, `low` in the lower half.
DEVICE uint32_t packed(float low, float high)
{
    uint32_t both;
#ifdef AULE_HOPPER_BF16
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

template <uint32_t SELECTOR> DEVICE uint32_t permuted(uint32_t low, uint32_t high)
{
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "n"(SELECTOR));
    return result;
}

// The functions below take two bytes of a word, HIGH ? 2 and 3 : 0 and 1. They are exact.

// Two e4m3 as f16.
template <int HIGH> DEVICE uint32_t halves_of_e4m3(uint32_t word)
{
    uint32_t pair;
    asm("{ .reg .b16 part<2>; mov.b32 {part0, part1}, %1; cvt.rn.f16x2.e4m3x2 %0, part%2; }"
        : "=r"(pair)
        : "r"(word), "n"(HIGH));
    return pair;
}

// Two e5m2 as f16: its upper half.
template <int HIGH> DEVICE uint32_t halves_of_e5m2(uint32_t word)
{
    return permuted < HIGH ? 0x3424 : 0x1404 > (word, 0);
}

// Two f16 as elements.
DEVICE uint32_t elements_of_halves(uint32_t pair)
{
#ifdef AULE_HOPPER_BF16
    uint32_t result;
    asm("{ .reg .b16 half<2>; .reg .f32 number<2>; mov.b32 {half0, half1}, %1;\n"
        "cvt.f32.f16 number0, half0; cvt.f32.f16 number1, half1;\n"
        "cvt.rn.bf16x2.f32 %0, number1, number0; }"
        : "=r"(result)
        : "r"(pair));
    return result;
#else
    return pair;
#endif
}

// Two int8 as elements. x + 128 is put into the fraction of a number, less 128 and that number.
template <int HIGH> DEVICE uint32_t elements_of_int8(uint32_t word)
{
    const uint32_t positive = word ^ 0x80808080;
#ifdef AULE_HOPPER_BF16
    const uint32_t low = permuted<0x7540 + 2 * HIGH>(positive, 0x4b000000);
    const uint32_t high = permuted<0x7541 + 2 * HIGH>(positive, 0x4b000000);
    return packed(__builtin_bit_cast(float, low) - 8388736.0f,
                  __builtin_bit_cast(float, high) - 8388736.0f);
#else
    uint32_t pair = permuted < HIGH ? 0x4342 : 0x4140 > (positive, 0x64646464);
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(0x64806480));
    return pair;
#endif
}

// ---- device memory ----

DEVICE uint32_t ticket_take(uint64_t at)
{
    uint32_t value;
    asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(value) : "l"(at) : "memory");
    return value;
}

DEVICE void load_chunk(uint32_t (&chunk)[4], uint64_t at)
{
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk[0]), "=r"(chunk[1]), "=r"(chunk[2]), "=r"(chunk[3])
                 : "l"(at));
}

DEVICE void store_chunk(uint64_t at, const uint32_t chunk[4])
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(chunk[0]), "r"(chunk[1]),
                 "r"(chunk[2]), "r"(chunk[3])
                 : "memory");
}

template <typename T> DEVICE T load(uint64_t at)
{
    return *(const __attribute__((address_space(1))) T *)at;
}

template <typename T> DEVICE void store(uint64_t at, T value)
{
    *(__attribute__((address_space(1))) T *)at = value;
}

#endif
