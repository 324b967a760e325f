// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_options.c - base/options with a table that has an option of each kind: values and their
// limits, command lines, errors, and printed lists. The programs' own tables are tested with the
// programs.

#include "base/options.h"
#include "rigs/check_main.h"

#include <stdlib.h>
#include <string.h>

enum { AUTO = -1, FIRST_COLOUR = 5 };

#define OPTIONS(SECTION, OPTION, ALSO)                                                             \
    SECTION("Paint")                                                                               \
    OPTION(uint32_t, colour, "colour", "NAME", OPTION_CHOICE, FIRST_COLOUR, .words = colours,      \
           .initial = "green", .help = "what to paint in", .groups = PAINTS)                       \
    ALSO(colour, "colder", NULL, OPTION_CONSTANT, FIRST_COLOUR + 2,                                \
         .help = "the same as `--colour blue`")                                                    \
    OPTION(uint32_t, mode, "mode", NULL, OPTION_CHOICE, 0, OPTION_WORDS("red", "green", "blue"),   \
           .help = "the other colour")                                                             \
    SECTION("Numbers")                                                                             \
    OPTION(uint32_t, count, "count", "N", OPTION_COUNT, 2, 9, .initial = "4", .help = "how many",  \
           .details = "A \\ and a .dot.")                                                          \
    OPTION(uint32_t, entries, "entries", "N", OPTION_COUNT, 0, 64, .power_of_two = true,           \
           .help = "a power of two")                                                               \
    OPTION(uint64_t, poll, "poll", "US", OPTION_COUNT, 0, 1000, .word = "auto",                    \
           .word_value = (uint64_t)AUTO, .initial = "auto", .help = "how long")                    \
    OPTION(uint64_t, size, "size", "BYTES", OPTION_BYTES, 1, UINT64_C(1) << 40,                    \
           .help = "how large")                                                                    \
    OPTION(double, share, "share", "F", OPTION_NUMBER, 0, 1, .initial = "0.5",                     \
           .help = "which part")                                                                   \
    SECTION("General")                                                                             \
    OPTION(const char *, name, "name", "A|B", OPTION_TEXT, 1, .otherwise = "none",                 \
           .help = "a name", .groups = DRAWS)                                                      \
    OPTION(const char *, note, "note", "TEXT", OPTION_TEXT, .help = NULL)                          \
    OPTION(bool, loud, "loud", NULL, OPTION_FLAG, .help = "say more")

struct settings {
    OPTIONS(OPTION_NO_MEMBER, OPTION_MEMBER, OPTION_NO_MEMBER)
};

static const char *const colours[] = {"red", "green", "blue", NULL};

enum { PAINTS = 1, DRAWS = 2 };

#define ENTRY(...) OPTION_ENTRY(struct settings, __VA_ARGS__)
#define ALSO(...)  ENTRY(, __VA_ARGS__)
static const struct option entries[] = {OPTIONS(OPTION_HEADING, ENTRY, ALSO)};

static const struct options_program plain = {
    .name = "prog",
    .usage = "prog [OPTION]...",
    .about = "Does things.",
    .epilogue = "Exit codes: 0.",
    .options = entries,
    .num_options = sizeof entries / sizeof *entries,
};

static struct {
    uint32_t coats;
    bool fast;
} of_paint;
static const struct option paint_options[] = {
    OPTION_OWN(of_paint.coats, "coats", "N", OPTION_COUNT, 1, 9, .initial = "2",
               .help = "how many times"),
    OPTION_OWN(of_paint.fast, "fast", NULL, OPTION_FLAG, .help = "hurry"),
    {.name = NULL},
};

static const struct command {
    struct options_command words;
    int more; // a program's struct is longer
} paint = {{"paint", "WALL", "paint a wall", PAINTS, paint_options}, 1},
  draw = {{.name = "draw", .help = "draw", .groups = DRAWS}, 2},
  secret = {{.name = "secret", .groups = PAINTS | DRAWS}, 3};
static const struct options_command *const commands[] = {&paint.words, &draw.words, &secret.words,
                                                         NULL};

static struct options_program with_commands(void)
{
    struct options_program program = plain;
    program.commands = commands;
    return program;
}

