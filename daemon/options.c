// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - see options.h.

#include "options.h"

#include "ring.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { SWITCH, TEXT, COUNT32, COUNT64, ENTRIES, WORK, BYTES, FRACTION, LEVEL, FAULT, TUNE };

struct option {
    const char *name, *value, *help;
    enum kind kind;
    size_t offset;        // of the field in struct options
    uint64_t least, most; // numbers
    const char *initial;  // as on the command line; NULL = absent
};

#define FIELD(field) offsetof(struct options, field)
#define ONE_TIB      (UINT64_C(1) << 40)

static const struct option options[] = {
    {"device", "WHICH", "index, UUID or part of the name of the device; the best one if not given", TEXT,
     FIELD(server.device), 0, 0, NULL},
    {"list-devices", NULL, "list the devices, best first, and end", SWITCH, FIELD(list_devices), 0, 0, NULL},
    {"socket", "PATH", "where to listen; else N.sock in $AULE_RUNTIME_DIR, $XDG_RUNTIME_DIR/aule or /run/aule", TEXT,
     FIELD(server.socket), 0, 0, NULL},
    {"max-blocks", "N", "blocks of all caches together; 0: --memory-fraction alone limits", COUNT64,
     FIELD(server.max_blocks), 0, INT32_MAX, "0"},
    {"memory-fraction", "F", "part of the device's free memory that the caches may take", FRACTION,
     FIELD(server.memory_fraction), 0, 0, "0.5"},
    {"max-sessions", "N", "sessions at a time", COUNT32, FIELD(server.max_sessions), 1, 65536, "256"},
    {"max-connections", "N", "connections at a time, with or without a session", COUNT32, FIELD(server.max_connections),
     1, 1u << 20, "1024"},
    {"max-caches", "N", "caches at a time", COUNT32, FIELD(server.max_caches), 1, 65536, "64"},
    {"max-batches", "N", "live batches a session", COUNT32, FIELD(server.max_batches), 1, 1u << 20, "1024"},
    {"max-batch-memory", "BYTES",
     "metadata of batches and arrays of unreaped runs that the daemon keeps for a session; 0: no limit", BYTES,
     FIELD(server.max_kept_bytes), 0, ONE_TIB, "256M"},
    {"max-tickets", "N", "unreaped tickets a session", COUNT32, FIELD(server.max_tickets), 1, 1u << 20, "256"},
    {"max-run-work", "N", "multiply-adds of one run; 0: no limit; auto: what the device does in well under a minute",
     WORK, FIELD(server.max_run_work), 0, INT64_MAX, "auto"},
    {"ring-entries", "N",
     "requests that a session may have under way in the ring lane, a power of two; 0: no ring lane", ENTRIES,
     FIELD(server.ring_entries), 0, RING_MAX_ENTRIES, "64"},
    {"ring-spin", "US",
     "after a ring's last request or answer, and about the predicted end of work, look so long before sleeping; "
     "auto: 50 with 3 cores, else 0",
     WORK, FIELD(server.ring_spin_us), 0, 1000000, "auto"},
    {"completion-poll", "US",
     "about the predicted end of work, look so long before sleeping; auto: 100 on a GPU with 4 cores, else 0", WORK,
     FIELD(server.completion_poll_us), 0, 10000, "auto"},
    {"max-pipelines", "N", "compiled shaders to keep, the latest used ones", COUNT32, FIELD(server.max_pipelines), 1,
     65536, "256"},
    {"max-scratch", "BYTES", "the device's memory for partial results of runs whose keys are split, of one submission",
     BYTES, FIELD(server.max_scratch_bytes), 4096, ONE_TIB, "256M"},
    {"variant", "NAME",
     "attention shader to use, as aule-ctl device lists them; else $AULE_VARIANT, else the best that fits", TEXT,
     FIELD(server.variant), 0, 0, NULL},
    {"session-blocks", "N", "leased and held blocks a session; 0: no limit", COUNT64, FIELD(server.session_blocks), 0,
     INT32_MAX, "0"},
    {"max-arena", "BYTES", "shared memory a session; K, M and G are understood", BYTES, FIELD(server.max_arena), 4096,
     ONE_TIB, "1G"},
    {"max-metadata", "BYTES", "metadata that one command may have in the arena", BYTES, FIELD(server.max_metadata),
     4096, ONE_TIB, "64M"},
    {"max-parked-memory", "BYTES", "arrays of a session's commands that wait for a ticket; 0: none such waits", BYTES,
     FIELD(server.max_parked_bytes), 0, ONE_TIB, "16M"},
    {"map-timeout", "MS", "a client has so long to map its session's shared memory, else the session ends", COUNT32,
     FIELD(server.map_timeout_ms), 1, INT32_MAX, "10000"},
    {"drain-timeout", "MS", "after SIGTERM, wait this long for work in flight", COUNT32, FIELD(server.drain_timeout_ms),
     0, INT32_MAX, "10000"},
    {"force-staging", NULL, "copy arenas around each run even where the device could use them in place", SWITCH,
     FIELD(server.force_staging), 0, 0, NULL},
    {"validation", NULL, "run with the Vulkan validation layer; its messages are logged and counted", SWITCH,
     FIELD(server.validation), 0, 0, NULL},
    {"cache-folder", "FOLDER",
     "keep compiled pipelines and measurements there; none: nowhere; else $XDG_CACHE_HOME/aule, ~/.cache/aule or "
     "/var/cache/aule",
     TEXT, FIELD(cache_folder), 0, 0, NULL},
    {"tune", "WHEN",
     "measure which of the ways that give the same bits is the fastest: on, off, or auto: on but for software devices",
     TUNE, FIELD(server.tune), 0, 0, "auto"},
    {"tune-time", "MS", "that measuring may take for one kind of dispatch", COUNT32, FIELD(server.tune_time_ms), 1,
     60000, "200"},
    {"tune-memory", "BYTES", "the device's memory that measuring may take meanwhile", BYTES,
     FIELD(server.tune_memory_bytes), 1 << 20, ONE_TIB, "256M"},
    {"max-tuned", "N", "kinds of dispatches to measure and remember", COUNT32, FIELD(server.max_tuned), 1, 65536,
     "256"},
    {"log-level", "LEVEL", "error, warn, info or debug", LEVEL, FIELD(log_level), 0, 0, "info"},
    {"fault", "SPEC", "for tests only: corrupt-prefix spoils the first published block", FAULT, FIELD(server.fault), 0,
     0, NULL},
    {"version", NULL, "print the version and end", SWITCH, FIELD(version), 0, 0, NULL},
    {"help", NULL, "print this and end", SWITCH, FIELD(help), 0, 0, NULL},
};
enum { NUM_OPTIONS = sizeof options / sizeof options[0] };

