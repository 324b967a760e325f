// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tensor.c - memory in a session's arena, and the tensors that lie in it. Knows offsets and
// strides. The daemon checks whether a run may use a tensor. Any thread.

#include "tensor.h"

#include "error.h"
#include "session.h"

#include <inttypes.h>

enum { TENSOR_ALIGNMENT = 16 }; // bytes; of strides

static enum aule_status alloc_in(struct life *life, uint64_t size, void **data, uint64_t *offset)
{
    enum aule_status status = arena_alloc(life->arena, size, offset);
    if (status == AULE_OK)
        *data = (char *)life->segment.arena + *offset;
    return status;
}

enum aule_status aule_arena_alloc(struct aule_session *session, uint64_t size, void **data,
                                  uint64_t *offset)
{
    REQUIRE(session);
    REQUIRE(data);
    struct life *life;
    enum aule_status status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    uint64_t place = 0;
    status = alloc_in(life, size, data, &place);
    if (status == AULE_OK && offset)
        *offset = place;
    session_put(life);
    return status;
}

// A call's last element begins this many bytes behind the tensor's offset. False: the number is too
// large, which the daemon says in its own words.
static bool find_last(const struct tensor_use *use, uint64_t *last)
{
    const struct aule_tensor *tensor = use->tensor;
    const uint64_t parts[][2] = {{use->num_rows - 1, tensor->token_stride},
                                 {use->num_heads ? use->num_heads - 1 : 0, tensor->head_stride},
                                 {use->num_before, tensor->outer_stride},
                                 {use->layers_before, use->layer_stride}};
    *last = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t part;
        if (__builtin_mul_overflow(parts[i][0], parts[i][1], &part) ||
            __builtin_add_overflow(*last, part, last))
            return false;
    }
    return true;
}

// Bytes that a row takes of the tensor, on average if each head lies by itself.
static uint64_t row_size(const struct tensor_use *use)
{
    const struct aule_tensor *tensor = use->tensor;
    bool by_head = use->num_heads > 1 && tensor->head_stride >= tensor->token_stride;
    uint64_t size;
    return __builtin_mul_overflow(tensor->token_stride, by_head ? use->num_heads : 1, &size) ? 0
                                                                                             : size;
}

enum aule_status tensor_check_rows(const struct tensor_use *use)
{
    const struct aule_tensor *tensor = use->tensor;
    uint64_t last, size = row_size(use);
    if (tensor->num_rows == 0 || size == 0 || use->num_rows == 0 || !find_last(use, &last) ||
        last / size < tensor->num_rows)
        return AULE_OK;
    return fail(AULE_OUT_OF_RANGE, "%s has num_rows = %u, but the call uses %" PRIu64 " rows of it",
                use->name, tensor->num_rows, last / size + 1);
}

// A pointer that begins no allocation changes nothing, and aule_error() says so. A pointer from
// before a reconnect looks like a new one at the same place.
void aule_arena_free(struct aule_session *session, void *data)
{
    struct life *life;
    if (!session || !data || session_get(session, &life) != AULE_OK)
        return;
    arena_free(life->arena, (uint64_t)((uintptr_t)data - (uintptr_t)life->segment.arena));
    session_put(life);
}

void *aule_arena_base(struct aule_session *session)
{
    struct life *life;
    if (!session || session_get(session, &life) != AULE_OK)
        return NULL;
    void *base = life->segment.arena;
    session_put(life);
    return base;
}

static enum aule_status check_shape(enum aule_dtype dtype, uint32_t num_heads, uint32_t head_dim)
{
    uint64_t element = aule_dtype_size(dtype);
    if (element == 0)
        return fail(AULE_INVALID, "%d is not an element type", (int)dtype);
    if (num_heads == 0 || head_dim == 0)
        return fail(AULE_INVALID, "a tensor of %u heads of %u elements; neither may be 0",
                    num_heads, head_dim);
    if (head_dim * element % TENSOR_ALIGNMENT != 0)
        return fail(AULE_MISALIGNED,
                    "a head of %u %s elements has %" PRIu64 " bytes, which is not a multiple of %d",
                    head_dim, aule_dtype_name(dtype), head_dim * element, TENSOR_ALIGNMENT);
    return AULE_OK;
}

