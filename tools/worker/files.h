// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// files.h - the prompt as tokens, and arrays of logits on disk. On failure the functions complain
// with a sentence that names the path.

#ifndef WORKER_FILES_H
#define WORKER_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// The bytes of the file at `path` ("-": standard input) and of `append` behind them, one token a
// byte; 1 to max of them. *tokens is the caller's to free().
bool files_read_prompt(const char *path, const char *append, uint32_t max, int32_t **tokens,
                       uint32_t *num_tokens);

// For files_write_logits(), until which the file keeps what it has; NULL on failure. *made: it was
// not there before.
FILE *files_open_logits(const char *path, bool *made);
// Replaces what `file`, of that path, has, and closes it.
bool files_write_logits(FILE *file, const char *path, const float *logits, size_t count);

// Exactly `count` of them; anything else is a failure. The caller's to free(), NULL on failure.
float *files_read_logits(const char *path, size_t count);

#endif
