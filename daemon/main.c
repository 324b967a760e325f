// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-daemon: reads the options, sets up the process (umask, signals, descriptors, the
// folder for files), and runs the server. Knows nothing of sessions, and asks the engine only for
// --list-devices. The main thread becomes the dispatcher. exit_code.h has the exit codes.

#include "base/exit_code.h"
#include "base/process.h"
#include "base/uuid.h"
#include "engine/engine.h"
#include "options.h"
#include "server/log.h"
#include "server/process/limits.h"
#include "server/server.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- --list-devices ----

static int list_devices(void)
{
    struct engine_device *devices = NULL;
    struct error error;
    uint32_t count = 0;
    if (engine_list_devices(&devices, &count, &error) != STATUS_OK) {
        fprintf(stderr, "aule-daemon: %s\n", error.text);
        return EXIT_CODE_FAILED;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_device *device = &devices[i];
        char uuid[UUID_TEXT_SIZE];
        printf("%s\n  index %u, %s%s, socket %u.sock%s\n  uuid %s\n", device->name, device->index,
               device->type, device->software ? " (software)" : "", device->index,
               i == 0 ? ", the default" : "", uuid_text(device->uuid, uuid));
        printf("  %s, %" PRIu64 " MiB, %" PRIu64 " MiB of it free\n", device->driver,
               device->heap_bytes >> 20, device->budget_bytes >> 20);
        if (!device->usable)
            printf("  not usable: %s\n", device->missing);
    }
    free(devices);
    return EXIT_CODE_DONE;
}

// ---- the folder for pipelines and measurements ----

// Makes `path` and the folders above it.
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int failed = mkdir(path, 0700) != 0 && errno != EEXIST;
        *slash = '/';
        if (failed)
            return false;
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

enum { WHY_SIZE = PATH_MAX + 128 };

// Files from there go into the driver. So nobody else may have put them there. `name`: in *why.
static bool is_ours(const char *path, const char *name, bool sticky_will_do, char why[WHY_SIZE])
{
    struct stat info;
    const unsigned us = geteuid();
    if (stat(path, &info) != 0)
        snprintf(why, WHY_SIZE, "%s", strerror(errno));
    else if (info.st_uid != us && info.st_uid != 0)
        snprintf(why, WHY_SIZE, "%s belongs to user %u, not to %u or root", name,
                 (unsigned)info.st_uid, us);
    else if (info.st_mode & (S_IWGRP | S_IWOTH) && !(sticky_will_do && info.st_mode & S_ISVTX))
        snprintf(why, WHY_SIZE, "other users may write to %s (mode %04o)", name,
                 (unsigned)(info.st_mode & 07777));
    else
        return true;
    return false;
}

// Others cannot put another folder there: in one with the sticky bit, such as /tmp, only its owner
// renames it. The path has no symlinks.
static bool are_parents_ours(const char *path, char why[WHY_SIZE])
{
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    for (char *slash; (slash = strrchr(parent, '/')) && parent[1];) {
        slash[slash == parent] = 0;
        if (!is_ours(parent, parent, true, why))
            return false;
    }
    return true;
}

// True: files can be made in the folder, others cannot make some there, and cannot put another
// folder at the path, which is now one without symlinks.
static bool can_keep_files(char path[PATH_MAX], char why[WHY_SIZE])
{
    char resolved[PATH_MAX];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool can = fd >= 0 && faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) == 0 &&
               realpath(path, resolved) != NULL;
    snprintf(why, WHY_SIZE, "%s", strerror(errno));
    if (fd >= 0)
        close(fd);
    can = can && is_ours(resolved, "it", false, why) && are_parents_ours(resolved, why);
    if (can)
        snprintf(path, PATH_MAX, "%s", resolved);
    return can;
}

static bool make_default_folder(char path[PATH_MAX])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int size;
    if (cache && cache[0])
        size = snprintf(path, PATH_MAX, "%s/aule", cache);
    else if (home && home[0])
        size = snprintf(path, PATH_MAX, "%s/.cache/aule", home);
    else
        size = snprintf(path, PATH_MAX, "/var/cache/aule");
    errno = ENAMETOOLONG;
    return size > 0 && size < PATH_MAX && make_folders(path);
}

// The folder of --cache-folder, or the default. NULL: nothing is kept. A folder that was asked for
// is made if only its last part is missing; the default is made with all its parts.
static const char *cache_folder(const char *option, char path[PATH_MAX])
{
    if (option && strcmp(option, "none") == 0)
        return NULL;
    char why[WHY_SIZE];
    bool made = !option && make_default_folder(path);
    errno = option ? ENAMETOOLONG : errno;
    if (option && snprintf(path, PATH_MAX, "%s", option) < PATH_MAX)
        made = mkdir(option, 0700) == 0 || errno == EEXIST;
    snprintf(why, sizeof why, "%s", strerror(errno));
    if (made && can_keep_files(path, why))
        return path;
    log_warn("daemon: no folder at %s: %s; compiled pipelines and measurements are not kept", path,
             why);
    return NULL;
}

