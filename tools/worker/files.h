// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// files.h - reads the prompt as tokens, and arrays of logits on disk. On failure a function
// complains with a sentence that names the path.

#ifndef WORKER_FILES_H
#define WORKER_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// The bytes of the file at `path` ("-": standard input) and then those of `append`, one token a
// byte; 1 to max of them. The caller frees *tokens.
bool files_read_prompt(const char *path, const char *append, uint32_t max, int32_t **tokens,
                       uint32_t *num_tokens);

// Opens a file for files_write_logits(); until then it keeps its contents. NULL: failed. *made: the
// file did not exist before.
FILE *files_open_logits(const char *path, bool *made);
// Replaces the contents of `file`, which has this path, and closes it.
bool files_write_logits(FILE *file, const char *path, const float *logits, size_t count);

// Reads exactly `count` logits; any other number is a failure. The caller frees them. NULL: failed.
float *files_read_logits(const char *path, size_t count);

#endif
