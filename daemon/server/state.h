// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - the structs that the files of server/ share. Thread: dispatcher. Others touch two
// things only: the job thread a session's segment and arena, and an offloaded call, while its job
// runs; the engine's threads `waker`.

#ifndef AULE_SERVER_STATE_H
#define AULE_SERVER_STATE_H

#include "base/clock.h"
#include "base/hash.h"
#include "core/core.h"
#include "exports.h"
#include "groups.h"
#include "jobs.h"
#include "listener.h"
#include "schema/ring.h"
#include "schema/wire.h"
#include "segment.h"
#include "server.h"
#include "side_socket.h"
#include "socket_path.h"
#include "tiering.h"
#include "waker.h"

// Which descriptor of the dispatcher's epoll set has an event.
enum watch_kind {
    WATCH_REQUESTS,
    WATCH_WAKE,
    WATCH_SIGNALS,
    WATCH_OWNER,
    WATCH_BELL,
    WATCH_EXPORTS,
    WATCH_TIER
};
struct watch {
    enum watch_kind kind;
    struct session *session; // WATCH_OWNER
};

// Where the answer to a command goes.
struct asker {
    struct route route;   // by message, unless `ring` is given
    struct session *ring; // by the completion ring of this session; NULL = by message
    uint32_t sequence;    // by ring: number of the submission entry
    // By ring: bytes of the session's arena that may take the reply; checked. count 0 = none.
    struct wire_span place;
    // A Run may also wait for its end (`waits`); then it is answered like a Wait.
    bool waits;
    int64_t deadline_ns; // if it waits: for the ticket and for the end together
    uint64_t ticket;     // if it waits: its ticket; 0 = it has none yet
    bool again;          // it asks again after NO_BLOCKS, so that is no refusal
};

// The daemon's side of a session's rings: lane.c.
struct lane {
    struct ring_daemon ring;
    bool open;                   // entries are taken
    bool held;                   // but not yet: an offloaded command goes first
    bool awake;                  // the dispatcher polls it, so the client need not ring the bell
    int64_t busy_ns;             // time of the last entry or answer
    struct session *prev, *next; // server->awake, while awake
    // The client has unread answers, and one of its threads slept when they were posted.
    bool has_sleeper;
    struct session *sleeper_prev, *sleeper_next; // server->sleepers, while `has_sleeper`
};

// server_destroy() may take this long, or the rest of --drain-timeout if that is longer.
enum { SERVER_FAREWELL_MS = 2000 };

// A session's parked commands by what wakes them.
enum park_list {
    PARK_OTHERS, // core names each by itself
    PARK_ENDS,   // the end of its ticket; in the order of tickets
    PARK_WORK,   // a free ticket; in the order of arrival
    NUM_PARK_LISTS
};

enum session_stage {
    SESSION_MAKING,   // the job thread makes its segment; Hello is not answered
    SESSION_UNMAPPED, // Hello is answered; Mapped has not come
    SESSION_OPEN,
    SESSION_ENDING, // closed in core; its arena lives until the GPU has ended its last run
};

struct session {
    uint64_t id;
    enum session_stage stage;
    struct server *server;
    struct peer *peer;   // its connection; NULL once the connection or the session has ended
    char *name, *tenant; // owned
    char label[320];     // "session 7 (worker, pid 123)", for logs
    uint64_t pid;        // the peer's; 0 = of another pid namespace
    uint32_t uid;
    struct place_user user;            // its peer's
    const char *group;                 // of server->groups; NULL = none
    struct segment segment;            // owned
    struct engine_arena *arena;        // owned; NULL without an arena
    struct engine_arena *device_arena; // likewise
    uint64_t device_arena_size;        // bytes, in server->device_arena_bytes
    uint64_t arena_bytes;              // of its segment, in server->arena_bytes
    bool has_token;                    // for one descriptor
    uint8_t token[WIRE_TOKEN_SIZE];
    uint64_t token_cache; // of whose memory; 0 = of the device arena
    uint32_t token_part;
    bool imported;             // the GPU uses the arena in place
    struct core_session *core; // NULL while MAKING and ENDING
    // Its core session after it died attached, until its process is proven dead; else NULL.
    struct core_session *ghost;
    int pidfd;          // of the client's process; owned; -1 = none
    uint64_t owner;     // owner_number() of it
    struct watch watch; // of pidfd
    int64_t opened_ns, map_deadline_ns;
    struct core_wait wait;                 // CORE_WAIT_RUNS
    struct parked *parked[NUM_PARK_LISTS]; // park.c: its parked commands
    uint32_t num_parked, num_parked_work;  // park.c: of them all; of those with GPU work
    uint64_t parked_bytes;                 // park.c: arrays of its parked work; --max-batch-memory
    struct offload *offload;               // its command that the job thread prepares; NULL = none
    uint32_t num_deferred;                 // messages that wait for that; offload.c
    uint64_t deferred_bytes;               // of these
    struct job job;                        // makes its segment, later unmakes it
    struct asker hello;                    // of its Hello, until that is answered
    struct error job_error;                // why its segment was not made
    struct lane lane;
    bool gone;         // core has called session_gone()
    bool abandoned;    // it ended while the job thread made its segment
    bool unmaking;     // the job thread unmakes its segment; only that thread may touch it now
    UT_hash_handle hh; // server->sessions, by id
};

