// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// params.h - what a user may set of a server: aule-daemon's options, and the struct that they fill.
// The server reads the struct and knows no command line; daemon/options.c does. Thread: main writes
// it before the start, any reads it.

#ifndef AULE_SERVER_PARAMS_H
#define AULE_SERVER_PARAMS_H

#include "base/options.h"
#include "core/core.h"
#include "log.h"

#define SERVER_UNSET UINT64_MAX // of numbers that the server chooses if the user does not

// The options, a line for each; base/options.h explains it. A line NESTED() is a field of
// core_params. daemon/options.c has AUTO and ONE_TIB.
#define DAEMON_OPTIONS(SECTION, OPTION, NESTED)                                                    \
    SECTION("Device and kernels")                                                                  \
    OPTION(const char *, device, "device", "WHICH", OPTION_TEXT, 1, .otherwise = "the best one",   \
           .help =                                                                                 \
               "index, UUID or part of the name of the device, as `--list-devices` shows them")    \
    OPTION(bool, list_devices, "list-devices", NULL, OPTION_FLAG,                                  \
           .help = "list the devices, best first, and end",                                        \
           .details = "The list also names each device's socket.")                                 \
    OPTION(uint64_t, require_gpu_s, "require-gpu", "S", OPTION_COUNT, 0, 86400, .word = "off",     \
           .word_value = SERVER_UNSET, .initial = "off",                                           \
           .help = "refuse a device that runs on the CPU, and wait up to S seconds for a GPU",     \
           .details = "The driver of a GPU may come up after the daemon. `0` refuses at once.")    \
    OPTION(const char *, variant, "variant", "NAME", OPTION_TEXT, 1,                               \
           .otherwise = "`$AULE_VARIANT`, else the best that fits",                                \
           .help = "attention shader to use, as `aule-ctl device` lists them",                     \
           .details = "The list says what each shader needs of the device. The daemon refuses a "  \
                      "shader that the device cannot run, and says what is missing.")              \
    OPTION(                                                                                        \
        uint32_t, max_pipelines, "max-pipelines", "N", OPTION_COUNT, 1, 65536, .initial = "256",   \
        .help = "compiled shaders to keep, the latest used ones",                                  \
        .details =                                                                                 \
            "Each combination of head sizes, block size, data types and features needs a shader "  \
            "of its own. The tenant that has the most of them gives up its own first. A shader "   \
            "that was dropped is compiled again when a run needs it.")                             \
    OPTION(uint64_t, max_scratch_bytes, "max-scratch", "BYTES", OPTION_BYTES, 4096, ONE_TIB,       \
           .initial = "256M",                                                                      \
           .help = "device memory for partial results of split-KV runs, for one submission",       \
           .details = "Up to three submissions are in flight at a time. A run that needs more "    \
                      "alone is refused: use fewer splits or fewer sequences.")                    \
    OPTION(enum engine_haul_mode, transfer_queue, "transfer-queue", "WHEN", OPTION_CHOICE,         \
           ENGINE_HAUL_AUTO,                                                                       \
           OPTION_WORDS([ENGINE_HAUL_AUTO] = "auto", [ENGINE_HAUL_OFF] = "off",                    \
                        [ENGINE_HAUL_ON] = "on", [ENGINE_HAUL_COPIES] = "copies"),                 \
           .initial = "auto",                                                                      \
           .help = "move blocks of tiers on queues of their own, beside the runs",                 \
           .details = "`auto`: where the device has such queues. `off`: by a shader, between the " \
                      "runs. `on`: apart from the runs also without such queues, on the queue of " \
                      "the runs. `copies`: as `on`, but only by copy commands. With `auto` and "   \
                      "`on`, a shader loads blocks while there are no runs, and helps copy "       \
                      "engines with stores. It does so beside runs, too, if the device has "       \
                      "several compute queues, but no transfer queues; and never if the device "   \
                      "has transfer queues, but one compute queue.")                               \
    OPTION(bool, validation, "validation", NULL, OPTION_FLAG,                                      \
           .help = "run with the Vulkan validation layer; the log has its messages and, at the "   \
                   "end, their number")                                                            \
    SECTION("Memory and blocks")                                                                   \
    OPTION(double, memory_fraction, "memory-fraction", "F", OPTION_NUMBER, 0, 1, .initial = "0.5", \
           .help = "part of the device's free memory that the caches may take",                    \
           .details = "The pool grows chunk by chunk up to this limit.")                           \
    NESTED(uint64_t, core.max_blocks, "max-blocks", "N", OPTION_COUNT, 0, INT32_MAX,               \
           .initial = "0",                                                                         \
           .help = "blocks of all caches together, of which a cache gets whole chunks; 0: "        \
                   "`--memory-fraction` alone limits the pool",                                    \
           .details = "A chunk has a power of two of blocks: at most 512, and at most a quarter "  \
                      "of N. So with N = 9 a cache gets at most 8 blocks.")                        \
    NESTED(uint32_t, core.spare_blocks, "spare-blocks", "N", OPTION_COUNT, 0, INT32_MAX,           \
           .initial = "128",                                                                       \
           .help = "free blocks that each open cache keeps ready, as far as memory allows; 0: a "  \
                   "cache grows only when a lease needs it",                                       \
           .details = "A cache grows when it is opened, and when a lease leaves it fewer free "    \
                      "blocks than this. So leases need not wait for the device's memory. A "      \
                      "cache never grows ahead beyond `--memory-fraction` or `--max-blocks`, and " \
                      "never evicts blocks for it; what it has ahead goes to other caches that "   \
                      "need it. With more blocks than the pool may have, the first cache takes "   \
                      "all memory at once.")                                                       \
    NESTED(uint32_t, core.export_pool, "export-pool", "N", OPTION_COUNT, 0, 1u << 24,              \
           .power_of_two = true, .initial = "0",                                                   \
           .help = "make N blocks for each cache at once, a power of two, which attached "         \
                   "processes may use in place; 0: caches grow, and none may",                     \
           .details = "Processes of the daemon's user can then map the memory of a cache and run " \
                      "their own kernels over it. They can write every block of the cache, also "  \
                      "those of others: see docs/gpu-workers.md and SECURITY.md. The memory of a " \
                      "cache is made when the cache is, and never grows, shrinks or moves to "     \
                      "another cache. The device must be able to export memory.")                  \
    NESTED(uint64_t, core.quota_blocks, "session-blocks", "N", OPTION_COUNT, 0, INT32_MAX,         \
           .initial = "0", .help = "leased and held blocks of a session; 0: no limit")             \
    NESTED(uint64_t, core.max_claimed, "max-claimed-blocks", "N", OPTION_COUNT, 0, INT32_MAX,      \
           .initial = "65536", .help = "blocks of the prompts that a session's claims name",       \
           .details =                                                                              \
               "A look-up may claim the blocks that are missing, so that other sessions wait for " \
               "them instead of computing them. The daemon keeps the token ids of these prompts, " \
               "and about 150 bytes more for each block, until the claim ends.")                   \
    OPTION(uint32_t, claim_timeout_ms, "claim-timeout", "MS", OPTION_COUNT, 0, INT32_MAX,          \
           .initial = "60000",                                                                     \
           .help = "time without progress after which other sessions compute what a claim names; " \
                   "0: never",                                                                     \
           .details =                                                                              \
               "A claim makes progress when its session publishes or takes a block of it. Time "   \
               "in which its next block is another session's to compute does not count. A block "  \
               "that the late session publishes after all is found as any other.")                 \
    OPTION(                                                                                        \
        struct option_texts, tenants, "tenant", "SPEC", OPTION_TEXTS, 1,                           \
        .otherwise = "each user on its own",                                                       \
        .help =                                                                                    \
            "a group of users that share prefixes and limits: `NAME=uid:N,gid:N,blocks:N,...`; "   \
            "or the limits of each other user: `*=blocks:N,cached:N,floor:N`",                     \
        .details =                                                                                 \
            "Once for each group, and once for `*`. `uid:N` and `gid:N` name members; a gid is "   \
            "that of the process "                                                                 \
            "when it connects. `blocks:N` limits leased, held and pinned blocks, `cached:N` "      \
            "limits other cached blocks, and `floor:N` of these are not evicted for others; 0 is " \
            "no limit. `connections:N` and `sessions:N` limit what the members may have of "       \
            "`--max-connections` and `--max-sessions`; in place of `--tenant-share`. A session "   \
            "belongs to the group that its client names as its tenant, else "                      \
            "to the first one with its user. Members may connect even if they are neither root "   \
            "nor the daemon's user, but then only open sessions and ping.")                        \
    NESTED(double, core.tenant_share, "tenant-share", "F", OPTION_NUMBER, 0, 1, .initial = "0.75", \
           .help = "part of what others leave that one group of `--tenant` may take; 1: all",      \
           .details = "It holds for `--max-connections`, `--max-sessions`, "                       \
                      "`--max-caches`, `--max-arena-memory`, `--device-arenas` and "               \
                      "`--max-host-memory`. Users without a group, who are the daemon's user and " \
                      "root, have no such limit.")                                                 \
    NESTED(double, core.tenant_pinned, "tenant-pinned", "F", OPTION_NUMBER, 0, 1,                  \
           .initial = "0.5",                                                                       \
           .help = "part of the pool that the pinned blocks of one tenant may take",               \
           .details = "A tenant is a group of `--tenant`, or a user without one.")                 \
    OPTION(uint32_t, tenant_timeout_s, "tenant-timeout", "S", OPTION_COUNT, 0, INT32_MAX,          \
           .initial = "3600",                                                                      \
           .help = "seconds after a tenant's last session at which its floor ends and its "        \
                   "prefixes are unpinned; 0: never",                                              \
           .details = "The blocks stay cached until others need the room. The floor holds again "  \
                      "when a session of the tenant comes.")                                       \
    OPTION(                                                                                        \
        uint64_t, host_tier, "host-tier", "BYTES", OPTION_BYTES, 0, 16 * ONE_TIB, AUTO,            \
        .help = "host memory for blocks that leave the GPU; 0: they are dropped; auto: 256M, "     \
                "which transfers need, with `--tier`, else 0",                                     \
        .details =                                                                                 \
            "The daemon locks this memory and lets the GPU use it. Published blocks are copied "   \
            "to it, and come back when a look-up needs them. A tenant's limits of cached blocks "  \
            "and its floor hold there, too.")                                                      \
    OPTION(struct option_texts, tiers, "tier", "URL", OPTION_TEXTS, 1, .otherwise = "none",        \
           .help = "a place outside the GPU for blocks, which daemons may share; once for each",   \
           .details =                                                                              \
               "`redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]` is a Redis or Valkey server, "  \
               "several, or a cluster; `rediss://` is the same with TLS; `files:///FOLDER` keeps " \
               "files. At most 4 tiers; they "                                                     \
               "are asked in this order, after the host tier. Options follow a `?`, and each "     \
               "other with a `&`. Of Redis: "                                                      \
               "`password-file=FILE` (its first line is the password; only its owner may be able " \
               "to open it), `ca=FILE` "                                                           \
               "(certificates that vouch for the servers, else the system's) and `cert=FILE` "     \
               "(the daemon's own certificate, and its key), both PEM, "                           \
               "`expire=S` (a server drops a block after so many seconds; 0: never; 86400), "      \
               "`connections=N` (to all servers; each has at least one; 8), "                      \
               "`absent=MS` (a block that a server lacked is not asked for again for so long; "    \
               "2000) and `queue=BYTES` "                                                          \
               "(blocks that wait to be stored; 256M). Of files: `size=BYTES` (of all files; "     \
               "64G). The daemon overwrites the login in its own arguments; "                      \
               "`password-file` keeps it out of them.")                                            \
    OPTION(uint32_t, tier_deadline_ms, "tier-deadline", "MS", OPTION_COUNT, 1, 60000,              \
           .initial = "50",                                                                        \
           .help = "time for one operation of a tier; what has not come then is computed",         \
           .details = "A long load is several operations, and ends with the first that fails. A "  \
                      "server that moves no byte for so long has failed. After 8 times as long "   \
                      "the daemon waits for the operation no more; its memory is not used again "  \
                      "before it has ended.")                                                      \
    OPTION(uint32_t, max_tier_jobs, "max-tier-jobs", "N", OPTION_COUNT, 2, 65536, .initial = "64", \
           .help = "loads and stores of tiers at a time",                                          \
           .details = "With more under way, blocks are computed instead of loaded, and are "       \
                      "stored later.")                                                             \
    OPTION(                                                                                        \
        uint64_t, tier_threads, "tier-threads", "N", OPTION_COUNT, 1, 1024, AUTO,                  \
        .help = "threads that check the blocks of tiers; auto: three quarters of the cores, 12 "   \
                "at most",                                                                         \
        .details = "They compute the checksums of blocks that are stored and loaded. Use fewer "   \
                   "where workers need the cores.")                                                \
    OPTION(const char *, tier_key, "tier-key", "FILE", OPTION_TEXT, 1,                             \
           .otherwise = "an empty key",                                                            \
           .help = "key for the names of blocks in tiers, 16 to 4096 bytes",                       \
           .details = "Daemons that share a tier need the same key. Without the key nobody can "   \
                      "tell which tenant a name belongs to.")                                      \
    OPTION(uint64_t, max_arena, "max-arena", "BYTES", OPTION_BYTES, 4096, ONE_TIB,                 \
           .initial = "1G", .help = "shared memory of a session; K, M and G are understood")       \
    OPTION(uint64_t, max_arena_memory, "max-arena-memory", "BYTES", OPTION_BYTES, 0, ONE_TIB,      \
           AUTO, .help = "shared memory of all sessions; 0: no limit; auto: half of /dev/shm",     \
           .details = "A session takes all its shared memory at once, so that neither side can "   \
                      "find /dev/shm full later.")                                                 \
    OPTION(uint64_t, device_arenas, "device-arenas", "BYTES", OPTION_BYTES, 0, ONE_TIB,            \
           .initial = "4G", .help = "device memory of all sessions' device arenas; 0: none",       \
           .details =                                                                              \
               "A session may have an arena in GPU memory, which its process imports: see "        \
               "docs/gpu-workers.md. The device gives the memory when a session asks. A process "  \
               "that has imported it keeps it until the process lets go or ends.")                 \
    OPTION(uint64_t, max_metadata, "max-metadata", "BYTES", OPTION_BYTES, 4096, ONE_TIB,           \
           .initial = "64M",                                                                       \
           .help = "metadata (block tables, token ids) of one command in the arena")               \
    NESTED(                                                                                        \
        uint64_t, core.max_batch_memory, "max-batch-memory", "BYTES", OPTION_BYTES, 0, ONE_TIB,    \
        .initial = "256M",                                                                         \
        .help = "metadata of batches and arrays of unreaped runs that the daemon keeps for a "     \
                "session, and as much for commands that wait; 0: no limit",                        \
        .details =                                                                                 \
            "Metadata are tables, lengths, slots, positions and masks. Arrays are slopes, sinks, " \
            "RoPE frequencies, copied blocks (24 bytes for each layer) and merged parts. "         \
            "Commands that wait for a ticket have arrays, too, and look-ups that wait for tiers "  \
            "have token ids. A look-up that does not fit is answered without what tiers have.")    \
    NESTED(uint64_t, core.max_memory, "max-host-memory", "BYTES", OPTION_BYTES, 0, ONE_TIB,        \
           .initial = "2G",                                                                        \
           .help =                                                                                 \
               "host memory that the daemon keeps for all sessions: what `--max-batch-memory` "    \
               "limits, and claims; 0: no limit")                                                  \
    SECTION("Sessions and runs")                                                                   \
    OPTION(const char *, socket, "socket", "PATH", OPTION_TEXT, 1,                                 \
           .otherwise = "`N.sock` in `$AULE_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/aule` or `/run/aule`", \
           .help = "where the daemon listens",                                                     \
           .details = "At most 107 bytes. If the last folder of the path is missing, the daemon "  \
                      "makes it with mode 0700. It makes no folder above that one. See FILES.")    \
    OPTION(uint32_t, max_connections, "max-connections", "N", OPTION_COUNT, 1, 1u << 20,           \
           .initial = "1024", .help = "connections at a time, with or without a session",          \
           .details =                                                                              \
               "The daemon refuses a further connection with a sentence, and closes it. Users of " \
               "`--tenant` groups have three quarters of them at most. A group has half of them, " \
               "or `connections:N`. One user of a group has half of these, unless the group is "   \
               "this one user. The same shares hold for `--max-sessions`, with `sessions:N`. "     \
               "The socket that passes descriptors of GPU memory has a sixteenth as many, of its " \
               "own: each ends with its answer, or after two seconds, and others wait. The "       \
               "control socket has 32 connections of its own.")                                    \
    OPTION(uint32_t, idle_timeout_s, "idle-timeout", "S", OPTION_COUNT, 1, INT32_MAX,              \
           .initial = "300",                                                                       \
           .help = "end a connection without a session that asks nothing for so many seconds, "    \
                   "and a session whose shared memory its client has not mapped after them",       \
           .details = "The library connects anew by itself when such a client asks again, and it " \
                      "maps a session's memory at once.")                                          \
    OPTION(uint64_t, max_message_memory, "max-message-memory", "BYTES", OPTION_BYTES, 4 << 20,     \
           ONE_TIB, .initial = "64M",                                                              \
           .help =                                                                                 \
               "requests that are not whole and answers that are not read, of all connections",    \
           .details =                                                                              \
               "With more, the user with the most of it loses the connection that stands still "   \
               "for the longest time. A request must be whole after 30 seconds in any case. "      \
               "While a client leaves 256 KiB of answers unread, its requests are not read.")      \
    NESTED(uint32_t, core.max_sessions, "max-sessions", "N", OPTION_COUNT, 1, 65536,               \
           .initial = "256", .help = "sessions at a time")                                         \
    NESTED(uint32_t, core.max_caches, "max-caches", "N", OPTION_COUNT, 1, 65536, .initial = "64",  \
           .help = "caches at a time")                                                             \
    NESTED(uint32_t, core.max_batches, "max-batches", "N", OPTION_COUNT, 1, 1u << 20,              \
           .initial = "1024", .help = "live batches of a session")                                 \
    NESTED(uint32_t, core.max_tickets, "max-tickets", "N", OPTION_COUNT, 1, 1u << 20,              \
           .initial = "256",                                                                       \
           .help = "unreaped tickets of a session, and sequences that it offers at a time",        \
           .details =                                                                              \
               "As many commands of a session, and 64 more, can wait in the daemon at a time. As " \
               "many offers can be taken by a session and not yet accepted.")                      \
    NESTED(uint64_t, core.max_run_work, "max-run-work", "N", OPTION_COUNT, 0, INT64_MAX, AUTO,     \
           .help = "most work of one layer of a run, in multiply-adds; 0: no limit; auto: what "   \
                   "the device does in about a minute or less",                                    \
           .details =                                                                              \
               "The work of a run is the number of its visible pairs of query and key, in whole "  \
               "tiles, times heads, times the head dims of K and V and 128. What moves K and V "   \
               "counts its bytes and 32768 a row. docs/operating.md has the rest. A run above "    \
               "the limit is refused: split it into smaller chunks. The runs of one submission "   \
               "together stay under the limit. A "                                                 \
               "sequence whose keys are not split (num_splits 1, or more than 8 rows a KV head) "  \
               "occupies one part of the device alone. Its keys times 8 rows times head dims "     \
               "then count 64 times (2 times on a software device), if that is more. `auto` is "   \
               "40000000000 on a software device, and 20000000000000 on others.")                  \
    OPTION(uint32_t, drain_timeout_ms, "drain-timeout", "MS", OPTION_COUNT, 0, INT32_MAX,          \
           .initial = "10000", .help = "after SIGTERM, wait this long for work in flight",         \
           .details = "The daemon ends at most 3 seconds later, even if the GPU does not come to " \
                      "rest. A service manager has to wait longer than both together. Stores of "  \
                      "a tier that does not answer are given up 2 seconds earlier.")               \
    SECTION("Latency")                                                                             \
    OPTION(uint32_t, ring_entries, "ring-entries", "N", OPTION_COUNT, 0, RING_MAX_ENTRIES,         \
           .power_of_two = true, .initial = "64",                                                  \
           .help = "requests that a session may have under way in the ring lane, a power of two; " \
                   "0: no ring lane",                                                              \
           .details = "Requests that find no room go through the socket. Each entry takes 1024 "   \
                      "bytes of the session's segment. Clients use the ring lane unless "          \
                      "`AULE_LANE` in their environment is `nng`. With `AULE_LANE=ring`, a "       \
                      "session without the ring lane is an error. `AULE_RING_SPIN` in their "      \
                      "environment is the time in microseconds that a waiting thread polls "       \
                      "before it sleeps (default: 50 where it may use 3 cores or more, else 0).")  \
    OPTION(                                                                                        \
        uint64_t, ring_spin_us, "ring-spin", "US", OPTION_COUNT, 0, 1000000, AUTO,                 \
        .help = "poll a ring for this long before sleeping; auto: 50 with 3 cores, else 0",        \
        .details =                                                                                 \
            "The time runs from the last request or answer of a ring. After it the daemon sleeps " \
            "until the client rings the doorbell. While the GPU does work of a kind that the "     \
            "daemon has seen before, the daemon sleeps until shortly before the predicted end. "   \
            "Then it polls, so that the end need not wake it: for this long at most, or for "      \
            "three times as long after runs were kept waiting. `aule-ctl status` counts the ends " \
            "that woke it. Until such an end is near, new runs wait for the sessions that were "   \
            "just served, so that they share the next dispatch. No run waits like this with 0 or " \
            "with `--ring-entries 0`.")                                                            \
    OPTION(uint64_t, completion_poll_us, "completion-poll", "US", OPTION_COUNT, 0, 10000, AUTO,    \
           .help = "poll the GPU for this long around the predicted end of work; auto: 100 on a "  \
                   "GPU with 4 cores, else 0",                                                     \
           .details =                                                                              \
               "The thread that waits for the GPU sleeps until shortly before work of this kind "  \
               "usually ends, then polls the GPU for at most this long, and only then blocks. A "  \
               "blocked thread hears of the end some 20 microseconds later. The thread blocks at " \
               "once for work that takes more than 16 times as long. After an end it polls as "    \
               "long for the next work. The thread that submits polls for more work from the "     \
               "same moment until as long after the end. 0: never poll.")                          \
    SECTION("General")                                                                             \
    OPTION(const char *, cache_folder, "cache-folder", "FOLDER", OPTION_TEXT, 1,                   \
           .otherwise = "`$XDG_CACHE_HOME/aule`, `~/.cache/aule` or `/var/cache/aule`",            \
           .help = "keep compiled pipelines there; none: nowhere",                                 \
           .details =                                                                              \
               "Each device has files of its own. The daemon makes the folder if only its last "   \
               "part is missing, and all parts of the default. /var/cache/aule is for a user "     \
               "without a home.")                                                                  \
    OPTION(enum log_level, log_level, "log-level", "LEVEL", OPTION_CHOICE, LOG_LEVEL_ERROR,        \
           .words = log_level_names, .initial = "info",                                            \
           .help = "how much goes to the log, on standard error")

// Text that is not given is NULL. Strings are the caller's. main() replaces cache_folder and
// variant by the names that hold, and reads log_level and list_devices alone.
struct server_params {
    DAEMON_OPTIONS(OPTION_NO_MEMBER, OPTION_MEMBER, OPTION_NO_MEMBER)
    struct core_params core;     // the server's copy gets what is no option
    const char *compile_program; // as in engine_params
    char *lines; // the options as options_print_values() writes them; NULL: not known
};

#endif
