// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// files.c - see files.h. One lock guards the shelf, the queues and the counts; no thread touches
// the disk while it has the lock. The shelf is what this daemon knows of the folder: a file that
// another daemon has dropped is found missing at the latest when it is loaded.
//
// A file does not say which tenant it is for, only its salt, and the tenant's limits may have
// changed. Files that were found belong to nobody until the first job with their salt names the
// tenant.
//
// A file that cannot be removed still counts against the limit, so the folder never grows beyond it
// unnoticed. If no room can be made, stores pause as with a full disk.

#include "files.h"

#include "base/clock.h"
#include "base/list.h"
#include "folder.h"
#include "tier/threads.h"
#include "watch.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, PAUSE_MS = 1000, OPEN_MS = 30000, MOST_OWNERS = 1 << 16 };
#define LIMIT    (UINT64_C(64) << 30)
#define SLACK_NS (50 * NS_PER_MS) // between the times of files and the clock

// Loads first. Stores never take the last thread.
enum { LOADS, STORES, NUM_QUEUES };

// A job in a queue, until a thread has taken its last block.
struct file_job {
    struct file_job *prev, *next;
    struct tier_job *job;
    uint32_t taken, ended; // blocks
};

// The tenant of a salt, by the last job that named it.
struct owner {
    UT_hash_handle hh; // by salt; the one that no job has named for longest comes first
    uint8_t salt[STORED_ID_BYTES];
    struct tier_share share;
};

struct tier_backend {
    struct folder folder;
    struct watch watch;
    char *path;                 // params.path; owned
    struct files_params params; // with defaults, so no field is 0

    pthread_mutex_t lock;
    pthread_cond_t news; // for threads: work, or the end; for files_create(): the folder is open
    struct file_job *queues[NUM_QUEUES];
    uint32_t num_storing; // threads
    bool stops;
    struct threads threads;
    uint32_t num_threads; // of these, all but the watcher and the one that opens the folder
    bool opened;          // or it could not be opened, and `opening` says why
    struct error opening;
    uint64_t looked; // files that were found so far

    struct shelf shelf;
    struct owner *owners;   // a hash table of MOST_OWNERS at most; owned
    uint64_t writing_bytes; // of files that are being written
    uint64_t evicted, pauses;
    uint64_t noted;          // how many times a file was noted
    int64_t paused_until_ns; // no store before
    bool complained;         // of the disk, since the last store that succeeded
    uint32_t foreign;        // entries of the folder that are no blocks
    // The watcher's alone.
    bool unwatched; // the folder has no watch; tried again each second
    bool misled;    // said that it has none, or that the path leads to a folder of others
};

// `why`: an errno, or 0.
static void say(const struct tier_backend *files, const char *what, uint64_t number, int why)
{
    char sentence[512];
    if (!files->params.say)
        return;
    snprintf(sentence, sizeof sentence, "files://%.300s: %" PRIu64 " %s%s%s", files->params.path,
             number, what, why ? ": " : "", why ? strerror(why) : "");
    files->params.say(files->params.say_context, sentence);
}

static int64_t wall_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

// ---- what is there; under the lock ----

static struct owner *find_owner(const struct tier_backend *files,
                                const uint8_t salt[STORED_ID_BYTES])
{
    struct owner *owner;
    HASH_FIND(hh, files->owners, salt, STORED_ID_BYTES, owner);
    return owner;
}

static struct tier_share owner_of(const struct tier_backend *files, const struct shelf_key *key)
{
    const struct owner *owner = find_owner(files, key->salt);
    return owner ? owner->share : (struct tier_share){0};
}

static void forget_owner(struct tier_backend *files, struct owner *owner)
{
    HASH_DEL(files->owners, owner);
    free(owner);
}

