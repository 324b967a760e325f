// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - what the dispatcher thread owns, and what the files of server/ share. Nothing here is
// touched by another thread, except what a running job has been given, and `waker`, which is the
// engine's threads' too.

#ifndef AULE_SERVER_STATE_H
#define AULE_SERVER_STATE_H

#include "base/clock.h"
#include "base/hash.h"
#include "core/core.h"
#include "jobs.h"
#include "listener.h"
#include "schema/ring.h"
#include "schema/wire.h"
#include "segment.h"
#include "server.h"
#include "socket_path.h"
#include "waker.h"
#include "work.h"

// What a descriptor in the dispatcher's epoll set means.
enum watch_kind { WATCH_REQUESTS, WATCH_WAKE, WATCH_SIGNALS, WATCH_OWNER, WATCH_BELL };
struct watch {
    enum watch_kind kind;
    struct session *session; // WATCH_OWNER
};

// Who is to have an answer, and on which lane.
struct asker {
    struct route route;   // nng's, unless `ring` is given
    struct session *ring; // by the ring of this one
    uint32_t sequence;    // of the submission
    bool waits;           // for the end of its Run, which is answered as a Wait is
    int64_t deadline_ns;  // then, of the wait for a ticket and of that for its end together
    uint64_t ticket;      // then, once the Run has one; 0 = none
};

// A session's end of its rings: lane.c.
struct lane {
    struct ring_daemon ring;
    bool open, awake;
    int64_t busy_ns;             // when something came last
    struct session *prev, *next; // server->awake
};

enum session_stage {
    SESSION_MAKING,   // the job thread makes its segment; Hello is not answered yet
    SESSION_UNMAPPED, // answered; waits for Mapped
    SESSION_OPEN,
    SESSION_ENDING, // closed in core; its arena lives until the GPU is past it
};

struct session {
    uint64_t id;
    enum session_stage stage;
    struct server *server;
    struct peer *peer;   // NULL once its connection or it has gone
    char *name, *tenant; // owned
    char label[320];     // "session 7 (worker, pid 123)", for logs
    uint64_t pid;
    uint32_t uid;
    struct segment segment;     // owned
    struct engine_arena *arena; // owned; NULL without an arena
    bool imported;
    struct core_session *core; // NULL while MAKING and ENDING
    int pidfd;                 // owned; -1 = none
    struct watch watch;        // of pidfd
    int64_t opened_ns, map_deadline_ns;
    uint32_t num_parked, num_parked_work; // park.c
    uint64_t parked_bytes;                // park.c: what its parked work keeps, --max-parked-memory
    uint64_t waiting_pass;                // park.c: in this pass some of its work found no ticket
    struct job job;                       // makes, later unmakes, the segment
    struct asker hello;                   // who waits for the making
    uint32_t minor;                       // of the client's protocol
    struct error job_error;
    struct lane lane;
    bool abandoned;    // ended while the job thread made its segment
    bool unmaking;     // its segment belongs to the job thread for good
    UT_hash_handle hh; // by id
};

// A command that waits: for blocks, for a ticket's end, for a free ticket.
enum parked_kind { PARKED_LEASE, PARKED_WAIT, PARKED_WORK };
struct parked {
    enum parked_kind kind;
    struct session *session;
    struct asker asker;
    int64_t deadline_ns;
    bool
        only_growth; // LEASE with timeout 0: waits for a chunk that is on its way, for nothing else
    union {
        struct {
            uint64_t cache;
            uint32_t count;
        } lease;
        uint64_t ticket;
        struct work work; // owned
    };
    uint64_t bytes;             // that `work` keeps
    struct parked *prev, *next; // in the order of arrival
};

struct server {
    const struct server_params *params;
    uint64_t epoch;
    int64_t started_ns;
    char socket[SOCKET_PATH_ROOM];
    char segment_prefix[SEGMENT_PREFIX_ROOM];
    struct socket_lock lock;
    int wake_fd, signal_fd, epoll_fd, bell_fd;
    struct watch request_watch, wake_watch, signal_watch, bell_watch;
    char bell_path[SOCKET_PATH_ROOM];
    const char *bell_name; // inside it
    bool no_epoll_pwait2;  // wait.c: the kernel, or a filter, refused it
    uint32_t ring_entries; // that sessions get; 0 = no ring lane
    int64_t
        ring_spin_ns; // after its last entry or answer a ring is looked at so long before it sleeps
    struct session *awake; // whose rings are looked at in every turn
    struct waker waker;    // wake_fd, for the engine
    struct listener *listener;
    struct engine *engine;
    struct core *core;
    struct jobs *jobs;
    bool guarded; // sigbus_guard_init() succeeded

    struct session *sessions; // by id, in the order of their handshakes; owned
    uint32_t num_live;        // sessions that are not ENDING
    uint64_t next_session;
    uint32_t num_connections; // without those that are too many
    struct refused {
        struct peer *peer;
        struct refused *next;
    } * refused; // connections of other users, or too many, to be closed soon
    struct parked *parked;
    uint32_t num_parked, num_parked_leases;
    uint64_t park_pass;       // of park_retry(), from 1
    int64_t next_deadline_ns; // no deadline lies before this one; may be early
    bool retry;               // something was given back: try the parked commands

    uint64_t *message; // WIRE_MAX_MESSAGE bytes, aligned: the private copy of the request in hand
    bool stopping;     // SIGTERM came, or the device is lost
    unsigned stop_signals;
    bool device_lost;
    int64_t drain_deadline_ns, linger_deadline_ns;
    bool finished;
    struct fault_state fault;
};

// Remember that something is to happen at `deadline_ns`.
void server_arm(struct server *server, int64_t deadline_ns);
void server_read_signals(struct server *server); // drain.c
void server_step_drain(struct server *server);   // drain.c: decides when the dispatcher may end
// drain.c: between the two SIGTERM and SIGINT end the process at once, its code as
// server_exit_code(); of all that server_remove_traces() removes only the lock may be left.
void server_unblock_signals(const struct server *server);
void server_block_signals(void);
enum server_exit server_exit_code(const struct server *server);
// drain.c: segments, socket and lock, which would stay behind; everything else ends with the
// process.
void server_remove_traces(const struct server *server);

#endif
