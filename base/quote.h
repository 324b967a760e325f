// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// quote.h - quotes a word for a POSIX shell. Sentences tell people which command to type, and a
// copied command has to work.

#ifndef AULE_QUOTE_H
#define AULE_QUOTE_H

#include <stddef.h>
#include <string.h>

#define QUOTE_SIZE(length) (4 * (length) + 3) // bytes that hold any quoted word of this length

// Writes `word` to `to` and returns `to`. Single quotes stand around a word that a shell would read
// otherwise. `size` is at least QUOTE_SIZE(0); a word that does not fit is cut behind a character.
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