// As the newest one. Without memory the salt has no owner, until its next job.
static void add_owner(struct tier_backend *files, struct owner *owner)
{
    if (!owner)
        return;
    if (HASH_COUNT(files->owners) == MOST_OWNERS)
        forget_owner(files, files->owners);
    HASH_ADD(hh, files->owners, salt, sizeof owner->salt, owner);
    if (!HASH_ADDED(owner))
        free(owner);
}

// Notes which tenant the job's salt belongs to.
static void note_owner(struct tier_backend *files, const struct tier_job *job)
{
    struct owner *owner = find_owner(files, job->space.salt);
    const bool known = owner && owner->share.tenant == job->share.tenant;
    if (!job->share.tenant)
        return;
    if (owner)
        HASH_DEL(files->owners, owner);
    else
        owner = calloc(1, sizeof *owner);
    if (owner) {
        memcpy(owner->salt, job->space.salt, sizeof owner->salt);
        owner->share = job->share;
    }
    add_owner(files, owner);
    if (!known)
        shelf_adopt(&files->shelf, job->space.salt, &job->share);
}

static void forget(struct tier_backend *files, const struct shelf_key *key)
{
    struct shelf_item *item = shelf_find(&files->shelf, key);
    if (item)
        shelf_remove(&files->shelf, item);
}

// NULL: it is not there, or not to be loaded.
static struct shelf_item *find(const struct tier_backend *files, const struct shelf_key *key)
{
    struct shelf_item *item = shelf_find(&files->shelf, key);
    return item && !item->spoilt ? item : NULL;
}

// The file is there. False: no memory to note it.
static bool note_file(struct tier_backend *files, const struct folder_file *file,
                      const struct tier_share *share)
{
    struct shelf_item *item = shelf_find(&files->shelf, &file->key);
    files->noted++;
    if (item && item->bytes != file->bytes) {
        shelf_remove(&files->shelf, item);
        item = NULL;
    }
    if (item)
        shelf_move(&files->shelf, item, share);
    else
        item = shelf_add(&files->shelf, &file->key, share, file->bytes);
    if (item) {
        item->used_ns = file->used_ns;
        item->spoilt = false;
    }
    return item;
}

// A disk that is full or fails is left alone for a while.
static void note_disk(struct tier_backend *files, enum stored_reason reason, int why)
{
    if (reason == STORED_OK) {
        files->complained = false;
        return;
    }
    if (reason != STORED_FULL && reason != STORED_DENIED && reason != STORED_STORE)
        return;
    files->paused_until_ns = clock_now_ns() + files->params.pause_ms * NS_PER_MS;
    files->pauses++;
    if (!files->complained)
        say(files,
            reason == STORED_FULL     ? "ms without stores, because the disk has no room"
            : reason == STORED_DENIED ? "ms without stores, because writing is not permitted"
                                      : "ms without stores, because writing failed",
            files->params.pause_ms, why);
    files->complained = true;
}

// Drops the item and its file, unless another daemon has used the file lately: then it becomes the
// most recently used one. Opens the lock meanwhile, so all items may be gone afterwards. False: the
// file cannot be removed, so the item stays.
static bool drop(struct tier_backend *files, const struct shelf_item *item)
{
    const struct shelf_key key = item->key;
    const int64_t used_ns = item->used_ns;
    struct folder_file file;
    pthread_mutex_unlock(&files->lock);
    const bool there = folder_look(&files->folder, &key, &file);
    const bool is_fresh = there && file.used_ns > used_ns + SLACK_NS;
    const bool gone = !there || is_fresh || folder_remove(&files->folder, &key);
    pthread_mutex_lock(&files->lock);
    struct shelf_item *now = shelf_find(&files->shelf, &key);
    files->evicted += there && !is_fresh && gone;
    if (now && is_fresh) {
        now->used_ns = file.used_ns;
        shelf_touch(now);
    } else if (now && gone) {
        shelf_remove(&files->shelf, now);
    }
    return gone;
}

