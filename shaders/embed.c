// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// embed.c - a build step: embed MODULE HEADER NAME. HEADER gets the SPIR-V module as `static const
// uint32_t NAME[]`. The shader compiler can write such a header, but would compile a second time.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *path, const char *what)
{
    fprintf(stderr, "embed: %s %s\n", path, what);
    exit(EXIT_FAILURE);
}

static void copy_words(FILE *from, FILE *to)
{
    uint32_t words[8];
    size_t count;
    while ((count = fread(words, sizeof *words, sizeof words / sizeof *words, from)) > 0) {
        fputs("\n   ", to);
        for (size_t i = 0; i < count; i++)
            fprintf(to, " 0x%08x,", words[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: embed MODULE HEADER NAME\n");
        return EXIT_FAILURE;
    }
    FILE *module = fopen(argv[1], "rb"), *header = fopen(argv[2], "w");
    if (!module)
        fail(argv[1], "cannot be read");
    if (!header)
        fail(argv[2], "cannot be written");
    fprintf(header, "// made by embed.c\n#pragma once\nstatic const uint32_t %s[] = {", argv[3]);
    copy_words(module, header);
    fputs("\n};\n", header);
    if (ferror(module))
        fail(argv[1], "cannot be read");
    fclose(module);
    int failed = ferror(header);
    if (fclose(header) != 0 || failed)
        fail(argv[2], "cannot be written");
    return EXIT_SUCCESS;
}