struct server {
    const struct server_params *params; // main()'s
    uint64_t epoch;                     // random, not 0; tells one daemon's life from another's
    int64_t started_ns;
    char socket[SOCKET_PATH_ROOM];
    char segment_prefix[SEGMENT_PREFIX_ROOM]; // of the names of this daemon's segments
    struct socket_lock lock;
    int wake_fd, signal_fd, epoll_fd; // owned; -1 = not open
    int device_mark;                  // of device_mark.h; owned; -1 = none
    bool has_requests;                // listener_fd() is readable
    struct watch request_watch, wake_watch, signal_watch, bell_watch, export_watch;
    struct watch tier_watches[1 + CORE_MAX_TIERS];
    struct side_socket bell;
    struct exports *exports;   // owned; NULL = no memory is exported
    bool no_epoll_pwait2;      // wait.c: the kernel or a system call filter refused it
    uint32_t ring_entries;     // in each ring of a session; 0 = no ring lane
    int64_t ring_spin_ns;      // a ring is polled so long after its last entry or answer
    struct session *awake;     // sessions whose rings are polled, through session->lane
    struct session *sleepers;  // sessions whose lane `has_sleeper`
    struct waker waker;        // writes wake_fd for the engine's threads
    struct groups *groups;     // owned; NULL = none
    struct core_limits others; // of each user of no group
    struct listener *listener; // owned, as the next three
    struct engine *engine;
    struct core *core;
    struct jobs *jobs;
    struct tiering tiering;
    bool guarded;            // sigbus_guard_init() succeeded
    uint64_t segment_deaths; // sigbus_guard_deaths() at the last look at all segments

    struct session *sessions;    // by id, iterated in the order of their handshakes; owned
    uint32_t num_live;           // sessions that are not ENDING
    uint32_t num_ghosts;         // sessions with a ghost; they count for --max-sessions, too
    uint64_t arena_bytes;        // of the segments of all sessions until they are unmapped
    uint64_t max_arena_memory;   // --max-arena-memory; 0 = no limit
    uint64_t device_arena_bytes; // of the device arenas of all sessions: --device-arenas
    uint64_t next_session;       // id of the next one
    struct deferred *deferred;   // messages that wait for an offloaded command; owned
    uint32_t num_offloads;       // jobs and unfinished commands of offload.c
    struct offload *unfinished;  // commands with more pieces, in turn; owned
    struct parked *parked;       // owned
    uint32_t num_parked;
    int64_t next_deadline_ns; // at most the nearest deadline

    uint64_t *message;     // WIRE_MAX_MESSAGE bytes: a private copy of the request in hand; owned
    void *reply;           // WIRE_ENCODE_ROOM bytes: an answer on its way to its client; owned
    bool stopping;         // SIGTERM or SIGINT came, or the device is lost
    unsigned stop_signals; // SIGTERM and SIGINT so far
    bool device_lost;
    int64_t drain_deadline_ns, linger_deadline_ns; // 0 = not yet; see drain.c
    bool finished;                                 // server_run() may return
};

// Makes the dispatcher wake at `deadline_ns` at the latest.
void server_arm(struct server *server, int64_t deadline_ns);
// The following are in drain.c.
void server_read_signals(struct server *server);
void server_step_drain(struct server *server); // call this once a turn; sets `finished`
// Between these two calls SIGTERM and SIGINT end the process at once with server_exit_code(). They
// may be called only when nothing but the lock is left to remove.
void server_unblock_signals(const struct server *server);
void server_block_signals(void);
enum server_exit server_exit_code(const struct server *server);
// Removes the segments, the socket, the doorbell and the lock from the file system. All else ends
// with the process.
void server_remove_traces(const struct server *server);

#endif