static struct settings settings;
static struct options_line line;

// Splits `text` at spaces; "''" is an empty word.
static enum options_result read_text(const struct options_program *program, const char *text)
{
    static char copy[256], *argv[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "prog %s", text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
    argv[argc] = NULL;
    settings = (struct settings){.name = NULL};
    return options_read(program, argc, argv, &settings, &line);
}

START_TEST(defaults_are_set_by_the_table)
{
    ck_assert_int_eq(read_text(&plain, ""), OPTIONS_RUN);
    ck_assert_uint_eq(settings.colour, FIRST_COLOUR + 1);
    ck_assert_uint_eq(settings.count, 4);
    ck_assert_uint_eq(settings.poll, UINT64_MAX);
    ck_assert_double_eq(settings.share, 0.5);
    ck_assert_ptr_null(settings.name);
    ck_assert(!settings.loud);
    for (int i = 0; i < OPTIONS_MOST; i++)
        ck_assert(!line.given[i]);
}
END_TEST

START_TEST(each_kind_sets_its_field)
{
    ck_assert_int_eq(read_text(&plain, "--colour=red --mode blue --count 9 --entries 32 --poll 7 "
                                       "--size 3M --share 1 --name x --note '' --loud"),
                     OPTIONS_RUN);
    ck_assert_uint_eq(settings.colour, FIRST_COLOUR);
    ck_assert_uint_eq(settings.mode, 2);
    ck_assert_uint_eq(settings.count, 9);
    ck_assert_uint_eq(settings.entries, 32);
    ck_assert_uint_eq(settings.poll, 7);
    ck_assert_uint_eq(settings.size, 3u << 20);
    ck_assert_double_eq(settings.share, 1);
    ck_assert_str_eq(settings.name, "x");
    ck_assert_str_eq(settings.note, "");
    ck_assert(settings.loud);
    ck_assert(options_given(&plain, &line, "mode"));
    ck_assert(!options_given(&plain, &line, "colder"));
    ck_assert(!options_given(&plain, &line, "nothing"));
}
END_TEST

START_TEST(the_last_of_two_options_holds)
{
    read_text(&plain, "--colour red --colder");
    ck_assert_uint_eq(settings.colour, FIRST_COLOUR + 2);
    read_text(&plain, "--colder --colour red");
    ck_assert_uint_eq(settings.colour, FIRST_COLOUR);
}
END_TEST

START_TEST(a_number_may_have_a_point_and_an_exponent)
{
    static const struct {
        const char *words;
        double number;
    } cases[] = {
        {"--share .5", 0.5}, {"--share 1.", 1}, {"--share 25e-2", 0.25}, {"--share 0.01E+2", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(read_text(&plain, cases[i].words), OPTIONS_RUN);
        ck_assert_double_eq(settings.share, cases[i].number);
    }
}
END_TEST

START_TEST(operands_keep_their_order)
{
    ck_assert_int_eq(read_text(&plain, "one --count 5 - two --loud -- --three"), OPTIONS_RUN);
    ck_assert_int_eq(line.num_operands, 4);
    ck_assert_str_eq(line.operands[0], "one");
    ck_assert_str_eq(line.operands[1], "-");
    ck_assert_str_eq(line.operands[2], "two");
    ck_assert_str_eq(line.operands[3], "--three");
    ck_assert_uint_eq(settings.count, 5);
}
END_TEST

static const struct {
    const char *words, *sentence;
} refused[] = {
    {"--colour pink", "--colour \"pink\" is none of red, green and blue"},
    {"--colour ''", "--colour \"\" is none of red, green and blue"},
    {"--count 1", "--count \"1\" is not a whole number from 2 to 9"},
    {"--count 10", "--count \"10\" is not a whole number from 2 to 9"},
    {"--count=-3", "--count \"-3\" is not a whole number from 2 to 9"},
    {"--count 4k", "--count \"4k\" is not a whole number from 2 to 9"},
    {"--count 99999999999999999999",
     "--count \"99999999999999999999\" is not a whole number from 2 to 9"},
    {"--entries 48", "--entries \"48\" is not a power of two"},
    {"--poll often", "--poll \"often\" is neither auto nor a whole number from 0 to 1000"},
    {"--poll 1001", "--poll \"1001\" is neither auto nor a whole number from 0 to 1000"},
    {"--size 0",
     "--size \"0\" is not a whole number from 1 to 1099511627776 (K, M and G are allowed)"},
    {"--size 99999999999G", "--size \"99999999999G\" is not a whole number from 1 to 1099511627776 "
                            "(K, M and G are allowed)"},
    {"--share 0", "--share \"0\" is not a number above 0 and up to 1"},
    {"--share nan", "--share \"nan\" is not a number above 0 and up to 1"},
    {"--share 0x1p-1", "--share \"0x1p-1\" is not a number above 0 and up to 1"},
    {"--share 0,5", "--share \"0,5\" is not a number above 0 and up to 1"},
    {"--share +1", "--share \"+1\" is not a number above 0 and up to 1"},
    {"--share .", "--share \".\" is not a number above 0 and up to 1"},
    {"--share 1e", "--share \"1e\" is not a number above 0 and up to 1"},
    {"--share 1e-", "--share \"1e-\" is not a number above 0 and up to 1"},
    {"--share ''", "--share \"\" is not a number above 0 and up to 1"},
    {"--share 1x", "--share \"1x\" is not a number above 0 and up to 1"},
    {"--name ''", "--name \"\" is empty"},
    {"--name", "--name needs a value: A|B"},
    {"--mode", "--mode needs a value: red|green|blue"},
    {"--loud=yes", "--loud takes no value, but got \"yes\""},
    {"--bogus=3", "--bogus is no option; see prog --help"},
    {"--co 3", "--co is no option; write the whole name: --colour, --colder or --count"},
    {"--cou=3", "--cou is no option; write the whole name: --count"},
    {"--hel", "--hel is no option; write the whole name: --help"},
    {"--not x", "--not is no option; see prog --help"}, // --note is hidden
    {"--=x", "-- is no option; see prog --help"},
    {"-x", "-x is no option; see prog --help"},
    {"--help --bogus", "--bogus is no option; see prog --help"},
    {"--print-options html", "--print-options \"html\" is none of man, markdown and bash"},
};

START_TEST(a_wrong_word_is_named_in_one_sentence)
{
    ck_assert_int_eq(read_text(&plain, refused[_i].words), OPTIONS_BAD);
    ck_assert_str_eq(line.error, refused[_i].sentence);
}
END_TEST

START_TEST(a_command_takes_the_options_of_its_groups)
{
    const struct options_program program = with_commands();
    ck_assert_int_eq(read_text(&program, "--colour red paint wall"), OPTIONS_RUN);
    ck_assert_ptr_eq(line.command, &paint.words);
    ck_assert_int_eq(line.num_operands, 1);
    ck_assert_str_eq(line.operands[0], "wall");
    ck_assert_int_eq(read_text(&program, "secret --colour red --name x --loud"), OPTIONS_RUN);
    ck_assert_int_eq(read_text(&program, "paint --name x"), OPTIONS_BAD);
    ck_assert_str_eq(line.error, "paint takes no --name; draw does");
    ck_assert_int_eq(read_text(&program, "erase"), OPTIONS_BAD);
    ck_assert_str_eq(line.error, "\"erase\" is no command; there are paint and draw");
    ck_assert_int_eq(read_text(&program, "--loud"), OPTIONS_BAD);
    ck_assert_str_eq(line.error, "name a command: paint and draw");
}
END_TEST

START_TEST(an_option_of_one_command_is_taken_by_no_other)
{
    const struct options_program program = with_commands();
    ck_assert_int_eq(read_text(&program, "paint wall --fast --coats 3 --loud"), OPTIONS_RUN);
    ck_assert(of_paint.fast && settings.loud);
    ck_assert_uint_eq(of_paint.coats, 3);
    ck_assert(options_given(&program, &line, "coats"));
    ck_assert_int_eq(read_text(&program, "paint wall"), OPTIONS_RUN);
    ck_assert_uint_eq(of_paint.coats, 2);
    ck_assert(!options_given(&program, &line, "coats"));
    ck_assert_int_eq(read_text(&program, "draw --coats 3"), OPTIONS_BAD);
    ck_assert_str_eq(line.error, "draw takes no --coats; paint does");
    ck_assert_int_eq(read_text(&program, "paint --coats 10"), OPTIONS_BAD);
    ck_assert_str_eq(line.error, "--coats \"10\" is not a whole number from 1 to 9");
    ck_assert_int_eq(read_text(&plain, "--coats 3"), OPTIONS_BAD);
    ck_assert_str_eq(line.error, "--coats is no option; see prog --help");
}
END_TEST

// Sets options as a configuration file would.
START_TEST(a_program_has_up_to_128_options_and_each_is_known_as_given)
{
    static char names[OPTIONS_MOST + 1][16];
    static struct option many[OPTIONS_MOST + 1];
    char text[16];
    for (int i = 0; i <= OPTIONS_MOST; i++) {
        snprintf(names[i], sizeof names[i], "o%d", i);
        many[i] = (struct option){names[i], .kind = OPTION_FLAG,
                                  .offset = offsetof(struct settings, loud), .size = 1};
    }
    struct options_program program = plain;
    program.options = many;
    program.num_options = OPTIONS_MOST;
    for (int i = 0; i < OPTIONS_MOST; i++) {
        snprintf(text, sizeof text, "--o%d", i);
        ck_assert_int_eq(read_text(&program, text), OPTIONS_RUN);
        for (int j = 0; j < OPTIONS_MOST; j++)
            ck_assert(options_given(&program, &line, names[j]) == (i == j));
    }
    program.num_options++;
    ck_assert_int_eq(read_text(&program, ""), OPTIONS_BAD);
    ck_assert_str_eq(line.error, "prog has more than 128 options");
}
END_TEST

START_TEST(options_are_set_by_name)
{
    char error[OPTIONS_ERROR_SIZE];
    settings = (struct settings){.name = NULL};
    ck_assert(options_set_defaults(&plain, &settings, error));
    ck_assert(options_set(&plain, "count", "7", &settings, error));
    ck_assert(options_set(&plain, "loud", "yes", &settings, error));
    ck_assert_uint_eq(settings.count, 7);
    ck_assert(settings.loud);
    ck_assert(options_set(&plain, "loud", "no", &settings, error));
    ck_assert(!settings.loud);
    ck_assert(options_set(&plain, "colder", "no", &settings, error));
    ck_assert_uint_eq(settings.colour, FIRST_COLOUR + 1);
    ck_assert(!options_set(&plain, "loud", "maybe", &settings, error));
    ck_assert_str_eq(error, "--loud \"maybe\" is neither yes nor no");
    ck_assert(!options_set(&plain, "count", NULL, &settings, error));
    ck_assert_str_eq(error, "--count needs a value");
    ck_assert(!options_set(&plain, "cou", "7", &settings, error)); // names cannot be shortened here
    ck_assert_str_eq(error, "--cou is no option");
    ck_assert(!options_set(&plain, "help", NULL, &settings, error));
}
END_TEST

// ---- values ----

static char *values_of(const char *words)
{
    char *text = NULL;
    size_t size = 0;
    ck_assert_int_eq(read_text(&plain, words), OPTIONS_RUN);
    FILE *out = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(out);
    options_print_values(&plain, &line, &settings, out);
    fclose(out);
    return text;
}

START_TEST(values_are_lines_and_those_of_defaults_begin_with_a_hash)
{
    char *text = values_of("--colour blue --poll 7 --size 3M --name x --loud");
    ck_assert_str_eq(text, "colour=blue\n#colder=yes\n#mode=red\n#count=4\n#entries=0\npoll=7\n"
                           "size=3145728\n#share=0.5\nname=x\n#note=\nloud=yes\n");
    free(text);
    text = values_of("");
    ck_assert_str_eq(text, "#colour=green\n#colder=no\n#mode=red\n#count=4\n#entries=0\n"
                           "#poll=auto\n#size=0\n#share=0.5\n#name=\n#note=\n#loud=no\n");
    free(text);
}
END_TEST

START_TEST(values_have_no_password_of_a_url_and_one_line_each)
{
    static const struct {
        const char *words, *line;
    } cases[] = {
        {"--name redis://me:secret@host:1,other:2", "\nname=redis://me:@host:1,other:2\n"},
        {"--name redis://:se:cr@et@host", "\nname=redis://:@host\n"},
        {"--name redis://host:1", "\nname=redis://host:1\n"},
        {"--name files:///a:b/c@d", "\nname=files:///a:b/c@d\n"},
        {"--name a\nb", "\nname=a?b\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = values_of(cases[i].words);
        ck_assert_msg(strstr(text, cases[i].line) != NULL, "\"%s\" is not in:\n%s", cases[i].line,
                      text);
        free(text);
    }
}
END_TEST

// ---- printed lists ----

static char *printed(const struct options_program *program, const char *format,
                     const struct options_command *command)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(out);
    if (format)
        ck_assert(options_print(program, format, out));
    else
        options_print_help(program, command, out);
    fclose(out);
    return text;
}

static void has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in:\n%s", part, text);
}

static void lacks(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) == NULL, "\"%s\" is in:\n%s", part, text);
}

