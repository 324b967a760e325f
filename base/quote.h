// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// quote.h - a word as a POSIX shell takes it, for the commands that a sentence tells people to
// type: what is copied has to work.

#ifndef AULE_QUOTE_H
#define AULE_QUOTE_H

#include <stddef.h>
#include <string.h>

#define QUOTE_SIZE(length) (4 * (length) + 3) // bytes that any word of so many may need

// `word`, in single quotes if a shell would not take it as it is, in `to`, which it returns; cut
// behind a whole character where `size`, at least QUOTE_SIZE(0), ends.
static inline const char *quote(char *to, size_t size, const char *word)
{
    static const char harmless[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+,-";
    const char *mark = *word && !word[strspn(word, harmless)] ? "" : "'";
    size_t used = strlen(strcpy(to, mark));
    for (; *word; word++) {
        const char letter[] = {*word, '\0'}, *piece = *word == '\'' ? "'\\''" : letter;
        if (used + strlen(piece) + strlen(mark) >= size)
            break;
        used += strlen(strcpy(to + used, piece));
    }
    strcpy(to + used, mark);
    return to;
}

#endif
