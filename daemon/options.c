// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - the table of aule-daemon's options. base/options.h says what an entry means.

#include "options.h"

#include "schema/ring.h"

#include <stddef.h>
#include <stdio.h>

#define FIELD(KIND, member) OPTION_FIELD(KIND, struct options, member)
#define ONE_TIB             (UINT64_C(1) << 40)
#define AUTO                .word = "auto", .word_value = SERVER_WORK_AUTO, .initial = "auto"

static const char *const tune_words[] = {
    [ENGINE_TUNE_OFF] = "off", [ENGINE_TUNE_ON] = "on", [ENGINE_TUNE_AUTO] = "auto", NULL};
static const char *const fault_words[] = {"corrupt-prefix", NULL}; // from FAULT_CORRUPT_PREFIX

static const struct option entries[] = {
    OPTION_SECTION("Device and kernels"),
    {"device", "WHICH", FIELD(OPTION_TEXT, server.device), 1, .otherwise = "the best one",
     .help = "index, UUID or part of the name of the device, as `--list-devices` shows them"},
    {"list-devices", NULL, FIELD(OPTION_FLAG, list_devices),
     .help = "list the devices, best first, and end",
     .details = "The list also names each device's socket."},
    {"variant", "NAME", FIELD(OPTION_TEXT, server.variant), 1,
     .otherwise = "`$AULE_VARIANT`, else the best that fits",
     .help = "attention shader to use, as `aule-ctl device` lists them",
     .details = "The list says what each shader needs of the device. The daemon refuses a shader "
                "that the device cannot run, and says what is missing."},
    {"max-pipelines", "N", FIELD(OPTION_COUNT, server.max_pipelines), 1, 65536, .initial = "256",
     .help = "compiled shaders to keep, the latest used ones",
     .details = "Each combination of head sizes, block size, data types and features needs a "
                "shader of its own. A shader that was dropped is compiled again when a run needs "
                "it."},
    {"max-scratch", "BYTES", FIELD(OPTION_BYTES, server.max_scratch_bytes), 4096, ONE_TIB,
     .initial = "256M",
     .help = "device memory for partial results of split-KV runs, for one submission",
     .details = "Up to three submissions are in flight at a time. A run that needs more alone is "
                "refused: use fewer splits or fewer sequences."},
    {"force-staging", NULL, FIELD(OPTION_FLAG, server.force_staging),
     .help = "copy arenas around each run even where the device could use them in place"},
    {"validation", NULL, FIELD(OPTION_FLAG, server.validation),
     .help = "run with the Vulkan validation layer; the log has its messages and, at the end, "
             "their number"},

    OPTION_SECTION("Memory and blocks"),
    {"memory-fraction", "F", FIELD(OPTION_NUMBER, server.memory_fraction), 0, 1, .initial = "0.5",
     .help = "part of the device's free memory that the caches may take",
     .details = "The pool grows chunk by chunk up to this limit."},
    {"max-blocks", "N", FIELD(OPTION_COUNT, server.max_blocks), 0, INT32_MAX, .initial = "0",
     .help = "blocks of all caches together; 0: `--memory-fraction` alone limits the pool"},
    {"session-blocks", "N", FIELD(OPTION_COUNT, server.session_blocks), 0, INT32_MAX,
     .initial = "0", .help = "leased and held blocks of a session; 0: no limit"},
    {"max-claimed-blocks", "N", FIELD(OPTION_COUNT, server.max_claimed), 0, INT32_MAX,
     .initial = "65536", .help = "blocks of the prompts that a session's claims name",
     .details = "A look-up may claim the blocks that are missing, so that other sessions wait for "
                "them instead of computing them. The daemon keeps the token ids of these prompts, "
                "and about 150 bytes more for each block, until the claim ends."},
    {"tenant", "SPEC", FIELD(OPTION_TEXTS, server.tenants), 1,
     .otherwise = "each user and tenant name on its own",
     .help = "a group of users that share prefixes and limits: `NAME=uid:N,gid:N,blocks:N,...`",
     .details =
         "Once for each group. `uid:N` and `gid:N` name members; a gid is that of the "
         "process when it connects. `blocks:N` limits leased, held and pinned blocks, "
         "`cached:N` limits other cached blocks, and `floor:N` of these are not evicted for "
         "others; 0 is no limit. A session belongs to the group that its client names as its "
         "tenant, else to the first one with its user. Members may connect even if they are "
         "neither root nor the daemon's user, but then only open sessions and ping."},
    {"tenant-blocks", "N", FIELD(OPTION_COUNT, server.tenant_limits.blocks), 0, INT32_MAX,
     .initial = "0",
     .help = "leased, held and pinned blocks of a tenant without `--tenant`; 0: no limit"},
    {"tenant-cached", "N", FIELD(OPTION_COUNT, server.tenant_limits.cached), 0, INT32_MAX,
     .initial = "0", .help = "other cached blocks of such a tenant; 0: no limit"},
    {"tenant-floor", "N", FIELD(OPTION_COUNT, server.tenant_limits.floor), 0, INT32_MAX,
     .initial = "0", .help = "cached blocks of such a tenant that are not evicted for others"},
    {"max-arena", "BYTES", FIELD(OPTION_BYTES, server.max_arena), 4096, ONE_TIB, .initial = "1G",
     .help = "shared memory of a session; K, M and G are understood"},
    {"max-metadata", "BYTES", FIELD(OPTION_BYTES, server.max_metadata), 4096, ONE_TIB,
     .initial = "64M", .help = "metadata (block tables, token ids) of one command in the arena"},
    {"max-batch-memory", "BYTES", FIELD(OPTION_BYTES, server.max_batch_memory), 0, ONE_TIB,
     .initial = "256M",
     .help = "metadata of batches and arrays of unreaped runs that the daemon keeps for a session; "
             "0: no limit",
     .details = "Metadata are tables, lengths, slots, positions and masks. Arrays are slopes, "
                "sinks, RoPE frequencies, copied blocks (24 bytes for each layer) and merged "
                "parts."},
    {"max-parked-memory", "BYTES", FIELD(OPTION_BYTES, server.max_parked_bytes), 0, ONE_TIB,
     .initial = "16M",
     .help = "arrays of a session's commands that wait for a ticket; 0: a command with arrays does "
             "not wait",
     .details = "Arrays are slopes, sinks, block ids and parts of a merge."},

    OPTION_SECTION("Sessions and runs"),
    {"socket", "PATH", FIELD(OPTION_TEXT, server.socket), 1,
     .otherwise = "`N.sock` in `$AULE_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/aule` or `/run/aule`",
     .help = "where the daemon listens",
     .details = "At most 107 bytes. If the last folder of the path is missing, the daemon makes it "
                "with mode 0700. It makes no folder above that one. See FILES."},
    {"max-connections", "N", FIELD(OPTION_COUNT, server.max_connections), 1, 1u << 20,
     .initial = "1024", .help = "connections at a time, with or without a session",
     .details = "The daemon refuses a further connection with a sentence, and closes it."},
    {"max-sessions", "N", FIELD(OPTION_COUNT, server.max_sessions), 1, 65536, .initial = "256",
     .help = "sessions at a time"},
    {"max-caches", "N", FIELD(OPTION_COUNT, server.max_caches), 1, 65536, .initial = "64",
     .help = "caches at a time"},
    {"max-batches", "N", FIELD(OPTION_COUNT, server.max_batches), 1, 1u << 20, .initial = "1024",
     .help = "live batches of a session"},
    {"max-tickets", "N", FIELD(OPTION_COUNT, server.max_tickets), 1, 1u << 20, .initial = "256",
     .help = "unreaped tickets of a session",
     .details = "As many commands of a session, and 64 more, can wait in the daemon at a time."},
    {"max-offers", "N", FIELD(OPTION_COUNT, server.max_offers), 1, 1u << 20, .initial = "256",
     .help = "sequences that a session offers at a time",
     .details = "As many offers can be taken by a session and not yet accepted."},
    {"max-run-work", "N", FIELD(OPTION_COUNT, server.max_run_work), 0, INT64_MAX, AUTO,
     .help =
         "multiply-adds of one run; 0: no limit; auto: what the device does in well under a minute",
     .details = "The work of a run is the number of its visible pairs of query and key, in whole "
                "tiles, times heads, times the head dims of K and V. A run above the limit is "
                "refused, because a run of minutes would be taken for a lost GPU: split it into "
                "smaller chunks. The runs of one submission together stay under the limit. A "
                "sequence whose keys are not split (num_splits 1, or more than 8 rows a KV head) "
                "occupies one part of the device alone. Its keys times 8 rows times head dims then "
                "count 64 times (2 times on a software device), if that is more. `auto` is "
                "40000000000 on a software device, and 10000000000000 on others."},
    {"map-timeout", "MS", FIELD(OPTION_COUNT, server.map_timeout_ms), 1, INT32_MAX,
     .initial = "10000", .help = "time for a client to map its session's shared memory",
     .details = "The time runs from the answer to the handshake until the client says that it has "
                "mapped the memory. If the client does not, the session ends and its memory is "
                "freed. The library maps at once. Use more where processes stand still for long, "
                "and less where /dev/shm is small."},
    {"drain-timeout", "MS", FIELD(OPTION_COUNT, server.drain_timeout_ms), 0, INT32_MAX,
     .initial = "10000", .help = "after SIGTERM, wait this long for work in flight",
     .details = "The daemon ends at most 3 seconds later, even if the GPU does not come to rest. A "
                "service manager has to wait longer than both together."},

    OPTION_SECTION("Latency"),
    {"ring-entries", "N", FIELD(OPTION_COUNT, server.ring_entries), 0, RING_MAX_ENTRIES,
     .power_of_two = true, .initial = "64",
     .help = "requests that a session may have under way in the ring lane, a power of two; 0: no "
             "ring lane",
     .details = "Requests that find no room go through the socket. Each entry takes 1024 bytes of "
                "the session's segment. Clients use the ring lane unless `AULE_LANE` in their "
                "environment is `nng`. With `AULE_LANE=ring`, a session without the ring lane is "
                "an error. `AULE_RING_SPIN` in their environment is the time in microseconds that "
                "a waiting thread polls before it sleeps (default: 50 where it may use 3 cores or "
                "more, else 0)."},
    {"ring-spin", "US", FIELD(OPTION_COUNT, server.ring_spin_us), 0, 1000000, AUTO,
     .help = "poll a ring for this long before sleeping; auto: 50 with 3 cores, else 0",
     .details = "The time runs from the last request or answer of a ring. After it the daemon "
                "sleeps until the client rings the doorbell. While the GPU does work of a kind "
                "that the daemon has seen before, the daemon sleeps until shortly before the "
                "predicted end. Then it polls, so that the end need not wake it: for this long at "
                "most, or for three times as long after runs were kept waiting. `aule-ctl status` "
                "counts the ends that woke it. Until such an end is near, new runs wait for the "
                "sessions that were just served, so that they share the next dispatch. No run "
                "waits like this with 0, with `--ring-entries 0`, or if the doorbell's path is too "
                "long."},
    {"completion-poll", "US", FIELD(OPTION_COUNT, server.completion_poll_us), 0, 10000, AUTO,
     .help = "poll the GPU for this long around the predicted end of work; auto: 100 on a GPU with "
             "4 cores, else 0",
     .details = "The thread that waits for the GPU sleeps until shortly before work of this kind "
                "usually ends, then polls the GPU for at most this long, and only then blocks. A "
                "blocked thread hears of the end some 20 microseconds later. The thread blocks at "
                "once for work that takes more than 16 times as long. After an end it polls as "
                "long for the next work. The thread that submits polls for more work from the same "
                "moment until as long after the end. 0: never poll."},

    OPTION_SECTION("Tuning"),
    {"tune", "WHEN", FIELD(OPTION_CHOICE, server.tune), ENGINE_TUNE_OFF, .words = tune_words,
     .initial = "auto", .help = "measure which of a kernel's ways to the same bits is the fastest",
     .details = "Some kernels have several ways to the same bits, for example workgroups of "
                "different sizes. With tuning the daemon measures them once for each kind of "
                "dispatch. A kind is a kernel, what it is compiled for, and the numbers of "
                "workgroups and of keys of a sequence in powers of two. It measures with made-up "
                "work in memory of its own, behind the work that first asked. Until then, and "
                "where tuning is off, the kernel's own rule holds. No result depends on tuning. "
                "`auto` means on, except on a software device, where tuning gains nothing."},
    {"tune-time", "MS", FIELD(OPTION_COUNT, server.tune_time_ms), 1, 60000, .initial = "200",
     .help = "time to measure one kind of dispatch",
     .details = "No dispatch of a measurement begins later. Other work waits behind one such "
                "dispatch at most. The shaders to measure are compiled in the background, in "
                "addition to this time."},
    {"tune-memory", "BYTES", FIELD(OPTION_BYTES, server.tune_memory_bytes), 1 << 20, ONE_TIB,
     .initial = "256M", .help = "device memory that a measurement may take",
     .details = "A measurement makes as many keys and values as such work reads, or fewer that it "
                "reads in turns. It never takes more than a quarter of the device's free memory, "
                "and gives the memory back afterwards. What does not fit is not measured, and the "
                "log says so."},
    {"max-tuned", "N", FIELD(OPTION_COUNT, server.max_tuned), 1, 65536, .initial = "256",
     .help = "kinds of dispatches to measure and remember",
     .details =
         "Further kinds keep their kernels' rules. Further entries of the tuning file stay in "
         "the file, unused."},

    OPTION_SECTION("General"),
    {"cache-folder", "FOLDER", FIELD(OPTION_TEXT, cache_folder), 1,
     .otherwise = "`$XDG_CACHE_HOME/aule`, `~/.cache/aule` or `/var/cache/aule`",
     .help = "keep compiled pipelines and measurements there; none: nowhere",
     .details = "Each device has files of its own. The daemon makes the folder if only its last "
                "part is missing, and all parts of the default. /var/cache/aule is for a user "
                "without a home. A tuning file that cannot be read, perhaps because a newer aule "
                "wrote it, is left alone; `aule-ctl tune clear` removes it."},
    {"log-level", "LEVEL", FIELD(OPTION_CHOICE, log_level), LOG_LEVEL_ERROR,
     .words = log_level_names, .initial = "info",
     .help = "how much goes to the log, on standard error"},
    {"fault", "SPEC", FIELD(OPTION_CHOICE, server.fault), FAULT_CORRUPT_PREFIX,
     .words = fault_words, .help = "inject a fault, for tests only",
     .details = "`corrupt-prefix` negates K and V of the first block that is ever published, in "
                "GPU memory, when it becomes visible to others. All results that use the block are "
                "wrong from then on, and a test that compares results must notice."},
};

static const struct options_program program = {
    .name = "aule-daemon",
    .usage = "aule-daemon [OPTION]...",
    .about = "Owns one GPU's attention shaders and one paged KV cache, and serves them to worker "
             "processes.",
    .epilogue = "Exit codes: 0 ended as asked, 1 could not start, 2 the command line is wrong, 3 "
                "the GPU was lost. See aule-daemon(8).",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
};

enum options_result options_parse(int argc, char **argv, struct options *options)
{
    struct options_line line;
    *options = (struct options){.cache_folder = NULL};
    enum options_result result = options_read(&program, argc, argv, options, &line);
    if (result == OPTIONS_RUN && line.num_operands) {
        snprintf(line.error, sizeof line.error, "\"%s\" is no option; see aule-daemon --help",
                 line.operands[0]);
        result = OPTIONS_BAD;
    }
    if (result == OPTIONS_BAD)
        fprintf(stderr, "aule-daemon: %s\n", line.error);
    return result;
}