// ---- values ----

static bool parse_number(const char *text, bool with_unit, uint64_t *out)
{
    char *end;
    errno = 0;
    if (text[0] < '0' || text[0] > '9')
        return false; // strtoull would take a sign and spaces
    unsigned long long number = strtoull(text, &end, 10);
    static const char units[] = "KMG";
    const char *unit = with_unit && *end ? strchr(units, *end) : NULL;
    unsigned shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;
    if (unit)
        end++;
    if (errno || *end || number > (UINT64_MAX >> shift))
        return false;
    *out = (uint64_t)number << shift;
    return true;
}

// What else than digits a number may have.
static const char *allowed(enum kind kind)
{
    switch (kind) {
    case BYTES: return " (K, M, G allowed)";
    case WORK: return " in digits, or auto,";
    default: return "";
    }
}

static enum status set_number(const struct option *option, const char *text, void *field, struct error *error)
{
    uint64_t number;
    if (!parse_number(text, option->kind == BYTES, &number) || number < option->least || number > option->most)
        return error_set(error, STATUS_INVALID,
                         "--%s \"%s\": a whole number from %" PRIu64 " to %" PRIu64 "%s is wanted", option->name, text,
                         option->least, option->most, allowed(option->kind));
    if (option->kind == ENTRIES && number && !ring_good_number((uint32_t)number))
        return error_set(error, STATUS_INVALID, "--%s %s is no power of two", option->name, text);
    if (option->kind == COUNT32 || option->kind == ENTRIES)
        *(uint32_t *)field = (uint32_t)number;
    else
        *(uint64_t *)field = number;
    return STATUS_OK;
}

static enum status set_fraction(const struct option *option, const char *text, double *field, struct error *error)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !isfinite(number) || number <= 0 || number > 1)
        return error_set(error, STATUS_INVALID, "--%s \"%s\": a number above 0 and up to 1 is wanted", option->name,
                         text);
    *field = number;
    return STATUS_OK;
}