// Sets `bytes` of the limit aside. Opens the lock meanwhile.
static enum stored_reason make_room(struct tier_backend *files, const struct tier_share *share,
                                    uint64_t bytes)
{
    const uint64_t limit = files->params.limit_bytes;
    if (bytes > limit)
        return STORED_FULL;
    while (files->shelf.bytes + files->writing_bytes + bytes > limit) {
        const struct shelf_item *item = shelf_victim(&files->shelf, share->tenant);
        if (!item)
            return STORED_FULL;
        if (!drop(files, item)) {
            note_disk(files, STORED_DENIED, errno);
            return STORED_DENIED;
        }
    }
    files->writing_bytes += bytes;
    return STORED_OK;
}

static void keep_cap(struct tier_backend *files, const struct shelf_key *key)
{
    const struct shelf_item *item, *excess;
    while ((item = shelf_find(&files->shelf, key)) && (excess = shelf_excess(item->tenant))) {
        if (!drop(files, excess)) {
            note_disk(files, STORED_DENIED, errno);
            return;
        }
    }
}

// ---- a block; on the backend's threads ----

static enum stored_reason write_block(struct tier_backend *files, struct tier_job *job,
                                      const struct tier_block *block, const struct shelf_key *key,
                                      uint64_t bytes)
{
    int why = 0;
    enum stored_reason reason = folder_store(&files->folder, job, block, &why);
    const struct folder_file file = {*key, bytes, wall_now_ns()};
    pthread_mutex_lock(&files->lock);
    files->writing_bytes -= bytes;
    note_disk(files, reason, why);
    if (reason == STORED_OK && note_file(files, &file, &job->share))
        keep_cap(files, key);
    else if (reason == STORED_OK)
        reason = STORED_MEMORY;
    pthread_mutex_unlock(&files->lock);
    if (reason == STORED_MEMORY)
        (void)folder_remove(&files->folder, key); // without memory there is nothing more to do
    return reason;
}

static enum stored_reason store_block(struct tier_backend *files, struct tier_job *job,
                                      uint32_t index)
{
    const struct tier_block *block = &job->blocks[index];
    const struct shelf_key key = shelf_key_of(&job->space, &block->chain);
    const uint64_t bytes = folder_file_bytes(job->space.block_bytes);
    enum stored_reason reason;
    pthread_mutex_lock(&files->lock);
    note_owner(files, job);
    struct shelf_item *item = find(files, &key);
    const bool there = item && item->bytes == bytes;
    if (there) {
        shelf_move(&files->shelf, item, &job->share);
        item->used_ns = wall_now_ns();
        reason = STORED_OK;
    } else if (clock_now_ns() < files->paused_until_ns) {
        reason = STORED_FULL;
    } else {
        reason = make_room(files, &job->share, bytes);
    }
    pthread_mutex_unlock(&files->lock);
    if (there)
        folder_touch(&files->folder, &key);
    else if (reason == STORED_OK)
        reason = write_block(files, job, block, &key, bytes);
    return reason;
}

// The file will never be right.
static bool is_damaged(enum stored_reason reason)
{
    return reason == STORED_OTHER_VERSION || reason == STORED_IDENTITY || reason == STORED_LENGTH ||
           reason == STORED_CHECKSUM;
}

static enum stored_reason load_block(struct tier_backend *files, struct tier_job *job,
                                     uint32_t index)
{
    const struct shelf_key key = shelf_key_of(&job->space, &job->blocks[index].chain);
    const enum stored_reason reason = folder_load(&files->folder, job, index);
    const struct folder_file file = {key, folder_file_bytes(job->space.block_bytes), wall_now_ns()};
    const bool damaged = is_damaged(reason);
    const bool gone = reason == STORED_ABSENT || (damaged && folder_remove(&files->folder, &key));
    pthread_mutex_lock(&files->lock);
    note_owner(files, job);
    struct shelf_item *item = shelf_find(&files->shelf, &key);
    if (reason == STORED_OK)
        note_file(files, &file, &job->share);
    else if (gone)
        forget(files, &key);
    else if (damaged && item)
        item->spoilt = true;
    pthread_mutex_unlock(&files->lock);
    return reason;
}