START_TEST(help_has_each_option_below_its_section)
{
    char *text = printed(&plain, NULL, NULL);
    has(text, "usage: prog [OPTION]...\n\nDoes things.\n\nPaint:\n"
              "  --colour NAME         what to paint in: red, green or blue [green]\n"
              "  --colder              the same as --colour blue\n"
              "  --mode red|green|blue\n                        the other colour\n"
              "\nNumbers:\n"
              "  --count N             how many [4]\n");
    has(text, "  --poll US|auto        how long [auto]\n");
    has(text, "  --name A|B            a name [none]\n");
    has(text, "  --help, -h            print this and end\n  --version             print the "
              "version and end\n");
    has(text, "\nExit codes: 0.\n");
    lacks(text, "--note");
    free(text);
}
END_TEST

START_TEST(help_of_a_command_has_what_it_takes)
{
    const struct options_program program = with_commands();
    char *text = printed(&program, NULL, &draw.words);
    has(text, "usage: prog draw [OPTION]...\n\nDraw.\n");
    has(text, "--name A|B");
    lacks(text, "--colour NAME");
    lacks(text, "--coats");
    free(text);
    text = printed(&program, NULL, NULL);
    has(text, "\nCommands:\n  paint WALL            paint a wall\n");
    lacks(text, "secret");
    char *hidden = printed(&program, NULL, &secret.words);
    ck_assert_str_eq(hidden, text);
    free(hidden);
    free(text);
}
END_TEST

