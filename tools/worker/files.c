// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// files.c - see files.h.

#include "files.h"

#include "tools/complaint/complaint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Reads up to `max` bytes of the file, and one more if the file is longer.
static bool read_bytes(FILE *file, size_t max, unsigned char **bytes, size_t *count)
{
    *count = 0;
    *bytes = malloc(max + 1);
    if (!*bytes)
        return false;
    *count = fread(*bytes, 1, max + 1, file);
    if (!ferror(file))
        return true;
    free(*bytes);
    return false;
}

static bool read_path(const char *path, size_t max, unsigned char **bytes, size_t *count)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    const bool good = file && read_bytes(file, max, bytes, count);
    if (!good)
        complain(EXIT_CODE_FAILED, "%s: %s", path, strerror(errno));
    if (file && file != stdin)
        fclose(file);
    return good;
}

static int32_t *tokens_of(const unsigned char *bytes, size_t count, const char *append,
                          size_t append_count)
{
    int32_t *tokens = malloc((count + append_count) * sizeof *tokens);
    if (!tokens)
        return NULL;
    for (size_t i = 0; i < count; i++)
        tokens[i] = bytes[i];
    for (size_t i = 0; i < append_count; i++)
        tokens[count + i] = (unsigned char)append[i];
    return tokens;
}

bool files_read_prompt(const char *path, const char *append, uint32_t max, int32_t **tokens,
                       uint32_t *num_tokens)
{
    unsigned char *bytes;
    size_t count;
    const size_t append_count = strlen(append);
    *tokens = NULL;
    if (!read_path(path, max, &bytes, &count))
        return false;
    if (count + append_count > max)
        complain(EXIT_CODE_FAILED,
                 "%s: the prompt has more than %u bytes, the limit of --max-prompt", path, max);
    else if (count + append_count == 0)
        complain(EXIT_CODE_FAILED, "%s: the prompt is empty; there is nothing to continue", path);
    else if (!(*tokens = tokens_of(bytes, count, append, append_count)))
        complain(EXIT_CODE_FAILED, "%s: out of memory for the prompt", path);
    *num_tokens = (uint32_t)(count + append_count);
    free(bytes);
    return *tokens != NULL;
}

FILE *files_open_logits(const char *path, bool *made)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    *made = fd >= 0;
    if (fd < 0 && errno == EEXIST)
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (file)
        return file;
    complain(EXIT_CODE_FAILED, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return NULL;
}

bool files_write_logits(FILE *file, const char *path, const float *logits, size_t count)
{
    bool good =
        ftruncate(fileno(file), 0) == 0 || errno == EINVAL; // a pipe or a device has no length
    good = good && fwrite(logits, sizeof *logits, count, file) == count;
    good = fclose(file) == 0 && good;
    if (!good)
        complain(EXIT_CODE_FAILED, "%s: %s", path, strerror(errno));
    return good;
}

float *files_read_logits(const char *path, size_t count)
{
    unsigned char *bytes;
    size_t size;
    if (!read_path(path, count * sizeof(float), &bytes, &size))
        return NULL;
    if (size == count * sizeof(float))
        return (float *)(void *)bytes;
    complain(EXIT_CODE_FAILED,
             "%s: %s than the %zu logits of this run; were both made with the same --tokens?", path,
             size > count * sizeof(float) ? "more" : "fewer", count);
    free(bytes);
    return NULL;
}