static enum stored_reason erase_block(struct tier_backend *files, struct tier_job *job,
                                      uint32_t index)
{
    const struct shelf_key key = shelf_key_of(&job->space, &job->blocks[index].chain);
    struct folder_file file;
    const bool there = folder_look(&files->folder, &key, &file);
    if (!folder_remove(&files->folder, &key))
        return STORED_DENIED;
    pthread_mutex_lock(&files->lock);
    forget(files, &key);
    pthread_mutex_unlock(&files->lock);
    return there ? STORED_OK : STORED_ABSENT;
}

static enum stored_reason do_block(struct tier_backend *files, struct tier_job *job, uint32_t index)
{
    if (clock_now_ns() >= job->deadline_ns)
        return STORED_TIMEOUT;
    switch (job->kind) {
    case TIER_STORE: return store_block(files, job, index);
    case TIER_LOAD: return load_block(files, job, index);
    default: return erase_block(files, job, index);
    }
}

// ---- the threads ----

// The next block to work on; takes it. NULL: there is none for this thread now.
static struct file_job *take_block(struct tier_backend *files, int *queue, uint32_t *index)
{
    const bool may_store =
        files->stops || files->num_threads == 1 || files->num_storing + 1 < files->num_threads;
    *queue = files->queues[LOADS] ? LOADS : STORES;
    struct file_job *work = *queue == LOADS || may_store ? files->queues[*queue] : NULL;
    if (!work)
        return NULL;
    *index = work->taken++;
    if (work->taken == work->job->num_blocks)
        LIST_DELETE(files->queues[*queue], work);
    return work;
}

static void end_block(struct tier_backend *files, struct file_job *work)
{
    if (++work->ended < work->job->num_blocks)
        return;
    struct tier_job *job = work->job;
    free(work);
    pthread_mutex_unlock(&files->lock);
    tier_job_end(job);
    pthread_mutex_lock(&files->lock);
}