// NVIDIA's driver translates native kernels once and keeps the result in this folder. Its own
// default needs a HOME, which a service may lack. Only the variant hopper has native kernels; it is
// the default where the device can run it. Call this before the first thread starts.
static void place_driver_cache(const char *folder, const char *variant)
{
    char path[PATH_MAX], why[WHY_SIZE];
    if (!folder || getenv("CUDA_CACHE_PATH") || access("/dev/nvidiactl", F_OK) != 0 ||
        (variant && variant[0] && strcmp(variant, "hopper") != 0))
        return;
    const int size = snprintf(path, sizeof path, "%s/cuda", folder);
    if (size > 0 && size < (int)sizeof path && (mkdir(path, 0700) == 0 || errno == EEXIST) &&
        can_keep_files(path, why))
        setenv("CUDA_CACHE_PATH", path, 0);
}

// As Mesa reads it.
static bool is_true(const char *variable)
{
    static const char *const words[] = {"1", "true", "y", "yes"};
    const char *value = getenv(variable);
    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

// Where Mesa keeps compiled shaders. It makes the last parts of the path itself.
static bool mesa_folder(char path[PATH_MAX])
{
    const struct passwd *user = getpwuid(getuid()); // not HOME
    const char *own = getenv("MESA_SHADER_CACHE_DIR"), *all = getenv("XDG_CACHE_HOME");
    int size = -1;
    if ((own && own[0]) || (all && all[0]))
        size = snprintf(path, PATH_MAX, "%s", own && own[0] ? own : all);
    else if (user)
        size = snprintf(path, PATH_MAX, "%s/.cache", user->pw_dir);
    return size > 0 && size < PATH_MAX;
}

static bool is_kept(char *path)
{
    char why[WHY_SIZE];
    return make_folders(path) && can_keep_files(path, why);
}

// Software devices compile in a process of their own, which hands the code over by Mesa's cache of
// shaders. Others must not be able to write there, because the code is run. A service may lack such
// a folder; then the cache is in `folder`. The program that becomes that process; NULL: there is no
// cache. Call this before threads read the environment.
static const char *compile_program(const char *folder)
{
    static const char itself[] = "/proc/self/exe";
    char path[PATH_MAX];
    if (is_true("MESA_SHADER_CACHE_DISABLE") || is_true("MESA_GLSL_CACHE_DISABLE"))
        return NULL;
    if (mesa_folder(path) && is_kept(path) && setenv("MESA_SHADER_CACHE_DIR", path, 1) == 0)
        return itself;
    if (folder && snprintf(path, sizeof path, "%s/mesa", folder) < (int)sizeof path &&
        is_kept(path) && setenv("MESA_SHADER_CACHE_DIR", path, 1) == 0)
        return itself;
    setenv("MESA_SHADER_CACHE_DISABLE", "true", 1);
    return NULL;
}

static const char *variant_name(const char *option)
{
    const char *variable = getenv("AULE_VARIANT");
    return option || !variable || !variable[0] ? option : variable;
}

// ---- the process ----

// Blocks the signals that the server reads from a signalfd. All threads inherit the mask, so this
// comes before the first one starts.
static void block_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGXCPU);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Keeps lavapipe loaded until the process ends. Otherwise the leak checker could not name the
// functions of the driver's own leaks.
static void keep_software_driver(void)
{
    dlopen("libvulkan_lvp.so", RTLD_NOW | RTLD_NODELETE);
}
#else
static void keep_software_driver(void)
{
}
#endif

#ifdef __SANITIZE_THREAD__
// The software driver synchronises in ways that the sanitizer does not see, so reports from inside
// it are suppressed.
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libvulkan_lvp.so\nrace:libLLVM\nrace:libVkLayer_khronos_validation.so\n";
}
#endif

// After this time a reader that does not read loses the rest of the log.
enum { LOG_END_MS = 1000 };

static int serve(struct server_params *params)
{
    char folder[PATH_MAX];
    struct server *server = NULL;
    struct error error;
    log_set_level(params->log_level);
    block_signals();
    if (!log_start()) {
        log_error("daemon: cannot start: no thread for the log: %s", strerror(errno));
        return EXIT_CODE_FAILED;
    }
    params->cache_folder = cache_folder(params->cache_folder, folder);
    params->variant = variant_name(params->variant);
    place_driver_cache(params->cache_folder, params->variant);
    params->compile_program = compile_program(params->cache_folder);
    int code = EXIT_CODE_FAILED;
    if (limits_fit(params, &error) == STATUS_OK &&
        server_create(params, &server, &error) == STATUS_OK)
        code = (int)server_run(server);
    else if (error.status == STATUS_STOPPING)
        code = EXIT_CODE_DONE;
    else
        log_error("daemon: cannot start: %s", error.text);
    bool ended = server_destroy(server);
    log_info("daemon: ended with exit code %d", code);
    log_stop(LOG_END_MS);
    if (!ended)
        _exit(code); // threads still run and use memory that exit() would free
    return code;
}

static int check_and_serve(struct server_params *params)
{
    struct error error;
    const enum status status = server_check(params, &error);
    if (status == STATUS_OK)
        return serve(params);
    fprintf(stderr, "aule-daemon: %s\n", error.text);
    return status == STATUS_INVALID ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
}

int main(int argc, char **argv)
{
    struct server_params params;
    if (argc == 2 && strcmp(argv[1], ENGINE_COMPILE_COMMAND) == 0)
        return engine_compile_main();
    process_begin();
    switch (options_parse(argc, argv, &params)) {
    case OPTIONS_DONE: return EXIT_CODE_DONE;
    case OPTIONS_BAD: return EXIT_CODE_USAGE;
    case OPTIONS_RUN: break;
    }
    umask(0077);
    keep_software_driver();
    const int code = params.list_devices ? list_devices() : check_and_serve(&params);
    free(params.lines);
    return code;
}
