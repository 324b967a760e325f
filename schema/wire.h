// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wire.h - the messages of aule.fbs as plain C structs. Knows nothing of sockets, sessions or the
// GPU. wire.cc, behind this header, holds all the C++ there is. generate.awk makes the structs of
// the tables of aule.fbs, field by field; what a field means stands there.
//
// Decoding verifies the message before it reads it. The caller passes a private copy, aligned to 8
// bytes. The copy must not change while the decoded struct is in use, because strings and vectors
// point into it. After STATUS_OK every pointer is readable for its count, every string ends with
// NUL, and every union has the member that its type names. The caller must check ranges, ids, and
// that lengths of vectors fit each other. Encoding allocates; wire_buffer_finish() frees. Thread
// rule: all functions are reentrant; there is no global state.

// Laid out by hand, one thought a line.
// clang-format off
#ifndef AULE_SCHEMA_WIRE_H
#define AULE_SCHEMA_WIRE_H

#include "status.h"

#include "schema/wire_structs.h"   // generated: enums and structs

#ifdef __cplusplus
extern "C" {
#endif

// Another major is refused. A higher minor only adds: WIRE_PROTOCOL_MINOR is the highest `since` of
// aule.fbs.
#define WIRE_PROTOCOL_MAJOR 3u
#define WIRE_MAX_MESSAGE (1u << 20)   // bytes; the default and the upper limit of one nng message
#define WIRE_LOOKUP_WAIT_MS 2000      // a look-up without a claim waits so long for tiers, at most
#define WIRE_MAX_NAME 255u       // bytes of a client's or a cache's name, or an entry of a list of names
#define WIRE_MAX_TENANT 240u     // of a tenant's: its label, "uid:4294967295/NAME", is a name, too
#define WIRE_MAX_FINGERPRINT 64u
#define WIRE_MAX_EXTRA_KEY 256u

// The export socket, a SOCK_SEQPACKET socket beside the daemon's: one packet each way. The answer
// carries the descriptor (SCM_RIGHTS) if its status is OK. Then the daemon ends the connection.
#define WIRE_TOKEN_SIZE 16u
#define WIRE_EXPORT_MAGIC "auleEXP1"
struct wire_export_request {
    char magic[8];                    // WIRE_EXPORT_MAGIC without its NUL
    uint8_t token[WIRE_TOKEN_SIZE];   // of the DeviceArenaReply; good for one descriptor
};
struct wire_export_answer {
    int32_t status;                   // status.h
    char message[252];                // why, if it is not OK; ends with NUL
};

// A vector inside the message. `data` is NULL and `count` 0 if the field is absent. Each vector of
// structs has such a type, too: wire_tensor_list. After decoding, numbers and tensors lie in the
// message, all else in memory of the wire_reply: see wire_reply_finish().
struct wire_ints  { const int32_t *data; uint32_t count; };
struct wire_longs { const int64_t *data; uint32_t count; };
struct wire_bytes { const uint8_t *data; uint32_t count; };
struct wire_names { const char *const *data; uint32_t count; };

#include "schema/wire_types.h"   // generated: tables, WIRE_*_MAP, wire_request, wire_reply

const char *wire_command_name(int command);   // "BLOCKS_LEASE"; "UNKNOWN" for none of them
unsigned wire_command_rules(int command);     // enum wire_rule, bits; 0 for none of them

// ---- encode and decode ----

struct wire_buffer {
    void *data;   // malloc'd; owned
    size_t size;  // bytes
};
void wire_buffer_finish(struct wire_buffer *buffer);   // takes NULL and a zeroed buffer

// Encodes into a fresh buffer. A reply without content has the answer EMPTY, not NONE. A NULL
// string is left out and decodes as "". On failure *out is zeroed.
// STATUS_LIMIT: the message exceeds WIRE_MAX_MESSAGE bytes; the text says by how much.
// STATUS_INVALID: no such command or answer; a name, fingerprint or extra key is too long; a vector
// has a count but no data; lists of a reply differ in length. STATUS_NO_MEMORY.
enum status wire_encode_request(const struct wire_request *request, struct wire_buffer *out,
                                struct error *error);
enum status wire_encode_reply(const struct wire_reply *reply, struct wire_buffer *out,
                              struct error *error);

// The same into `room` bytes at `memory` (8-byte aligned), of which *size are then the message. It
// allocates only for a list of names. STATUS_LIMIT, too: the room is too small.
// `room` must exceed the message by up to 8192 bytes, and by 32 more for each name.
enum { WIRE_ENCODE_ROOM = WIRE_MAX_MESSAGE + 8192 }; // enough for any reply without names
enum status wire_encode_reply_in(const struct wire_reply *reply, void *memory, size_t room,
                                 size_t *size, struct error *error);

// Verifies `size` bytes at `data` (8-byte aligned) and fills *out. On failure *out is zeroed.
// STATUS_MALFORMED: the message is too large, is truncated, or has another file identifier; a table
// lies outside it; the command is missing or unknown; a required field is absent; lists of a reply
// differ in length; a name, fingerprint or extra key is too long; a string has a NUL byte inside.
// STATUS_INVALID: `data` is not aligned. STATUS_NO_MEMORY.
enum status wire_decode_request(const void *data, size_t size, struct wire_request *out,
                                struct error *error);
enum status wire_decode_reply(const void *data, size_t size, struct wire_reply *out,
                              struct error *error);
// Frees what decoding allocated; takes a zeroed reply.
void wire_reply_finish(struct wire_reply *reply);

// ---- the ring lane's entries: a command and its answer. ring.h has the rings. ----

#define WIRE_SUBMISSION_SIZE 640u   // bytes from one entry to the next
#define WIRE_COMPLETION_SIZE 512u
#define WIRE_PLACES_SIZE (128u << 10)   // bytes behind the arena of a session with a ring lane

struct wire_submission {
    uint32_t sequence;
    uint32_t command;            // enum wire_command; of a hostile client anything
    struct wire_wait wait;       // of WIRE_COMMAND_WAIT
    struct wire_run run;         // of WIRE_COMMAND_RUN
    struct wire_span message;    // of any other: its request, in bytes of the arena
    uint64_t room;               // bytes from message.offset on, for the reply
};
struct wire_completion {
    uint32_t sequence;
    int32_t status;
    uint32_t answer;             // WIRE_ANSWER_RUN, _WAIT or _EMPTY; else `ticket` bytes of reply
                                 // lie at message.offset
    int32_t run_status;
    uint32_t num_runs, num_sessions;
    uint64_t gpu_ns, ticket;
    char text[384];              // always ends with 0
};
// The entry is private memory, 8-byte aligned, of the size above. Nothing can fail: the reader checks
// what the numbers mean.
void wire_put_submission(const struct wire_submission *submission, void *entry);
void wire_get_submission(const void *entry, struct wire_submission *submission);
void wire_put_completion(const struct wire_completion *completion, void *entry);
void wire_get_completion(const void *entry, struct wire_completion *completion);
// Whether a completion has all of such an answer. Others lie in the place of their request.
bool wire_fits_completion(enum wire_answer answer);
// Room for the reply to a command in a place, in bytes: no reply to it is larger. 0 for
// commands without WIRE_BY_RING.
uint64_t wire_reply_room(const struct wire_request *request);

// ---- the shared-memory segment: one per session, made by the daemon ----
// [ header, one page ][ submission ring ][ completion ring ][ arena ], each part at a page border;
// see schema/README.md.

// "aule", little-endian: a peer of the other byte order sees another number.
#define WIRE_SEGMENT_MAGIC 0x656c7561u
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