// A write beyond the process's limit for files is an error, not a signal.
static void block_signal(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

static void run_thread(void *argument)
{
    struct tier_backend *files = argument;
    uint32_t index;
    int queue;
    block_signal();
    pthread_mutex_lock(&files->lock);
    for (;;) {
        struct file_job *work = take_block(files, &queue, &index);
        if (!work && files->stops)
            break;
        if (!work) {
            pthread_cond_wait(&files->news, &files->lock);
            continue;
        }
        const bool stops = files->stops;
        files->num_storing += queue == STORES;
        pthread_mutex_unlock(&files->lock);
        work->job->blocks[index].reason = stops ? STORED_CLOSED : do_block(files, work->job, index);
        pthread_mutex_lock(&files->lock);
        files->num_storing -= queue == STORES;
        if (queue == STORES && files->queues[STORES])
            pthread_cond_signal(&files->news); // for a thread that had to wait
        end_block(files, work);
    }
    pthread_mutex_unlock(&files->lock);
}

// ---- what others do to the folder ----

static void learn(void *context, const struct folder_file *file)
{
    struct tier_backend *files = context;
    pthread_mutex_lock(&files->lock);
    const struct tier_share share = owner_of(files, &file->key);
    if (!shelf_find(&files->shelf, &file->key))
        note_file(files, file, &share);
    pthread_mutex_unlock(&files->lock);
}

static void file_came(void *context, const char *name)
{
    struct tier_backend *files = context;
    struct folder_file file;
    struct shelf_key key;
    if (folder_parse(name, &key) && folder_look(&files->folder, &key, &file))
        learn(files, &file);
}

static void file_went(void *context, const char *name)
{
    struct tier_backend *files = context;
    struct folder_file file;
    struct shelf_key key;
    bool there;
    uint64_t before;
    if (!folder_parse(name, &key))
        return;
    pthread_mutex_lock(&files->lock);
    do { // it may come back while this thread looks
        before = files->noted;
        pthread_mutex_unlock(&files->lock);
        there = folder_look(&files->folder, &key, &file);
        pthread_mutex_lock(&files->lock);
    } while (!there && files->noted != before);
    if (!there)
        forget(files, &key);
    pthread_mutex_unlock(&files->lock);
}

static void news_lost(void *context)
{
    struct tier_backend *files = context;
    uint32_t foreign;
    folder_scan(&files->folder, learn, files, &foreign);
}

// Says it once, until all is well again.
static void complain(struct tier_backend *files, const char *sentence)
{
    if (!files->misled && files->params.say)
        files->params.say(files->params.say_context, sentence);
    files->misled = true;
}

// Has the folder watched. What happened to it before is found by a scan.
static void watch_anew(struct tier_backend *files)
{
    char sentence[512];
    files->unwatched = !watch_follow(&files->watch, files->params.path);
    if (!files->unwatched)
        return;
    snprintf(sentence, sizeof sentence,
             "files://%.300s cannot be watched, so what others store there is not found: %s",
             files->params.path, strerror(errno));
    complain(files, sentence);
}

// What the daemon knew was of the old folder.
static void change_folder(struct tier_backend *files)
{
    pthread_mutex_lock(&files->lock);
    shelf_finish(&files->shelf);
    files->shelf = (struct shelf){0};
    files->paused_until_ns = 0;
    pthread_mutex_unlock(&files->lock);
    news_lost(files);
    pthread_mutex_lock(&files->lock);
    const uint64_t count = files->shelf.num_items;
    pthread_mutex_unlock(&files->lock);
    say(files, "blocks are in the folder that this path leads to now", count, 0);
}

static void follow(void *context)
{
    struct tier_backend *files = context;
    const bool was_unwatched = files->unwatched;
    struct error error;
    bool follows;
    if (folder_follow(&files->folder, &follows, &error) != STATUS_OK) {
        complain(files, error.text);
        return;
    }
    if (follows || was_unwatched)
        watch_anew(files);
    files->misled &= files->unwatched;
    if (follows)
        change_folder(files);
    else if (was_unwatched && !files->unwatched)
        news_lost(files);
}

static void run_watcher(void *argument)
{
    struct tier_backend *files = argument;
    const struct watch_calls calls = {file_came, file_went, news_lost, follow, files};
    watch_run(&files->watch, &calls);
}

// ---- the calls ----

static void hand_over(struct tier_backend *files, struct tier_job *job)
{
    struct file_job *work = job->num_blocks ? calloc(1, sizeof *work) : NULL;
    if (!work) {
        tier_job_fail(job, STORED_MEMORY);
        return;
    }
    work->job = job;
    pthread_mutex_lock(&files->lock);
    LIST_APPEND(files->queues[job->kind == TIER_STORE ? STORES : LOADS], work);
    pthread_cond_broadcast(&files->news);
    pthread_mutex_unlock(&files->lock);
}

static void files_lookup(struct tier_backend *files, struct tier_job *job)
{
    pthread_mutex_lock(&files->lock);
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        struct tier_block *block = &job->blocks[i];
        const struct shelf_key key = shelf_key_of(&job->space, &block->chain);
        if (!find(files, &key))
            continue;
        block->answer = TIER_THERE;
        block->reason = STORED_OK;
    }
    pthread_mutex_unlock(&files->lock);
    tier_job_end(job);
}

static enum tier_answer files_probe(struct tier_backend *files, const struct stored_space *space,
                                    const struct stored_chain *chain)
{
    const struct shelf_key key = shelf_key_of(space, chain);
    pthread_mutex_lock(&files->lock);
    const bool there = find(files, &key);
    pthread_mutex_unlock(&files->lock);
    return there ? TIER_THERE : TIER_MISS;
}