START_TEST(long_help_is_wrapped_and_no_line_of_it_looks_like_an_option)
{
    static const struct option wordy[] = {
        {"a", NULL, OPTION_FIELD(OPTION_FLAG, struct settings, loud),
         .help = "one two three four five six seven eight nine ten eleven twelve 13 with `--b` --c "
                 "and so on and on"}};
    const struct options_program program = {"prog", "prog", "About.", "End.", wordy, 1, NULL};
    char *text = printed(&program, NULL, NULL);
    has(text, "\nOptions:\n  --a                   one two three four five six seven eight nine "
              "ten eleven twelve 13\n"
              "                        with --b --c and so on and on\n");
    free(text);
}
END_TEST

START_TEST(the_man_page_list_is_escaped)
{
    char *text = printed(&plain, "man", NULL);
    has(text, ".SS Paint\n.TP\n.BI \"\\-\\-colour \" NAME\nWhat to paint in: red, green or "
              "blue.\nDefault: green.\n");
    has(text, ".TP\n.BI \"\\-\\-colder\"\nThe same as \\fB\\-\\-colour blue\\fR.\n");
    has(text, ".TP\n.BI \"\\-\\-mode red|green|blue\"\n");
    has(text, ".TP\n.BI \"\\-\\-poll \" US \"|auto\"\n");
    has(text, "A \\e and a .dot.\nFrom 2 to 9.\nDefault: 4.\n");
    has(text, "At least 1.\n");
    has(text, "Above 0, and 1 at most.\n");
    has(text, ".TP\n.BI \"\\-\\-help, \\-h\"\n");
    lacks(text, "note");
    free(text);
}
END_TEST

