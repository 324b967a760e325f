// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.c - see options.h. Reads a command line option by option, and sets each by its name.

#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// Every program has these behind its own options.
enum { HELP, VERSION, NUM_COMMON };
static const struct option common[NUM_COMMON] = {
    [HELP] = {"help", .help = "print this and end"},
    [VERSION] = {"version", .help = "print the version and end"},
};

// ---- the table ----

// The own option of some command; NULL: there are fewer.
static const struct option *own_at(const struct options_program *program, size_t index)
{
    const struct options_command *command;
    for (size_t i = 0; (command = options_command_at(program, i)); i++)
        for (const struct option *own = command->options; own && own->name; own++)
            if (index-- == 0)
                return own;
    return NULL;
}

// The options that have a field: the program's, then those of its commands.
static size_t count_set(const struct options_program *program)
{
    size_t count = 0;
    while (own_at(program, count))
        count++;
    return program->num_options + count;
}

size_t options_count(const struct options_program *program)
{
    return count_set(program) + NUM_COMMON;
}

const struct option *options_at(const struct options_program *program, size_t index)
{
    if (index < program->num_options)
        return &program->options[index];
    const struct option *own = own_at(program, index - program->num_options);
    return own ? own : &common[index - count_set(program)];
}

bool options_takes_value(const struct option *option)
{
    return option->kind != OPTION_FLAG && option->kind != OPTION_CONSTANT;
}

const struct options_command *options_command_at(const struct options_program *program,
                                                 size_t index)
{
    return program->commands ? program->commands[index] : NULL;
}

bool options_taken(const struct option *option, const struct options_command *command)
{
    if (!command)
        return true;
    if (!option->own)
        return !option->groups || option->groups & command->groups;
    for (const struct option *own = command->options; own && own->name; own++)
        if (own == option)
            return true;
    return false;
}

