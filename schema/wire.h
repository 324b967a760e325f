// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wire.h - the messages of aule.fbs as plain C structs. Knows nothing of sockets, sessions or the
// GPU. wire.cc implements it and has all C++ of the project. generate.awk makes a struct of each
// table of aule.fbs, where the meaning of each field stands.
//
// Decoding verifies a message before it reads it. The caller hands in a private, 8-byte-aligned
// copy. The copy must stay unchanged while the decoded struct is in use, because strings and
// vectors point into it. After STATUS_OK every pointer is readable for its count, every string ends
// with a NUL, and every union has the member that its type names. The caller must check ranges, ids
// and how the lengths of vectors relate. Encoding allocates; wire_buffer_finish() frees. Any
// thread; there is no global state.

// Laid out by hand, one thought a line.
// clang-format off
#ifndef AULE_SCHEMA_WIRE_H
#define AULE_SCHEMA_WIRE_H

#include "status.h"

#include "schema/wire_structs.h"   // generated: enums and structs

#ifdef __cplusplus
extern "C" {
#endif

#define WIRE_PROTOCOL_MAJOR 2u   // another major is refused
#define WIRE_PROTOCOL_MINOR 4u   // a higher minor only adds; README.md lists what
#define WIRE_MAX_MESSAGE (1u << 20)   // bytes of one nng message, at most
#define WIRE_MAX_NAME 255u       // bytes of a client, tenant or cache name
#define WIRE_MAX_FINGERPRINT 64u
#define WIRE_MAX_EXTRA_KEY 256u

// A vector of a message. If the field is absent, `data` is NULL and `count` 0. A vector of structs
// has the same two members, as in wire_tensor_list. After decoding, numbers and tensors lie in the
// message, all other elements in memory of the wire_reply.
struct wire_ints  { const int32_t *data; uint32_t count; };
struct wire_longs { const int64_t *data; uint32_t count; };
struct wire_bytes { const uint8_t *data; uint32_t count; };
struct wire_names { const char **data; uint32_t count; };   // decoded: wire_reply owns the array

// generated: the tables, WIRE_COMMAND_MAP, WIRE_ANSWER_MAP, wire_request, wire_reply
#include "schema/wire_types.h"

const char *wire_command_name(int command);   // "BLOCKS_LEASE"; "UNKNOWN" for other values

// ---- encode and decode ----

struct wire_buffer {
    void *data;   // malloc'd; owned
    size_t size;  // bytes
};
void wire_buffer_finish(struct wire_buffer *buffer);   // takes NULL and a zeroed buffer

// Encode into a fresh buffer. A reply without content has the answer EMPTY, not NONE. A NULL string
// is left out and decodes as "". On failure *out is zeroed.
// STATUS_LIMIT: the message exceeds WIRE_MAX_MESSAGE; the sentence says by how much.
// STATUS_INVALID: an unknown command or answer; a name, fingerprint or extra key that is too long;
// a count without data; lists of a reply whose lengths differ. STATUS_NO_MEMORY.
enum status wire_encode_request(const struct wire_request *request, struct wire_buffer *out,
                                struct error *error);
enum status wire_encode_reply(const struct wire_reply *reply, struct wire_buffer *out,
                              struct error *error);

// Verify `size` bytes at `data` (8-byte aligned) and fill *out. On failure *out is zeroed.
// STATUS_MALFORMED: the message is too large or truncated, or has another file identifier; a table
// lies outside the buffer; a command or a required field is missing, or a command is unknown; lists
// of a reply differ in length; a name, fingerprint or extra key is too long; a string holds a NUL.
// STATUS_INVALID: `data` is not aligned. STATUS_NO_MEMORY.
enum status wire_decode_request(const void *data, size_t size, struct wire_request *out,
                                struct error *error);
enum status wire_decode_reply(const void *data, size_t size, struct wire_reply *out,
                              struct error *error);
void wire_reply_finish(struct wire_reply *reply);   // frees decoding's memory; takes a zeroed reply

// ---- the ring lane's entries: a Run or a Wait, and its answer; ring.h has the rings ----

#define WIRE_SUBMISSION_SIZE 512u   // bytes from one entry to the next
#define WIRE_COMPLETION_SIZE 512u

struct wire_submission {
    uint32_t sequence;
    uint32_t command;            // WIRE_COMMAND_RUN or _WAIT; a hostile client may send any number
    struct wire_wait wait;
    struct wire_run run;
};
struct wire_completion {
    uint32_t sequence;
    int32_t status;
    uint32_t answer;             // WIRE_ANSWER_RUN, _WAIT or _EMPTY
    int32_t run_status;
    uint32_t num_runs, num_sessions;
    uint64_t gpu_ns, ticket;
    char text[384];              // always ends with 0
};
// `entry` is private memory of the size above, 8-byte aligned. Nothing can fail; the reader checks
// what the numbers mean.
void wire_put_submission(const struct wire_submission *submission, void *entry);
void wire_get_submission(const void *entry, struct wire_submission *submission);
void wire_put_completion(const struct wire_completion *completion, void *entry);
void wire_get_completion(const void *entry, struct wire_completion *completion);

// ---- the shared-memory segment: one for each session, made by the daemon ----
// [ header, one page ][ submission ring ][ completion ring ][ arena ]. Each part begins at a page
// border; see schema/README.md.

#define WIRE_SEGMENT_MAGIC 0x656c7561u   // "aule" in little-endian; wrong in the other byte order
#define WIRE_SEGMENT_VERSION 1u
#define WIRE_PAGE 4096u
#define WIRE_SEGMENT_PREFIX "/aule-"     // of the name in the shm_open name space

struct wire_segment_header {
    uint32_t magic, version;
    uint32_t header_bytes;       // sizeof(struct wire_segment_header) of the daemon
    uint32_t reserved;
    uint64_t epoch, session;
    uint64_t segment_size, arena_offset, arena_size;
};

#ifdef __cplusplus
}
#endif

#endif