START_TEST(the_markdown_table_has_a_row_for_each_option)
{
    char *text = printed(&plain, "markdown", NULL);
    has(text, "**Paint**\n\n| option | meaning | default |\n|---|---|---|\n"
              "| `--colour NAME` | what to paint in: red, green or blue | `green` |\n");
    has(text, "| `--name A\\|B` | a name | none |\n");
    has(text, "| `--help`, `-h` | print this and end |  |\n");
    lacks(text, "note");
    free(text);
}
END_TEST

// The words that bash offers after `words`, one a line.
static const char *completed(const struct options_program *program, const char *words)
{
    static char said[1024];
    char path[] = "/tmp/aule-test-options.XXXXXX", command[512];
    char *text = printed(program, "bash", NULL);
    FILE *script = fdopen(mkstemp(path), "w");
    ck_assert_ptr_nonnull(script);
    fputs(text, script);
    fclose(script);
    free(text);
    snprintf(command, sizeof command,
             "bash -c 'set -eu; source %s; COMP_WORDS=(prog %s); COMP_CWORD=$((${#COMP_WORDS[@]} - "
             "1)); COMPREPLY=(); "
             "_prog; printf \"%%s\\n\" \"${COMPREPLY[@]}\"' 2>&1",
             path, words);
    FILE *shell = popen(command, "re");
    ck_assert_ptr_nonnull(shell);
    said[fread(said, 1, sizeof said - 1, shell)] = '\0';
    ck_assert_int_eq(pclose(shell), 0);
    remove(path);
    return said;
}