static bool parse_tune(const char *text, enum engine_tune *out)
{
    static const char *const names[] = {
        [ENGINE_TUNE_OFF] = "off", [ENGINE_TUNE_ON] = "on", [ENGINE_TUNE_AUTO] = "auto"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum engine_tune)i;
            return true;
        }
    return false;
}

static const char *words_of(enum kind kind)
{
    switch (kind) {
    case LEVEL: return "error, warn, info or debug";
    case TUNE: return "on, off or auto";
    case FAULT: return "corrupt-prefix";
    default: return "another word"; // no other kind is of words
    }
}

static enum status set_value(const struct option *option, const char *text, struct options *out, struct error *error)
{
    void *field = (char *)out + option->offset;
    switch (option->kind) {
    case SWITCH: *(bool *)field = true; return STATUS_OK;
    case TEXT:
        if (!text[0])
            return error_set(error, STATUS_INVALID, "--%s \"\": a value is wanted", option->name);
        *(const char **)field = text;
        return STATUS_OK;
    case WORK:
        if (strcmp(text, "auto") == 0) {
            *(uint64_t *)field = SERVER_WORK_AUTO;
            return STATUS_OK;
        }
        return set_number(option, text, field, error);
    case COUNT32:
    case COUNT64:
    case ENTRIES:
    case BYTES: return set_number(option, text, field, error);
    case FRACTION: return set_fraction(option, text, field, error);
    case LEVEL:
        if (log_parse_level(text, field))
            return STATUS_OK;
        break;
    case TUNE:
        if (parse_tune(text, field))
            return STATUS_OK;
        break;
    case FAULT:
        if (fault_parse(text, field))
            return STATUS_OK;
        break;
    }
    return error_set(error, STATUS_INVALID, "--%s \"%s\": %s is wanted", option->name, text, words_of(option->kind));
}

// ---- the command line ----

static enum status set_defaults(struct options *out, struct error *error)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < NUM_OPTIONS; i++) {
        enum status status = options[i].initial ? set_value(&options[i], options[i].initial, out, error) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static const struct option *find_option(const char *name, size_t length)
{
    for (size_t i = 0; i < NUM_OPTIONS; i++) {
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0)
            return &options[i];
    }
    return NULL;
}

// argv[*index] and maybe the word after it: --name, --name=value or --name value.
static enum status parse_one(int argc, char *const *argv, int *index, struct options *out, struct error *error)
{
    const char *word = argv[*index];
    if (strncmp(word, "--", 2) != 0)
        return error_set(error, STATUS_INVALID, "\"%s\" is not an option; see --help", word);
    const char *equals = strchr(word, '='), *name = word + 2;
    const struct option *option = find_option(name, equals ? (size_t)(equals - name) : strlen(name));
    if (!option)
        return error_set(error, STATUS_INVALID, "there is no option \"%s\"; see --help", word);
    if (option->kind == SWITCH && equals)
        return error_set(error, STATUS_INVALID, "--%s takes no value, but got \"%s\"", option->name, equals + 1);
    const char *text = equals ? equals + 1 : NULL;
    if (option->kind != SWITCH && !text) {
        if (*index + 1 >= argc)
            return error_set(error, STATUS_INVALID, "--%s wants a value: %s", option->name, option->value);
        text = argv[++*index];
    }
    return set_value(option, text, out, error);
}

enum status options_parse(int argc, char *const *argv, struct options *out, struct error *error)
{
    enum status status = set_defaults(out, error);
    for (int i = 1; i < argc && status == STATUS_OK; i++)
        status = parse_one(argc, argv, &i, out, error);
    return status;
}

void options_print_help(void)
{
    printf("usage: aule-daemon [OPTION]...\n\nOwns one GPU's attention shaders and one paged KV cache, and serves them "
           "to worker processes.\n\n");
    for (size_t i = 0; i < NUM_OPTIONS; i++) {
        char name[64];
        snprintf(name, sizeof name, "--%s%s%s", options[i].name, options[i].value ? " " : "",
                 options[i].value ? options[i].value : "");
        printf("  %-22s %s", name, options[i].help);
        if (options[i].initial)
            printf(" [%s]", options[i].initial);
        printf("\n");
    }
    printf("\nExit codes: 0 ended as asked, 1 could not start, 2 the command line is wrong, 3 the GPU was lost. See "
           "aule-daemon(8).\n");
}
