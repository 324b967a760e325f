// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_stored.c - names, headers and checks of stored blocks, and the hash behind them.

#include "base/sha256.h"
#include "rigs/check_main.h"
#include "tier_world.h"

static void hex_of(const uint8_t *bytes, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++)
        sprintf(out + 2 * i, "%02x", bytes[i]);
}

START_TEST(sha256_gives_what_the_standard_says)
{
    static const struct {
        const char *text, *hash;
    } cases[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sha256 sha;
        uint8_t hash[SHA256_BYTES];
        char text[2 * SHA256_BYTES + 1];
        sha256_begin(&sha);
        sha256_add(&sha, cases[i].text, strlen(cases[i].text));
        sha256_end(&sha, hash);
        hex_of(hash, sizeof hash, text);
        ck_assert_str_eq(text, cases[i].hash);
    }
}
END_TEST

static void hash_of(const uint8_t *data, size_t size, size_t step, uint8_t hash[SHA256_BYTES])
{
    struct sha256 sha;
    sha256_begin(&sha);
    for (size_t at = 0; at < size; at += step)
        sha256_add(&sha, data + at, size - at < step ? size - at : step);
    sha256_end(&sha, hash);
}

START_TEST(the_processors_instructions_and_plain_c_give_the_same_hashes)
{
    uint8_t data[700], plain[SHA256_BYTES], fast[SHA256_BYTES];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i * 31 + i / 7);
    for (size_t size = 0; size <= sizeof data; size++) {
        ck_assert(!sha256_use_instructions(false));
        hash_of(data, size, sizeof data, plain);
        if (!sha256_use_instructions(true) && size == 0)
            printf("the processor has no instructions for SHA-256\n");
        hash_of(data, size, 1 + size % 97, fast);
        ck_assert_mem_eq(plain, fast, sizeof plain);
    }
}
END_TEST