START_TEST(bash_completes_commands_options_and_words)
{
    const struct options_program program = with_commands();
    ck_assert_str_eq(completed(&plain, "--co"), "--colour\n--colder\n--count\n");
    ck_assert_str_eq(completed(&plain, "--colour \"\""), "red\ngreen\nblue\n");
    ck_assert_str_eq(completed(&plain, "--colour = g"), "green\n");
    ck_assert_str_eq(completed(&plain, "--poll ="), "auto\n");
    ck_assert_str_eq(completed(&plain, "--count \"\""), "\n"); // bash continues with file names
    ck_assert_str_eq(completed(&program, "p"), "paint\n");
    ck_assert_str_eq(completed(&program, "draw --n"), "--name\n");
    ck_assert_str_eq(completed(&program, "paint --coa"), "--coats\n");
    ck_assert_str_eq(completed(&program, "draw --coa"), "\n");
    ck_assert_str_eq(completed(&program, "draw --colo"), "\n");
    ck_assert_str_eq(completed(&program, "paint --colo"), "--colour\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *reading = tcase_create("reading");
    TCase *printing = tcase_create("printing");
    tcase_add_test(reading, defaults_are_set_by_the_table);
    tcase_add_test(reading, each_kind_sets_its_field);
    tcase_add_test(reading, the_last_of_two_options_holds);
    tcase_add_test(reading, a_number_may_have_a_point_and_an_exponent);
    tcase_add_test(reading, operands_keep_their_order);
    tcase_add_loop_test(reading, a_wrong_word_is_named_in_one_sentence, 0,
                        sizeof refused / sizeof *refused);
    tcase_add_test(reading, a_command_takes_the_options_of_its_groups);
    tcase_add_test(reading, an_option_of_one_command_is_taken_by_no_other);
    tcase_add_test(reading, a_program_has_up_to_128_options_and_each_is_known_as_given);
    tcase_add_test(reading, options_are_set_by_name);
    tcase_add_test(printing, values_are_lines_and_those_of_defaults_begin_with_a_hash);
    tcase_add_test(printing, values_have_no_password_of_a_url_and_one_line_each);
    tcase_add_test(printing, help_has_each_option_below_its_section);
    tcase_add_test(printing, help_of_a_command_has_what_it_takes);
    tcase_add_test(printing, long_help_is_wrapped_and_no_line_of_it_looks_like_an_option);
    tcase_add_test(printing, the_man_page_list_is_escaped);
    tcase_add_test(printing, the_markdown_table_has_a_row_for_each_option);
    tcase_add_test(printing, bash_completes_commands_options_and_words);
    suite_add_tcase(suite, reading);
    suite_add_tcase(suite, printing);
    return check_main(suite);
}
