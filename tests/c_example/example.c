/* SPDX-License-Identifier: Apache-2.0
 *
 * All of a page's life in C: a pool in this process, a namespace of two planes, a prefix
 * put into it, looked up, pinned and gathered row by row. Build and run:
 *   cc -std=c11 example.c $(python -m libsac --cflags --libs) -o example && ./example
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sac.h"

enum { PAGE_TOKENS = 16, TOKENS = 100, PAGES = TOKENS / PAGE_TOKENS, LAYERS = 3 };

/* Keys and values: 2 heads of 64 bytes, in layers 0 to 2; the rows of each token. An
 * indexer: 24 bytes for every 4 tokens, in layer 1, rows 32 bytes apart in the pool. */
static const sac_plane planes[] = {
    {.name = "kv",
     .layers = {0x7},
     .group = 0,
     .heads = 2,
     .tokens_per_row = 1,
     .row_bytes = 64,
     .dtype = "bf16"},
    {.name = "indexer",
     .layers = {0x2},
     .group = 1,
     .heads = 1,
     .tokens_per_row = 4,
     .row_bytes = 24,
     .row_pitch = 32,
     .dtype = "fp8"},
};
enum { PLANES = sizeof planes / sizeof planes[0] };

/* Ends the program with the library's own words if a call failed. */
static void check(int status, const char *call) {
    if (status != SAC_OK) {
        const sac_error *error = sac_last_error();
        fprintf(stderr, "%s: %s on '%s': %s\n", call, sac_status_name(status), error->object,
                error->message);
        exit(1);
    }
}
#define CHECK(call) check((call), #call)

static void expect(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}
#define EXPECT(condition) expect((condition), #condition)

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    EXPECT(memory != NULL);
    return memory;
}

static bool has_layer(const sac_plane *plane, uint32_t layer) {
    return (plane->layers[layer / 64] >> (layer % 64) & 1) != 0;
}

/* The byte that belongs at one place, so that a row from anywhere else is noticed. */
static uint8_t byte_at(uint32_t plane, uint32_t layer, uint32_t head, uint64_t row,
                       uint32_t byte) {
    uint64_t x = ((((uint64_t)plane * 8 + layer) * 8 + head) * 1024 + row) * 64 + byte;
    x *= UINT64_C(0x9E3779B97F4A7C15);
    return (uint8_t)(x >> 56);
}

/* Writes all missing pages, a plane and layer a request. */
static void write_pages(sac_put *put, const uint64_t *missing, uint64_t count) {
    for (uint32_t p = 0; p < PLANES; ++p) {
        const sac_plane *plane = &planes[p];
        const uint64_t rows = PAGE_TOKENS / plane->tokens_per_row;
        const uint64_t head_bytes = rows * plane->row_bytes;
        const uint64_t page_bytes = plane->heads * head_bytes;
        uint8_t *source = allocate(count * page_bytes);
        for (uint32_t layer = 0; layer < LAYERS; ++layer) {
            if (!has_layer(plane, layer)) {
                continue;
            }
            uint8_t *at = source;
            for (uint64_t page = 0; page < count; ++page) {
                for (uint32_t head = 0; head < plane->heads; ++head) {
                    for (uint64_t row = 0; row < rows; ++row) {
                        for (uint32_t byte = 0; byte < plane->row_bytes; ++byte) {
                            *at++ = byte_at(p, layer, head, missing[page] * rows + row, byte);
                        }
                    }
                }
            }
            const sac_scatter_req request = {.plane = p,
                                             .layer = layer,
                                             .first = 0,
                                             .count = count,
                                             .src = source,
                                             .page_stride = page_bytes,
                                             .head_stride = head_bytes};
            CHECK(sac_put_write(put, &request, 1, 1));
        }
        free(source);
    }
}

/* Gathers rows of one plane, all its layers and heads in one call; returns how many rows
 * were compared byte by byte. Row -1 is a row of zeros. */
