// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options_print.c - a table of options as --help, as a man page's list, as a Markdown table and as
// bash completion.

#include "options.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

enum { TEXT_SIZE = 512, LEFT_WIDTH = 24, LINE_WIDTH = 100 };

static bool is_help(const struct option *option)
{
    return option->name && strcmp(option->name, "help") == 0;
}

// The help, with the words of a choice where the value has a name of its own.
static const char *help_of(const struct option *option, char *to, size_t size)
{
    char words[256];
    if (option->argument && option->words)
        snprintf(to, size, "%s: %s", option->help,
                 options_join(words, sizeof words, option->words, ", ", " or "));
    else
        snprintf(to, size, "%s", option->help);
    return to;
}

static const char *default_of(const struct option *option)
{
    return option->initial ? option->initial : option->otherwise;
}

// ---- --help ----

// The length of a word and of the words behind it that begin with a dash. So no wrapped line begins
// with a dash, which marks an option's own line.
static size_t piece_length(const char *text)
{
    size_t length = strcspn(text, " ");
    while (text[length] && text[length + 1 + (text[length + 1] == '`')] == '-')
        length += 1 + strcspn(text + length + 1, " ");
    return length;
}

// At the column LEFT_WIDTH, without back quotes, in lines of LINE_WIDTH.
static void put_wrapped(FILE *out, const char *text)
{
    size_t column = LEFT_WIDTH;
    for (const char *end; *text; text = *end ? end + 1 : end) {
        size_t length = piece_length(text);
        end = text + length;
        if (column > LEFT_WIDTH && column + 1 + length > LINE_WIDTH) {
            fprintf(out, "\n%*s", LEFT_WIDTH, "");
            column = LEFT_WIDTH;
        } else if (column > LEFT_WIDTH) {
            fputc(' ', out);
        }
        column += length + 1;
        for (; text < end; text++)
            if (*text != '`')
                fputc(*text, out);
    }
    fputc('\n', out);
}

static void put_row(FILE *out, const char *left, const char *text)
{
    const int width = fprintf(out, "  %s", left);
    if (width + 2 > LEFT_WIDTH)
        fprintf(out, "\n%*s", LEFT_WIDTH, "");
    else
        fprintf(out, "%*s", LEFT_WIDTH - width, "");
    put_wrapped(out, text);
}

static void put_option(FILE *out, const struct option *option)
{
    char left[TEXT_SIZE], value[TEXT_SIZE / 2], help[TEXT_SIZE], text[2 * TEXT_SIZE];
    options_value(option, value, sizeof value);
    snprintf(left, sizeof left, "--%s%s%s%s", option->name, *value ? " " : "", value,
             is_help(option) ? ", -h" : "");
    const char *initial = default_of(option);
    snprintf(text, sizeof text, "%s%s%s%s", help_of(option, help, sizeof help), initial ? " [" : "",
             initial ? initial : "", initial ? "]" : "");
    put_row(out, left, text);
}

static void put_commands(FILE *out, const struct options_program *program)
{
    const struct options_command *command;
    fputs("\nCommands:\n", out);
    for (size_t i = 0; (command = options_command_at(program, i)); i++) {
        char left[TEXT_SIZE];
        const char *argument = command->argument;
        snprintf(left, sizeof left, "%s%s%s", command->name, argument ? " " : "",
                 argument ? argument : "");
        if (command->help)
            put_row(out, left, command->help);
    }
}

// A heading comes with the first option below it that the command takes.
static void put_options(FILE *out, const struct options_program *program,
                        const struct options_command *command)
{
    const char *heading = "Options";
    for (size_t i = 0; i < options_count(program); i++) {
        const struct option *option = options_at(program, i);
        if (option->section)
            heading = option->section;
        if (!option->help || !options_taken(option, command))
            continue;
        if (heading)
            fprintf(out, "\n%s:\n", heading);
        heading = NULL;
        put_option(out, option);
    }
}

