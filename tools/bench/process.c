// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// process.c - see process.h.

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READ_END, WRITE_END };

// Only what may be called after fork() in a program with threads.
static void become(const char *const *argv, const int *in, const int *out, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    dup2(in[READ_END], STDIN_FILENO);
    dup2(out[WRITE_END], STDOUT_FILENO);
    execv(argv[0], (char *const *)argv);
    const char *const words[] = {"aule-bench: cannot run ", argv[0], "\n"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (write(STDERR_FILENO, words[i], strlen(words[i])) < 0)
            break;
    _exit(127);
}

static void close_pair(const int *pair)
{
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0)
            close(pair[i]);
    }
}

bool process_start(struct process *process, const char *const *argv)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    pid_t parent = getpid();
    *process = (struct process){0};
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        goto fail;
    process->in = fdopen(in[WRITE_END], "w");
    process->out = fdopen(out[READ_END], "r");
    if (!process->in || !process->out)
        goto fail;
    process->pid = fork();
    if (process->pid == 0)
        become(argv, in, out, parent);
    if (process->pid < 0)
        goto fail;
    close(in[READ_END]);
    close(out[WRITE_END]);
    return true;
fail:
    fprintf(stderr, "aule-bench: %s was not started: %s\n", argv[0], strerror(errno));
    if (process->in) {
        fclose(process->in);
        in[WRITE_END] = -1;
    }
    if (process->out) {
        fclose(process->out);
        out[READ_END] = -1;
    }
    close_pair(in);
    close_pair(out);
    *process = (struct process){0};
    return false;
}

bool process_end(struct process *process, bool ask)
{
    int code = 0;
    if (!process->pid)
        return true;
    if (ask)
        kill(process->pid, SIGTERM);
    fclose(process->in);
    fclose(process->out);
    while (waitpid(process->pid, &code, 0) < 0 && errno == EINTR) {
    }
    *process = (struct process){0};
    return WIFEXITED(code) && WEXITSTATUS(code) == 0;
}

bool process_runs(const struct process *process)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

bool process_find(const char *name, char *path, size_t size)
{
    static const char *const places[] = {"", "../../daemon/"};
    char folder[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length > 0) {
        folder[length] = 0;
        *(strrchr(folder, '/') + 1) = 0;
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            if ((size_t)snprintf(path, size, "%s%s%s", folder, places[i], name) < size && access(path, X_OK) == 0)
                return true;
        }
    }
    fprintf(stderr, "aule-bench: there is no %s in %s; --daemon names it\n", name, length > 0 ? folder : "?");
    return false;
}