static void files_state(struct tier_backend *files, struct tier_state *out)
{
    pthread_mutex_lock(&files->lock);
    *out = (struct tier_state){
        .bytes = files->shelf.bytes + files->writing_bytes,
        .limit_bytes = files->params.limit_bytes,
        .blocks = files->shelf.num_items,
        .evicted = files->evicted,
        .breaks = files->pauses,
        .broken = clock_now_ns() < files->paused_until_ns,
    };
    if (files->foreign)
        snprintf(out->note, sizeof out->note, "%" PRIu32 " entries of the folder are no blocks",
                 files->foreign);
    pthread_mutex_unlock(&files->lock);
}

// ---- the life of the backend ----

static void destroy(struct tier_backend *files)
{
    while (files->owners)
        forget_owner(files, files->owners);
    shelf_finish(&files->shelf);
    watch_close(&files->watch);
    folder_close(&files->folder);
    pthread_cond_destroy(&files->news);
    pthread_mutex_destroy(&files->lock);
    free(files->path);
    free(files);
}

static void files_stop(struct tier_backend *files)
{
    pthread_mutex_lock(&files->lock);
    files->stops = true;
    pthread_cond_broadcast(&files->news);
    pthread_mutex_unlock(&files->lock);
    watch_stop(&files->watch);
}

// False: a thread still waits for the disk at the deadline.
static bool end_threads(struct tier_backend *files, int64_t deadline_ns)
{
    files_stop(files);
    return threads_end(&files->threads, deadline_ns);
}

static bool files_close(struct tier_backend *files, int64_t deadline_ns)
{
    if (!end_threads(files, deadline_ns))
        return false;
    destroy(files);
    return true;
}

const struct tier_ops files_ops = {
    .name = "files",
    .lookup = files_lookup,
    .store = hand_over,
    .load = hand_over,
    .erase = hand_over,
    .probe = files_probe,
    .state = files_state,
    .stop = files_stop,
    .close = files_close,
};

// The files that a scan has found.
struct found {
    struct tier_backend *tier;
    struct folder_file *files; // owned
    size_t count, room;
    bool no_memory;
};

static void collect(void *context, const struct folder_file *file)
{
    struct found *found = context;
    if (found->count == found->room) {
        const size_t room = 2 * found->room + 1024;
        struct folder_file *more = reallocarray(found->files, room, sizeof *more);
        if (!more) {
            found->no_memory = true;
            return;
        }
        found->files = more;
        found->room = room;
    }
    found->files[found->count++] = *file;
    pthread_mutex_lock(&found->tier->lock);
    found->tier->looked++;
    pthread_mutex_unlock(&found->tier->lock);
}

static int by_use(const void *one, const void *other)
{
    const struct folder_file *a = one, *b = other;
    return (a->used_ns > b->used_ns) - (a->used_ns < b->used_ns);
}

// Notes all files that are there, in the order of their use, and drops those beyond the limit.
static enum status find_files(struct tier_backend *files, struct error *error)
{
    const struct tier_share nobody = {0};
    struct found found = {.tier = files};
    if (!folder_scan(&files->folder, collect, &found, &files->foreign)) {
        free(found.files);
        return error_set(error, STATUS_INVALID, "files://%s: %s", files->params.path,
                         strerror(errno));
    }
    if (found.count)
        qsort(found.files, found.count, sizeof *found.files, by_use);
    pthread_mutex_lock(&files->lock);
    for (size_t i = 0; i < found.count; i++)
        found.no_memory |= !note_file(files, &found.files[i], &nobody);
    if (!found.no_memory)
        make_room(files, &nobody, 0);
    pthread_mutex_unlock(&files->lock);
    free(found.files);
    if (found.no_memory)
        return error_set(error, STATUS_NO_MEMORY,
                         "files://%s: no memory for the names of its files", files->params.path);
    if (files->foreign)
        say(files, "entries are no blocks of this version; they are left alone", files->foreign, 0);
    return STATUS_OK;
}

