// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// frame.h - how a message lies in the stream of a Unix socket: the framing of nng's REQ and REP
// protocols, "SP over IPC". Knows neither sockets nor what a message says. Any thread.
//
// Each side first sends a greeting of 8 bytes: 0 'S' 'P' 0, the protocol in 16 bits (REQ 0x30, REP
// 0x31), and 0 0. Each message is then a frame: the byte 1, the size of the rest in 64 bits, a
// number in 32 bits, and the body. The highest bit of the number is set. The answer repeats the
// number. Numbers are big-endian. Source: nng's IPC and REQ mappings, nanomsg's
// rfc/sp-request-reply-01.

#ifndef AULE_FRAME_H
#define AULE_FRAME_H

#include <stddef.h>
#include <stdint.h>

enum {
    FRAME_GREETING = 8, // bytes
    FRAME_NUMBER_SIZE = 4,
    FRAME_LENGTH_END = 9,                              // bytes up to the end of the size
    FRAME_HEAD = FRAME_LENGTH_END + FRAME_NUMBER_SIZE, // bytes before a body
};
#define FRAME_TOP_BIT (UINT32_C(1) << 31)
// The number of a frame that answers no request: it says why the daemon closes the connection.
#define FRAME_PARTING FRAME_TOP_BIT

// What a client and what a daemon send first.
static const uint8_t frame_client_greeting[FRAME_GREETING] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t frame_daemon_greeting[FRAME_GREETING] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

static inline void frame_write_number(uint8_t *bytes, unsigned size, uint64_t number)
{
    for (unsigned i = 0; i < size; i++)
        bytes[i] = (uint8_t)(number >> 8 * (size - 1 - i));
}

static inline uint64_t frame_read_number(const uint8_t *bytes, unsigned size)
{
    uint64_t number = 0;
    for (unsigned i = 0; i < size; i++)
        number = number << 8 | bytes[i];
    return number;
}

// `number` gets the top bit.
static inline void frame_write_head(uint8_t head[FRAME_HEAD], uint32_t number, size_t body_size)
{
    head[0] = 1;
    frame_write_number(head + 1, 8, FRAME_NUMBER_SIZE + body_size);
    frame_write_number(head + FRAME_LENGTH_END, FRAME_NUMBER_SIZE, number | FRAME_TOP_BIT);
}

// Bytes behind the size: the number and the body.
static inline uint64_t frame_length(const uint8_t *head)
{
    return frame_read_number(head + 1, 8);
}

static inline uint32_t frame_number(const uint8_t head[FRAME_HEAD])
{
    return (uint32_t)frame_read_number(head + FRAME_LENGTH_END, FRAME_NUMBER_SIZE);
}

#endif