void options_print_help(const struct options_program *program,
                        const struct options_command *command, FILE *out)
{
    if (command && command->help) {
        const char *argument = command->argument;
        fprintf(out, "usage: %s %s%s%s [OPTION]...\n\n%c%s.\n", program->name, command->name,
                argument ? " " : "", argument ? argument : "",
                toupper((unsigned char)*command->help), command->help + 1);
        put_options(out, program, command);
        return;
    }
    fprintf(out, "usage: %s\n\n%s\n", program->usage, program->about);
    if (program->commands)
        put_commands(out, program);
    put_options(out, program, NULL);
    fprintf(out, "\n%s\n", program->epilogue);
}

// ---- values ----

static void put_plain(FILE *out, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        fputc((unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i], out);
}

// "scheme://user:password@host" without the password. "scheme:///path" has no host, so no password.
static void put_text(FILE *out, const char *text)
{
    const char *user = text ? strstr(text, "://") : NULL, *end = text ? text + strlen(text) : NULL;
    const char *host = user && user[3] != '/' ? strrchr(user, '@') : NULL;
    const char *password = host ? memchr(user + 3, ':', (size_t)(host - user - 3)) : NULL;
    if (!text)
        return;
    put_plain(out, text, (size_t)((password ? password + 1 : end) - text));
    if (password)
        put_plain(out, host, (size_t)(end - host));
}

static uint64_t whole_of(const struct option *option, const void *field)
{
    uint32_t narrow;
    uint64_t wide;
    memcpy(&narrow, field, sizeof narrow);
    if (option->size == sizeof narrow)
        return narrow;
    memcpy(&wide, field, sizeof wide);
    return wide;
}

static uint64_t count_words(const struct option *option)
{
    uint64_t count = 0;
    while (option->words && option->words[count])
        count++;
    return count;
}

// A word of the option's stands for some numbers; else the number itself.
static void put_whole(FILE *out, const struct option *option, uint64_t value)
{
    if (option->kind == OPTION_CHOICE && value - option->least < count_words(option))
        fputs(option->words[value - option->least], out);
    else if (option->word && value == option->word_value)
        fputs(option->word, out);
    else if (option->kind != OPTION_CHOICE)
        fprintf(out, "%" PRIu64, value);
}

static void put_field(FILE *out, const struct option *option, const void *field)
{
    switch (option->kind) {
    case OPTION_FLAG: fputs(*(const bool *)field ? "yes" : "no", out); break;
    case OPTION_TEXT: put_text(out, *(const char *const *)field); break;
    case OPTION_NUMBER: fprintf(out, "%g", *(const double *)field); break;
    case OPTION_CONSTANT:
        fputs(whole_of(option, field) == option->least ? "yes" : "no", out);
        break;
    case OPTION_TEXTS: break; // a line for each
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_CHOICE: put_whole(out, option, whole_of(option, field)); break;
    }
}

static void put_assignment(FILE *out, const struct option *option, bool given, const void *field)
{
    fprintf(out, "%s%s=", given ? "" : "#", option->name);
    put_field(out, option, field);
    fputc('\n', out);
}

static void put_assignments(FILE *out, const struct option *option, bool given, const void *field)
{
    const struct option one = {.name = option->name, .kind = OPTION_TEXT};
    const struct option_texts *texts = field;
    if (option->kind != OPTION_TEXTS) {
        put_assignment(out, option, given, field);
        return;
    }
    for (uint32_t i = 0; i < texts->count; i++)
        put_assignment(out, &one, true, &texts->texts[i]);
    if (texts->count == 0)
        put_assignment(out, option, false, field);
}

void options_print_values(const struct options_program *program, const struct options_line *line,
                          const void *settings, FILE *out)
{
    for (size_t i = 0; i < options_count(program); i++) {
        const struct option *option = options_at(program, i);
        if (option->name && option->size)
            put_assignments(out, option, line->given[i], options_field(option, (void *)settings));
    }
}

// ---- man ----