static bool start_threads(struct tier_backend *files)
{
    files->num_threads = files->params.threads;
    if (!threads_start(&files->threads, run_watcher, files))
        return false;
    for (uint32_t i = 0; i < files->num_threads; i++)
        if (!threads_start(&files->threads, run_thread, files))
            return false;
    return true;
}

static void apply(struct tier_backend *files, const struct files_params *params)
{
    files->params = *params;
    files->params.limit_bytes = params->limit_bytes ? params->limit_bytes : LIMIT;
    files->params.threads = params->threads ? params->threads : THREADS;
    files->params.pause_ms = params->pause_ms ? params->pause_ms : PAUSE_MS;
    files->params.open_ms = params->open_ms ? params->open_ms : OPEN_MS;
    files->folder.fd = files->watch.fd = files->watch.stop_fd = -1;
    pthread_mutex_init(&files->lock, NULL);
    clock_init_cond(&files->news);
}

// Watches before it looks, so that nothing is missed.
static enum status find_and_watch(struct tier_backend *files, struct error *error)
{
    enum status status = folder_open(&files->folder, files->params.path, error);
    if (status == STATUS_OK && !watch_open(&files->watch, files->params.path))
        status = error_set(error, STATUS_NO_MEMORY, "files://%s cannot be watched: %s",
                           files->params.path, strerror(errno));
    return status == STATUS_OK ? find_files(files, error) : status;
}

static void run_opener(void *argument)
{
    struct tier_backend *files = argument;
    struct error error = {0};
    error.status = find_and_watch(files, &error);
    pthread_mutex_lock(&files->lock);
    files->opening = error;
    files->opened = true;
    pthread_cond_broadcast(&files->news);
    pthread_mutex_unlock(&files->lock);
}

// False: no file was found for open_ms, and the folder is not open.
static bool await_opening(struct tier_backend *files)
{
    uint64_t looked = 0;
    int64_t deadline_ns = clock_deadline_ns((int)files->params.open_ms);
    pthread_mutex_lock(&files->lock);
    while (!files->opened && clock_now_ns() < deadline_ns) {
        clock_wait(&files->news, &files->lock, deadline_ns);
        if (files->looked > looked)
            deadline_ns = clock_deadline_ns((int)files->params.open_ms);
        looked = files->looked;
    }
    const bool opened = files->opened;
    pthread_mutex_unlock(&files->lock);
    return opened;
}

// A disk may not answer, so a thread of its own opens the folder. STATUS_TIMEOUT: it still waits,
// and `files` must stay.
static enum status open_and_start(struct tier_backend *files, struct error *error)
{
    if (!threads_init(&files->threads, files->params.threads + 2) ||
        !threads_start(&files->threads, run_opener, files))
        return error_set(error, STATUS_NO_MEMORY, "files://%s: no memory or no thread is left",
                         files->params.path);
    if (!await_opening(files))
        return error_set(error, STATUS_TIMEOUT, "files://%s: the disk does not answer for %u s",
                         files->params.path, files->params.open_ms / 1000);
    *error = files->opening;
    if (error->status != STATUS_OK || start_threads(files))
        return error->status;
    return error_set(error, STATUS_NO_MEMORY, "files://%s: no thread is left", files->params.path);
}

enum status files_create(const struct files_params *params, struct tier_backend **out,
                         struct error *error)
{
    *out = NULL;
    if (params->threads > FILES_MOST_THREADS)
        return error_set(error, STATUS_INVALID, "the files tier has 1 to %d threads, not %u",
                         FILES_MOST_THREADS, params->threads);
    struct tier_backend *files = calloc(1, sizeof *files);
    char *path = strdup(params->path);
    if (!files || !path) {
        free(files);
        free(path);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the files tier");
    }
    apply(files, params);
    files->params.path = files->path = path;
    const enum status status = open_and_start(files, error);
    if (status != STATUS_OK) {
        if (status != STATUS_TIMEOUT)
            (void)files_close(files, clock_deadline_ns(THREADS_END_MS));
        return status;
    }
    *out = files;
    return STATUS_OK;
}