static bool fail(char error[OPTIONS_ERROR_SIZE], const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static bool fail(char error[OPTIONS_ERROR_SIZE], const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(error, OPTIONS_ERROR_SIZE, format, values);
    va_end(values);
    return false;
}

char *options_join(char *to, size_t size, const char *const *words, const char *between,
                   const char *last)
{
    size_t used = 0;
    *to = '\0';
    for (size_t i = 0; words[i] && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s%s",
                                 i == 0         ? ""
                                 : words[i + 1] ? between
                                                : last,
                                 words[i]);
    return to;
}

const char *options_value(const struct option *option, char *to, size_t size)
{
    *to = '\0';
    if (!option->argument && option->words)
        options_join(to, size, option->words, "|", "|");
    else if (option->argument)
        snprintf(to, size, "%s%s%s", option->argument, option->word ? "|" : "",
                 option->word ? option->word : "");
    return to;
}

void *options_field(const struct option *option, void *settings)
{
    return option->own ? option->own : (char *)settings + option->offset;
}

// ---- values ----

// OPTION_FIELD() allows 4 and 8 bytes.
static void store(const struct option *option, void *field, uint64_t value)
{
    if (option->size == sizeof(uint32_t)) {
        uint32_t narrow = (uint32_t)value;
        memcpy(field, &narrow, sizeof narrow);
    } else {
        memcpy(field, &value, sizeof value);
    }
}

// Digits only; with_unit, one of K, M and G may follow them.
static bool parse_whole(const char *text, bool with_unit, uint64_t *out)
{
    static const char units[] = "KMG";
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false; // strtoull would take a sign and spaces
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    const char *unit = with_unit && *end ? strchr(units, *end) : NULL;
    unsigned shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;
    if (unit)
        end++;
    if (errno || *end || number > (UINT64_MAX >> shift))
        return false;
    *out = (uint64_t)number << shift;
    return true;
}

static bool set_whole(const struct option *option, const char *text, void *field, char *error)
{
    uint64_t number;
    const bool bytes = option->kind == OPTION_BYTES;
    if (option->word && strcmp(text, option->word) == 0)
        number = option->word_value;
    else if (!parse_whole(text, bytes, &number) || number < option->least || number > option->most)
        return fail(error, "--%s \"%s\" is %s%s%s a whole number from %" PRIu64 " to %" PRIu64 "%s",
                    option->name, text, option->word ? "neither " : "not",
                    option->word ? option->word : "", option->word ? " nor" : "", option->least,
                    option->most, bytes ? " (K, M and G are allowed)" : "");
    else if (option->power_of_two && number & (number - 1))
        return fail(error, "--%s \"%s\" is not a power of two", option->name, text);
    store(option, field, number);
    return true;
}

static size_t num_digits(const char *text)
{
    return strspn(text, "0123456789");
}

// "12", "0.5", "1e-3" and the like; strtod() also takes spaces, hexadecimal digits and words.
static bool is_decimal(const char *text)
{
    const size_t whole = num_digits(text);
    text += whole;
    const size_t part = *text == '.' ? num_digits(text + 1) : 0;
    text += *text == '.' ? 1 + part : 0;
    if (whole + part == 0)
        return false;
    if (*text != 'e' && *text != 'E')
        return !*text;
    text += 1 + (text[1] == '-' || text[1] == '+');
    return *text && !text[num_digits(text)];
}

// Where a program sets a locale whose numbers have a comma, strtod() stops at the point.
static bool set_number(const struct option *option, const char *text, double *field, char *error)
{
    char *end;
    double number = strtod(text, &end);
    if (!is_decimal(text) || *end ||
        !(number > (double)option->least && number <= (double)option->most))
        return fail(error, "--%s \"%s\" is not a number above %" PRIu64 " and up to %" PRIu64,
                    option->name, text, option->least, option->most);
    *field = number;
    return true;
}

static bool set_choice(const struct option *option, const char *text, void *field, char *error)
{
    char list[256];
    for (size_t i = 0; option->words[i]; i++) {
        if (strcmp(text, option->words[i]) == 0) {
            store(option, field, option->least + i);
            return true;
        }
    }
    if (!option->words[1])
        return fail(error, "--%s \"%s\" is not %s", option->name, text, option->words[0]);
    return fail(error, "--%s \"%s\" is none of %s", option->name, text,
                options_join(list, sizeof list, option->words, ", ", " and "));
}

static bool set_text(const struct option *option, const char *text, const char **field, char *error)
{
    if (strlen(text) < option->least)
        return fail(error, "--%s \"\" is empty", option->name);
    *field = text;
    return true;
}

static bool add_text(const struct option *option, const char *text, struct option_texts *field,
                     char *error)
{
    if (field->count == OPTION_MAX_TEXTS)
        return fail(error, "--%s is given more than %d times", option->name, OPTION_MAX_TEXTS);
    return set_text(option, text, &field->texts[field->count++], error);
}

// `text` NULL: yes.
static bool set_switch(const struct option *option, const char *text, void *field, char *error)
{
    const bool no = text && strcmp(text, "no") == 0;
    if (text && !no && strcmp(text, "yes") != 0)
        return fail(error, "--%s \"%s\" is neither yes nor no", option->name, text);
    if (option->kind == OPTION_FLAG)
        *(bool *)field = !no;
    else if (!no)
        store(option, field, option->least);
    return true;
}

static bool set_value(const struct option *option, const char *text, void *settings, char *error)
{
    void *field = options_field(option, settings);
    switch (option->kind) {
    case OPTION_FLAG:
    case OPTION_CONSTANT: return set_switch(option, text, field, error);
    case OPTION_TEXT: return set_text(option, text, field, error);
    case OPTION_TEXTS: return add_text(option, text, field, error);
    case OPTION_COUNT:
    case OPTION_BYTES: return set_whole(option, text, field, error);
    case OPTION_NUMBER: return set_number(option, text, field, error);
    case OPTION_CHOICE: return set_choice(option, text, field, error);
    }
    return fail(error, "--%s has no kind", option->name);
}

// ---- by name ----

bool options_set_defaults(const struct options_program *program, void *settings,
                          char error[OPTIONS_ERROR_SIZE])
{
    for (size_t i = 0; i < count_set(program); i++) {
        const struct option *option = options_at(program, i);
        if (option->initial && !set_value(option, option->initial, settings, error))
            return false;
    }
    return true;
}

bool options_set(const struct options_program *program, const char *name, const char *value,
                 void *settings, char error[OPTIONS_ERROR_SIZE])
{
    for (size_t i = 0; i < count_set(program); i++) {
        const struct option *option = options_at(program, i);
        if (!option->name || strcmp(option->name, name) != 0)
            continue;
        if (options_takes_value(option) && !value)
            return fail(error, "--%s needs a value", name);
        return set_value(option, value, settings, error);
    }
    return fail(error, "--%s is no option", name);
}

bool options_given(const struct options_program *program, const struct options_line *line,
                   const char *name)
{
    for (size_t i = 0; i < count_set(program); i++) {
        const char *known = options_at(program, i)->name;
        if (known && strcmp(known, name) == 0)
            return line->given[i];
    }
    return false;
}

// ---- the command line ----

// How far the command line was read.
struct reader {
    const struct options_program *program;
    char **argv;
    int argc, next;
    void *settings;
    struct options_line *line;
    bool common[NUM_COMMON]; // which of these were given
};

enum { NONE = -1 };

// The place of the option of this name.
static int find(const struct options_program *program, const char *name, size_t length)
{
    for (size_t i = 0; i < options_count(program); i++) {
        const char *known = options_at(program, i)->name;
        if (known && strncmp(known, name, length) == 0 && !known[length])
            return (int)i;
    }
    return NONE;
}

// The error names the options that begin with the word, except hidden ones.
static bool fail_unknown(const struct reader *reader, const char *name, size_t length)
{
    const char *names[OPTIONS_MOST + NUM_COMMON + 1] = {NULL};
    char list[OPTIONS_ERROR_SIZE / 2];
    size_t count = 0;
    for (size_t i = 0; i < options_count(reader->program); i++) {
        const struct option *option = options_at(reader->program, i);
        if (length && option->help && strncmp(option->name, name, length) == 0)
            names[count++] = option->name;
    }
    if (!count)
        return fail(reader->line->error, "--%.*s is no option; see %s --help", (int)length, name,
                    reader->program->name);
    return fail(reader->line->error, "--%.*s is no option; write the whole name: --%s", (int)length,
                name, options_join(list, sizeof list, names, ", --", " or --"));
}

// --name, --name=value or --name value.
static bool read_long(struct reader *reader, const char *word)
{
    const struct options_program *program = reader->program;
    char *error = reader->line->error;
    const char *name = word + 2;
    const size_t length = strcspn(name, "=");
    const char *value = name[length] ? name + length + 1 : NULL;
    const int place = find(program, name, length);
    if (place == NONE)
        return fail_unknown(reader, name, length);
    const struct option *option = options_at(program, (size_t)place);
    if (!options_takes_value(option) && value)
        return fail(error, "--%s takes no value, but got \"%s\"", option->name, value);
    if (options_takes_value(option) && !value) {
        char wanted[256];
        if (reader->next == reader->argc)
            return fail(error, "--%s needs a value: %s", option->name,
                        options_value(option, wanted, sizeof wanted));
        value = reader->argv[reader->next++];
    }
    const size_t num_set = count_set(program);
    if ((size_t)place >= num_set) {
        reader->common[(size_t)place - num_set] = true;
        return true;
    }
    reader->line->given[place] = true;
    return set_value(option, value, reader->settings, error);
}

static bool read_short(struct reader *reader, const char *word)
{
    if (strcmp(word, "-h") != 0)
        return fail(reader->line->error, "%s is no option; see %s --help", word,
                    reader->program->name);
    reader->common[HELP] = true;
    return true;
}

// Operands gather at the front of argv, in their order.
static bool read_words(struct reader *reader)
{
    bool ended = false; // by "--"
    while (reader->next < reader->argc) {
        char *word = reader->argv[reader->next++];
        if (ended || word[0] != '-' || !word[1])
            reader->line->operands[reader->line->num_operands++] = word;
        else if (strcmp(word, "--") == 0)
            ended = true;
        else if (!(word[1] == '-' ? read_long(reader, word) : read_short(reader, word)))
            return false;
    }
    return true;
}

static const char *command_names(const struct options_program *program, char *to, size_t size)
{
    const char *names[65] = {NULL};
    const struct options_command *command;
    for (size_t i = 0, count = 0; (command = options_command_at(program, i)) && count < 64; i++)
        if (command->help)
            names[count++] = command->name;
    return options_join(to, size, names, ", ", " and ");
}

// The first operand is the command.
static bool read_command(struct reader *reader)
{
    char names[256];
    struct options_line *line = reader->line;
    if (!line->num_operands)
        return reader->common[HELP] || reader->common[VERSION] ||
               fail(line->error, "name a command: %s",
                    command_names(reader->program, names, sizeof names));
    const char *name = *line->operands;
    for (size_t i = 0; (line->command = options_command_at(reader->program, i)); i++)
        if (strcmp(line->command->name, name) == 0)
            break;
    if (!line->command)
        return fail(line->error, "\"%s\" is no command; there are %s", name,
                    command_names(reader->program, names, sizeof names));
    line->operands++;
    line->num_operands--;
    return true;
}

// The only visible command that takes the option; NULL: there are none or several.
static const char *only_taker(const struct options_program *program, const struct option *option)
{
    const struct options_command *command, *taker = NULL;
    for (size_t i = 0; (command = options_command_at(program, i)); i++) {
        if (!command->help || !options_taken(option, command))
            continue;
        if (taker)
            return NULL;
        taker = command;
    }
    return taker ? taker->name : NULL;
}

static bool check_taken(const struct reader *reader)
{
    const struct options_line *line = reader->line;
    for (size_t i = 0; i < count_set(reader->program); i++) {
        const struct option *option = options_at(reader->program, i);
        if (!line->given[i] || options_taken(option, line->command))
            continue;
        const char *taker = only_taker(reader->program, option);
        return fail(reader->line->error, "%s takes no --%s%s%s%s", line->command->name,
                    option->name, taker ? "; " : "", taker ? taker : "", taker ? " does" : "");
    }
    return true;
}

static enum options_result print_format(const struct options_program *program, const char *format,
                                        char *error)
{
    if (options_print(program, format, stdout))
        return OPTIONS_DONE;
    fail(error, "--print-options \"%s\" is none of man, markdown and bash", format);
    return OPTIONS_BAD;
}

enum options_result options_read(const struct options_program *program, int argc, char **argv,
                                 void *settings, struct options_line *line)
{
    struct reader reader = {program, argv, argc, argc ? 1 : 0, settings, line, {false}};
    *line = (struct options_line){.operands = argv + reader.next};
    if (count_set(program) > OPTIONS_MOST) {
        fail(line->error, "%s has more than %d options", program->name, OPTIONS_MOST);
        return OPTIONS_BAD;
    }
    if (argc == 3 && strcmp(argv[1], "--print-options") == 0)
        return print_format(program, argv[2], line->error);
    if (!options_set_defaults(program, settings, line->error) || !read_words(&reader) ||
        (program->commands && !read_command(&reader)))
        return OPTIONS_BAD;
    if (reader.common[HELP])
        options_print_help(program, line->command, stdout);
    else if (reader.common[VERSION])
        printf("%s %s\n", program->name, AULE_VERSION_STRING);
    else
        return check_taken(&reader) ? OPTIONS_RUN : OPTIONS_BAD;
    return OPTIONS_DONE;
}
