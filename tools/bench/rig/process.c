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

// After fork() in a program with threads, only async-signal-safe calls. `failed` is a pipe: exec
// closes it; if exec fails, the child writes errno to it.
static void become(const char *const *argv, const int *in, const int *out, int failed, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    dup2(in[READ_END], STDIN_FILENO);
    dup2(out[WRITE_END], STDOUT_FILENO);
    execv(argv[0], (char *const *)argv);
    const int why = errno;
    _exit(write(failed, &why, sizeof why) == sizeof why ? 127 : 126);
}

static void close_end(int *pair, int end)
{
    if (pair[end] >= 0)
        close(pair[end]);
    pair[end] = -1;
}

static void close_pair(int *pair)
{
    close_end(pair, READ_END);
    close_end(pair, WRITE_END);
}

// False: the program does not run, and errno says why.
static bool started(pid_t pid, int failed)
{
    int why;
    if (read(failed, &why, sizeof why) != sizeof why)
        return true;
    waitpid(pid, NULL, 0);
    errno = why;
    return false;
}

bool process_start(struct process *process, const char *const *argv)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, failed[2] = {-1, -1};
    pid_t parent = getpid();
    *process = (struct process){0};
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(failed, O_CLOEXEC) != 0)
        goto fail;
    process->in = fdopen(in[WRITE_END], "w");
    process->out = fdopen(out[READ_END], "r");
    if (!process->in || !process->out)
        goto fail;
    process->pid = fork();
    if (process->pid == 0)
        become(argv, in, out, failed[WRITE_END], parent);
    close_end(failed, WRITE_END);
    if (process->pid < 0 || !started(process->pid, failed[READ_END]))
        goto fail;
    close_end(in, READ_END);
    close_end(out, WRITE_END);
    close_pair(failed);
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
    close_pair(failed);
    *process = (struct process){0};
    return false;
}

int process_end(struct process *process, bool ask)
{
    int code = 0;
    if (!process->pid)
        return 0;
    if (ask)
        kill(process->pid, SIGTERM);
    fclose(process->in);
    fclose(process->out);
    while (waitpid(process->pid, &code, 0) < 0 && errno == EINTR) {
    }
    *process = (struct process){0};
    return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

bool process_runs(const struct process *process)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
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
            if ((size_t)snprintf(path, size, "%s%s%s", folder, places[i], name) < size &&
                access(path, X_OK) == 0)
                return true;
        }
    }
    fprintf(stderr, "aule-bench: there is no %s in %s; --daemon names it\n", name,
            length > 0 ? folder : "?");
    return false;
}