static uint64_t gather_plane(sac_ns *ns, const sac_prefix *prefix, uint32_t p,
                             const int64_t *index, uint64_t count) {
    const sac_plane *plane = &planes[p];
    sac_gather_req requests[LAYERS * 2];
    uint64_t n = 0;
    uint8_t *rows = allocate(LAYERS * plane->heads * count * plane->row_bytes);
    EXPECT(LAYERS * plane->heads <= sizeof requests / sizeof requests[0]);
    for (uint32_t layer = 0; layer < LAYERS; ++layer) {
        for (uint32_t head = 0; has_layer(plane, layer) && head < plane->heads; ++head) {
            requests[n] = (sac_gather_req){.prefix = prefix,
                                           .plane = p,
                                           .layer = layer,
                                           .head = head,
                                           .index_bytes = sizeof index[0],
                                           .index = index,
                                           .count = count,
                                           .dst = rows + n * count * plane->row_bytes};
            ++n;
        }
    }
    CHECK(sac_gather(ns, requests, n, 0, 0, NULL));

    for (uint64_t r = 0; r < n; ++r) {
        const uint8_t *got = requests[r].dst;
        for (uint64_t i = 0; i < count; ++i) {
            for (uint32_t byte = 0; byte < plane->row_bytes; ++byte, ++got) {
                const uint8_t wanted = index[i] < 0
                                           ? 0
                                           : byte_at(p, requests[r].layer, requests[r].head,
                                                     (uint64_t)index[i], byte);
                EXPECT(*got == wanted);
            }
        }
    }
    free(rows);
    return n * count;
}

int main(void) {
    const sac_pool_options pool_options = {.struct_size = sizeof pool_options,
                                           .bytes = UINT64_C(64) << 20};
    sac_pool *pool = NULL;
    CHECK(sac_pool_embedded(&pool_options, &pool));

    const sac_layout layout = {.struct_size = sizeof layout,
                               .page_tokens = PAGE_TOKENS,
                               .plane_count = PLANES,
                               .planes = planes};
    const sac_ns_options ns_options = {
        .struct_size = sizeof ns_options, .model = "example", .layout = &layout};
    sac_ns *ns = NULL;
    CHECK(sac_ns_open(pool, "example", &ns_options, &ns));

    uint32_t tokens[TOKENS];
    for (uint32_t i = 0; i < TOKENS; ++i) {
        tokens[i] = 1000 + i;
    }
    uint8_t keys[PAGES][SAC_KEY_BYTES];
    uint8_t others[PAGES][SAC_KEY_BYTES]; /* the same tokens of another tenant */
    CHECK(sac_keys(ns, tokens, TOKENS, "tenant-a", 8, NULL, keys[0]));
    CHECK(sac_keys(ns, tokens, TOKENS, "tenant-b", 8, NULL, others[0]));
    EXPECT(memcmp(keys, others, sizeof keys) != 0);

    uint64_t hits = 1;
    CHECK(sac_lookup(ns, keys[0], PAGES, NULL, &hits));
    EXPECT(hits == 0);

    const sac_put_options put_options = {.struct_size = sizeof put_options,
                                         .first_tail = UINT64_MAX};
    sac_put *put = NULL;
    CHECK(sac_put_begin(ns, keys[0], PAGES, &put_options, &put));
    uint64_t missing[PAGES];
    uint64_t count = PAGES;
    CHECK(sac_put_missing(put, 0, missing, &count));
    EXPECT(count == PAGES);
    write_pages(put, missing, count);
    uint64_t committed = 0;
    CHECK(sac_put_commit(put, &committed));
    EXPECT(committed == PAGES);
    CHECK(sac_put_close(put));

    sac_handle handles[PAGES];
    CHECK(sac_lookup(ns, keys[0], PAGES, handles, &hits));
    EXPECT(hits == PAGES);
    for (int page = 0; page < PAGES; ++page) {
        EXPECT(handles[page].generation != 0);
    }
    CHECK(sac_lookup(ns, others[0], PAGES, NULL, &hits));
    EXPECT(hits == 0);

    sac_prefix *prefix = NULL;
    uint64_t pages = 0, stored = 0;
    CHECK(sac_pin(ns, keys[0], PAGES, &prefix));
    CHECK(sac_prefix_pages(prefix, &pages));
    CHECK(sac_prefix_tokens(prefix, &stored));
    EXPECT(pages == PAGES && stored == PAGES * PAGE_TOKENS);

    const int64_t of_tokens[] = {95, 0, 17, -1, 17, 64, 31};
    const int64_t of_fours[] = {23, 0, -1, 4, 11};
    uint64_t rows = gather_plane(ns, prefix, 0, of_tokens, sizeof of_tokens / sizeof(int64_t));
    rows += gather_plane(ns, prefix, 1, of_fours, sizeof of_fours / sizeof(int64_t));

    CHECK(sac_prefix_close(prefix));
    CHECK(sac_ns_close(ns));
    CHECK(sac_pool_close(pool));
    printf("libsac %s: %" PRIu64 " pages, %" PRIu64 " tokens, %" PRIu64
           " rows gathered, every byte as written\n",
           sac_version(), pages, stored, rows);
    return 0;
}
