// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// importer.c - see importer.h.

#include "importer.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void find_program(char path[PATH_MAX])
{
    static const char name[] = "vulkan_importer";
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - sizeof name);
    ck_assert_int_gt(length, 0);
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, name);
}

static void become(const char *program, int fd, uint64_t allocated, bool dedicated, int in, int out)
{
    char number[16], size[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(number, sizeof number, "%d", dup(fd)); // without FD_CLOEXEC
    snprintf(size, sizeof size, "%" PRIu64, allocated);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    execl(program, program, number, size, dedicated ? "1" : "0", (char *)NULL);
    _exit(127);
}

static void read_line(struct importer *importer, char *line, int size)
{
    ck_assert_msg(fgets(line, size, importer->from) != NULL, "the importer has ended");
    ck_assert_msg(strncmp(line, "failed", 6) != 0, "the importer %s", line);
}

void importer_start(struct importer *importer, int fd, uint64_t allocated, bool dedicated)
{
    int in[2], out[2];
    char line[128], program[PATH_MAX];
    find_program(program);
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    importer->pid = fork();
    ck_assert_int_ge(importer->pid, 0);
    if (importer->pid == 0)
        become(program, fd, allocated, dedicated, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    importer->to = fdopen(in[1], "w");
    importer->from = fdopen(out[0], "r");
    setvbuf(importer->to, NULL, _IOLBF, 0);
    read_line(importer, line, sizeof line);
    ck_assert_msg(sscanf(line, "ready %32s", importer->uuid) == 1, "the importer said %s", line);
}

static void ask(struct importer *importer, const char *what, uint64_t offset, float first,
                uint32_t count, char *line, int size)
{
    fprintf(importer->to, "%s %" PRIu64 " %g %" PRIu32 "\n", what, offset, (double)first, count);
    read_line(importer, line, size);
}

void importer_put(struct importer *importer, uint64_t offset, float first, uint32_t count)
{
    char line[128];
    ask(importer, "put", offset, first, count, line, sizeof line);
    ck_assert_str_eq(line, "ok\n");
}

bool importer_has(struct importer *importer, uint64_t offset, float first, uint32_t count)
{
    char line[128];
    ask(importer, "get", offset, first, count, line, sizeof line);
    return strcmp(line, "ok\n") == 0;
}

static int reap(struct importer *importer)
{
    int status = 0;
    fclose(importer->to);
    fclose(importer->from);
    ck_assert_int_eq(waitpid(importer->pid, &status, 0), importer->pid);
    return status;
}

void importer_kill(struct importer *importer)
{
    kill(importer->pid, SIGKILL);
    reap(importer);
}

void importer_end(struct importer *importer)
{
    ck_assert_int_eq(reap(importer), 0);
}