START_TEST(hmac_gives_what_rfc_4231_says)
{
    uint8_t hash[SHA256_BYTES], key[131];
    char text[2 * SHA256_BYTES + 1];
    sha256_hmac("Jefe", 4, "what do ya want for nothing?", 28, hash);
    hex_of(hash, sizeof hash, text);
    ck_assert_str_eq(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    sha256_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
                hash);
    hex_of(hash, sizeof hash, text);
    ck_assert_str_eq(text, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}
END_TEST

START_TEST(a_name_has_the_version_the_ids_in_hex_and_the_part)
{
    struct stored_space space = {.block_bytes = 1};
    struct stored_chain chain = {{0xab, 1}};
    char name[STORED_NAME_ROOM];
    space.fingerprint[15] = 0x10;
    space.salt[0] = 0xff;
    const size_t size = stored_name(name, &space, &chain, 4095);
    ck_assert_str_eq(name, "aule:1:00000000000000000000000000000010:"
                           "ff000000000000000000000000000000:"
                           "{ab010000000000000000000000000000}:4095");
    ck_assert_uint_eq(size, strlen(name));
}
END_TEST

START_TEST(a_chain_differs_with_each_token_before_it_and_with_the_extra_key)
{
    const int32_t one[] = {1, 2}, two[] = {1, 3};
    const struct stored_chain root = stored_chain_begin("", 0), other = stored_chain_begin("x", 1),
                              a = stored_chain_next(&root, one, 2),
                              b = stored_chain_next(&root, two, 2),
                              c = stored_chain_next(&other, one, 2),
                              behind_a = stored_chain_next(&a, one, 2),
                              behind_b = stored_chain_next(&b, one, 2),
                              again = stored_chain_next(&root, one, 2);
    ck_assert_mem_ne(&a, &b, sizeof a);
    ck_assert_mem_ne(&a, &c, sizeof a);
    ck_assert_mem_ne(&behind_a, &behind_b, sizeof a);
    ck_assert_mem_eq(&a, &again, sizeof a);
}
END_TEST

START_TEST(the_parts_of_a_block_cover_it_once)
{
    const uint64_t sizes[] = {16, STORED_PART_BYTES, STORED_PART_BYTES + 1,
                              3 * STORED_PART_BYTES - 16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t covered = 0;
        for (uint32_t part = 0; part < stored_num_parts(sizes[i]); part++) {
            ck_assert_uint_eq(stored_part_offset(part), covered);
            covered += stored_part_bytes(sizes[i], part);
        }
        ck_assert_uint_eq(covered, sizes[i]);
    }
}
END_TEST

enum { BYTES = 1000 };

// Of `payload` as block 7 of the tenant "a".
static enum stored_reason check(const struct stored_header *header, const uint8_t *payload,
                                uint64_t bytes)
{
    const struct stored_space space = tier_space(BYTES, "a");
    const struct stored_chain chain = tier_chain(7);
    return stored_check(header, &space, &chain, 0, payload, bytes);
}

static void make(struct stored_header *header, uint8_t *payload)
{
    const struct stored_space space = tier_space(BYTES, "a");
    const struct stored_chain chain = tier_chain(7);
    tier_world_fill(payload, BYTES, 7);
    stored_header_fill(header, &space, &chain, 0, payload);
    ck_assert_int_eq(check(header, payload, BYTES), STORED_OK);
}

START_TEST(no_flipped_bit_of_a_header_or_a_payload_passes)
{
    struct stored_header header;
    uint8_t payload[BYTES];
    make(&header, payload);
    for (size_t bit = 0; bit < 8 * sizeof header; bit++) {
        ((uint8_t *)&header)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_ne(check(&header, payload, BYTES), STORED_OK);
        ((uint8_t *)&header)[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * sizeof payload; bit++) {
        payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(check(&header, payload, BYTES), STORED_CHECKSUM);
        payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

START_TEST(a_truncated_payload_does_not_pass_at_any_length)
{
    struct stored_header header;
    uint8_t payload[BYTES];
    make(&header, payload);
    for (uint64_t bytes = 0; bytes < BYTES; bytes++)
        ck_assert_int_eq(check(&header, payload, bytes), STORED_LENGTH);
}
END_TEST

START_TEST(another_model_chain_part_or_salt_does_not_pass)
{
    struct stored_header header;
    uint8_t payload[BYTES];
    const struct stored_space space = tier_space(BYTES, "a"), salted = tier_space(BYTES, "b"),
                              longer = tier_space(BYTES + 16, "a");
    struct stored_space model = space;
    const struct stored_chain chain = tier_chain(7), other = tier_chain(8);
    make(&header, payload);
    model.fingerprint[0] ^= 1;
    ck_assert_int_eq(stored_check(&header, &model, &chain, 0, payload, BYTES), STORED_IDENTITY);
    ck_assert_int_eq(stored_check(&header, &space, &other, 0, payload, BYTES), STORED_IDENTITY);
    ck_assert_int_eq(stored_check(&header, &space, &chain, 1, payload, BYTES), STORED_IDENTITY);
    ck_assert_int_eq(stored_check(&header, &salted, &chain, 0, payload, BYTES), STORED_CHECKSUM);
    ck_assert_int_eq(stored_check(&header, &longer, &chain, 0, payload, BYTES), STORED_LENGTH);
    header.version++;
    ck_assert_int_eq(check(&header, payload, BYTES), STORED_OTHER_VERSION);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        sha256_gives_what_the_standard_says,
        the_processors_instructions_and_plain_c_give_the_same_hashes,
        hmac_gives_what_rfc_4231_says,
        a_name_has_the_version_the_ids_in_hex_and_the_part,
        a_chain_differs_with_each_token_before_it_and_with_the_extra_key,
        the_parts_of_a_block_cover_it_once,
        no_flipped_bit_of_a_header_or_a_payload_passes,
        a_truncated_payload_does_not_pass_at_any_length,
        another_model_chain_part_or_salt_does_not_pass,
        NULL,
    };
    Suite *suite = suite_create("stored");
    check_case(suite, "stored", NULL, NULL, tests, 1);
    return check_main(suite);
}