// `Quoted` words are bold. Dashes in bold become minus signs, which can be copied. A line must not
// begin like a roff request.
static void put_roff(FILE *out, const char *text)
{
    bool bold = false;
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '`')
            fputs((bold = !bold) ? "\\fB" : "\\fR", out);
        else if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-' && bold)
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
}

static void put_roff_name(FILE *out, const char *name)
{
    fputs("\\-\\-", out);
    for (; *name; name++)
        fputs(*name == '-' ? "\\-" : (const char[]){*name, '\0'}, out);
}

// The name is bold, what a user replaces is italic.
static void put_man_heading(FILE *out, const struct option *option)
{
    char value[TEXT_SIZE];
    const bool replaced = option->argument != NULL;
    fputs(".TP\n.BI \"", out);
    put_roff_name(out, option->name);
    if (!replaced)
        fprintf(out, "%s%s\"\n",
                *options_value(option, value, sizeof value) ? " "
                : is_help(option)                           ? ", \\-h"
                                                            : "",
                value);
    else if (option->word)
        fprintf(out, " \" %s \"|%s\"\n", option->argument, option->word);
    else
        fprintf(out, " \" %s\n", option->argument);
}

// The limits of a number, unless only its type sets them.
static void put_man_range(FILE *out, const struct option *option)
{
    const bool whole = option->kind == OPTION_COUNT || option->kind == OPTION_BYTES;
    if (option->kind == OPTION_NUMBER)
        fprintf(out, "Above %" PRIu64 ", and %" PRIu64 " at most.\n", option->least, option->most);
    else if (whole && option->most < INT32_MAX)
        fprintf(out, "From %" PRIu64 " to %" PRIu64 ".\n", option->least, option->most);
    else if (whole && option->least)
        fprintf(out, "At least %" PRIu64 ".\n", option->least);
}

static void put_man_option(FILE *out, const struct option *option)
{
    char help[TEXT_SIZE];
    help_of(option, help, sizeof help);
    help[0] = (char)toupper((unsigned char)help[0]);
    put_man_heading(out, option);
    put_roff(out, help);
    fputs(".\n", out);
    if (option->details) {
        put_roff(out, option->details);
        fputc('\n', out);
    }
    put_man_range(out, option);
    if (!default_of(option))
        return;
    fputs("Default: ", out);
    put_roff(out, default_of(option));
    fputs(".\n", out);
}

static void print_man(const struct options_program *program, FILE *out)
{
    for (size_t i = 0; i < options_count(program); i++) {
        const struct option *option = options_at(program, i);
        if (option->section)
            fprintf(out, ".SS %s\n", option->section);
        else if (option->help)
            put_man_option(out, option);
    }
}

// ---- Markdown ----

static void put_cell(FILE *out, const char *text)
{
    for (; *text; text++)
        fprintf(out, *text == '|' ? "\\%c" : "%c", *text);
}

static void put_markdown_option(FILE *out, const struct option *option)
{
    char value[TEXT_SIZE], help[TEXT_SIZE];
    fprintf(out, "| `--%s", option->name);
    if (*options_value(option, value, sizeof value))
        fputc(' ', out);
    put_cell(out, value);
    fputs(is_help(option) ? "`, `-h` | " : "` | ", out);
    put_cell(out, help_of(option, help, sizeof help));
    fputs(option->initial ? " | `" : " | ", out);
    put_cell(out, default_of(option) ? default_of(option) : "");
    fputs(option->initial ? "` |\n" : " |\n", out);
}

// One table a section.
static void print_markdown(const struct options_program *program, FILE *out)
{
    static const char head[] = "| option | meaning | default |\n|---|---|---|\n";
    if (!options_at(program, 0)->section)
        fputs(head, out);
    for (size_t i = 0; i < options_count(program); i++) {
        const struct option *option = options_at(program, i);
        if (option->section)
            fprintf(out, "%s**%s**\n\n%s", i ? "\n" : "", option->section, head);
        else if (option->help)
            put_markdown_option(out, option);
    }
}