// A dense tensor of a shape that is allowed.
static enum aule_status create(struct aule_session *session, enum aule_dtype dtype,
                               uint32_t num_tokens, uint32_t num_heads, uint32_t head_dim,
                               struct aule_tensor *tensor)
{
    uint64_t head_stride = head_dim * (uint64_t)aule_dtype_size(dtype), token_stride, size;
    if (__builtin_mul_overflow(head_stride, num_heads, &token_stride) ||
        __builtin_mul_overflow(token_stride, num_tokens, &size))
        return fail(AULE_OUT_OF_RANGE, "a tensor of %u x %u x %u %s elements is too large",
                    num_tokens, num_heads, head_dim, aule_dtype_name(dtype));
    struct life *life;
    enum aule_status status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    void *data;
    uint64_t offset;
    // A tensor without tokens needs a place, too.
    status = alloc_in(life, size ? size : TENSOR_ALIGNMENT, &data, &offset);
    if (status == AULE_OK)
        *tensor = (struct aule_tensor){.dtype = dtype,
                                       .offset = offset,
                                       .token_stride = token_stride,
                                       .head_stride = head_stride,
                                       .life = life_number(life),
                                       .num_rows = num_tokens};
    session_put(life);
    return status;
}

enum aule_status aule_tensor_create(struct aule_session *session, enum aule_dtype dtype,
                                    uint32_t num_tokens, uint32_t num_heads, uint32_t head_dim,
                                    struct aule_tensor *tensor)
{
    REQUIRE(session);
    REQUIRE(tensor);
    enum aule_status status = check_shape(dtype, num_heads, head_dim);
    if (status != AULE_OK)
        return status;
    return create(session, dtype, num_tokens, num_heads, head_dim, tensor);
}

enum aule_status aule_tensor_create_lse(struct aule_session *session, uint32_t num_rows,
                                        uint32_t num_heads, struct aule_tensor *tensor)
{
    REQUIRE(session);
    REQUIRE(tensor);
    if (num_heads == 0)
        return fail(AULE_INVALID, "an LSE tensor of 0 heads");
    return create(session, AULE_F32, num_rows, num_heads, 1, tensor);
}
void *aule_tensor_data(struct aule_session *session, const struct aule_tensor *tensor)
{
    struct life *life;
    if (!session || !tensor)
        return NULL;
    if (tensor->memory != AULE_MEMORY_ARENA) {
        fail(AULE_INVALID,
             "the tensor at offset %" PRIu64 " lies in memory kind %u, not in the "
             "arena of shared memory",
             tensor->offset, tensor->memory);
        return NULL;
    }
    if (session_get(session, &life) != AULE_OK)
        return NULL;
    char *base = life->segment.arena;
    if (life_check(life, tensor->life, "the tensor") != AULE_OK)
        base = NULL;
    session_put(life);
    return base ? base + tensor->offset : NULL;
}

// If the session has another arena by now, or none, the tensor's memory is gone already.
void aule_tensor_destroy(struct aule_session *session, struct aule_tensor *tensor)
{
    struct life *life;
    if (!tensor || tensor->dtype == 0) // destroyed already
        return;
    if (tensor->life == 0) {
        fail(AULE_INVALID, "the tensor at offset %" PRIu64 " is not of aule_tensor_create()",
             tensor->offset);
        return;
    }
    if (session && session_get(session, &life) == AULE_OK) {
        if (life_check(life, tensor->life, "the tensor") == AULE_OK)
            arena_free(life->arena, tensor->offset);
        session_put(life);
    }
    *tensor = (struct aule_tensor){.memory = 0};
}