// ---- bash ----

// What can follow an option: the words that it knows, else bash's own completion.
static void put_bash_values(FILE *out, const struct options_program *program)
{
    fputs("    case $previous in\n", out);
    for (size_t i = 0; i < options_count(program); i++) {
        const struct option *option = options_at(program, i);
        char words[256] = "";
        if (!option->help || !options_takes_value(option))
            continue;
        if (option->words)
            options_join(words, sizeof words, option->words, " ", " ");
        else if (option->word)
            snprintf(words, sizeof words, "%s", option->word);
        if (*words)
            fprintf(out, "        --%s) words='%s' ;;\n", option->name, words);
        else
            fprintf(out, "        --%s) return ;;\n", option->name);
    }
    fputs("    esac\n", out);
}

static void put_bash_options(FILE *out, const struct options_program *program,
                             const struct options_command *command)
{
    for (size_t i = 0; i < options_count(program); i++) {
        const struct option *option = options_at(program, i);
        if (option->help && options_taken(option, command))
            fprintf(out, " --%s", option->name);
    }
}

// The options of each command; before a command, the commands.
static void put_bash_commands(FILE *out, const struct options_program *program)
{
    const struct options_command *command;
    fputs("        case $command in\n", out);
    for (size_t i = 0; (command = options_command_at(program, i)); i++) {
        if (!command->help)
            continue;
        fprintf(out, "            %s) words='", command->name);
        put_bash_options(out, program, command);
        fputs("' ;;\n", out);
    }
    fputs("            *) words='", out);
    for (size_t i = 0; (command = options_command_at(program, i)); i++)
        if (command->help)
            fprintf(out, "%s ", command->name);
    put_bash_options(out, program, NULL);
    fputs("' ;;\n        esac\n", out);
}

static void put_bash_find_command(FILE *out, const struct options_program *program)
{
    const struct options_command *command;
    fputs("    for ((i = 1; i < COMP_CWORD; i++)); do\n        case ${COMP_WORDS[i]} in\n          "
          "  ",
          out);
    for (size_t i = 0; (command = options_command_at(program, i)); i++)
        if (command->help)
            fprintf(out, "%s%s", i ? " | " : "", command->name);
    fputs(") command=${COMP_WORDS[i]}; break ;;\n        esac\n    done\n", out);
}

// bash splits --name=value into three words.
static const char bash_head[] = "()\n{\n"
                                "    local word=${COMP_WORDS[COMP_CWORD]} "
                                "previous=${COMP_WORDS[COMP_CWORD - 1]} command='' words='' i\n"
                                "    if [ \"$word\" = = ]; then\n"
                                "        word=''\n"
                                "    elif [ \"$previous\" = = ]; then\n"
                                "        previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
                                "    fi\n";

static void print_bash(const struct options_program *program, FILE *out)
{
    char function[64];
    snprintf(function, sizeof function, "_%s", program->name);
    for (char *letter = function; (letter = strchr(letter, '-'));)
        *letter = '_';
    fprintf(out, "# bash completion of %s. Made by %s --print-options bash.\n%s%s", program->name,
            program->name, function, bash_head);
    if (program->commands)
        put_bash_find_command(out, program);
    put_bash_values(out, program);
    fputs("    if [ -z \"$words\" ]; then\n", out);
    if (program->commands) {
        put_bash_commands(out, program);
    } else {
        fputs("        words='", out);
        put_bash_options(out, program, NULL);
        fputs("'\n", out);
    }
    fprintf(out,
            "    fi\n    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n"
            "complete -o default -F %s %s\n",
            function, program->name);
}

bool options_print(const struct options_program *program, const char *format, FILE *out)
{
    static const struct {
        const char *name;
        void (*print)(const struct options_program *program, FILE *out);
    } formats[] = {{"man", print_man}, {"markdown", print_markdown}, {"bash", print_bash}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, format) != 0)
            continue;
        formats[i].print(program, out);
        return true;
    }
    return false;
}
