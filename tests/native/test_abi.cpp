// SPDX-License-Identifier: Apache-2.0
// The C interface with arguments that make no sense: refused, and nothing is damaged.
#include "sac.h"

#include <set>
#include <string>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

struct Fixture {
    kit::PoolHandle pool = kit::pool(8 * kit::kMiB);
    kit::NsHandle ns = kit::space(pool, "ns", kit::rich(16, 20));
    std::vector<std::uint8_t> keys = kit::keys(0, 4);
    kit::PrefixHandle prefix;
    Fixture() {
        CHECK_EQ(kit::put(ns, keys), 4u);
        prefix = kit::pin(ns, keys);
    }
    ~Fixture() = default;
    void still_works() const {
        CHECK(kit::intact(ns, prefix, keys));
        const sac_ns_stats s = kit::stats(ns);
        CHECK_EQ(s.pages, 4u);
        CHECK_EQ(s.reserved, 0u);
        CHECK_EQ(s.pinned, 4u + 2u);
    }
};

void all_refuse(std::initializer_list<int> results) {
    int number = 0;
    for (const int r : results) {
        if (r != SAC_E_ARG) {
            check::fail(__FILE__, __LINE__,
                        "call " + std::to_string(number) + " gives " + sac_status_name(r));
        }
        ++number;
    }
    CHECK_EQ(sac_last_error()->status, SAC_E_ARG);
    CHECK(sac_last_error()->message[0] != 0);
}

}  // namespace

TEST(names_and_version) {
    CHECK_EQ(std::string(sac_version()), SAC_VERSION);
    CHECK_EQ(std::string(sac_status_name(SAC_OK)), "SAC_OK");
    CHECK_EQ(std::string(sac_status_name(SAC_E_RANGE)), "SAC_E_RANGE");
    CHECK_EQ(std::string(sac_status_name(SAC_E_NO_MEMORY)), "SAC_E_NO_MEMORY");
    CHECK_EQ(std::string(sac_status_name(SAC_E_ACCESS)), "SAC_E_ACCESS");
    CHECK_EQ(std::string(sac_status_name(SAC_E_GPU)), "SAC_E_GPU");
    // Every status has a name of its own. SAC_E_GPU is the last one.
    std::set<std::string> names;
    for (int status = SAC_OK; status <= SAC_E_GPU; ++status) {
        CHECK(names.insert(sac_status_name(status)).second);
    }
    CHECK(!names.contains("SAC_E_?"));
    for (const int none : {SAC_E_GPU + 1, -1, 1000000, INT32_MIN}) {
        CHECK_EQ(std::string(sac_status_name(none)), "SAC_E_?");
    }
}

TEST(no_handle) {
    std::uint64_t n = 0, m = 0;
    std::uint8_t out[64] = {};
    const std::uint32_t tokens[16] = {};
    sac_pool_info pi;
    sac_ns_info ni;
    sac_ns_stats st;
    sac_plane plane;
    sac_handle handle;
    sac_event event;
    sac_prefix *prefix = nullptr;
    sac_put *put = nullptr;
    sac_seq *seq = nullptr;
    sac_ns *ns = nullptr;
    const void *at = nullptr;
    void *to = nullptr;
    const sac_ns_options o = kit::ns_options(nullptr);
    const sac_gather_req g{};
    const sac_scatter_req s{};
    all_refuse({sac_pool_get_info(nullptr, &pi),
                sac_pool_list(nullptr, nullptr, &n),
                sac_pool_drop(nullptr, "ns"),
                sac_ns_open(nullptr, "ns", &o, &ns),
                sac_ns_get_info(nullptr, &ni),
                sac_ns_plane(nullptr, 0, &plane),
                sac_ns_get_stats(nullptr, &st),
                sac_keys(nullptr, tokens, 16, nullptr, 0, nullptr, out),
                sac_root(nullptr, nullptr, 0, out),
                sac_lookup(nullptr, out, 1, nullptr, &n),
                sac_longest(nullptr, out, 1, &n),
                sac_pin(nullptr, out, 1, &prefix),
                sac_prefix_pages(nullptr, &n),
                sac_prefix_tokens(nullptr, &n),
                sac_prefix_handles(nullptr, &handle, &n),
                sac_prefix_rows(nullptr, 0, 0, &n),
                sac_prefix_view(nullptr, 0, 0, 0, &at, &n),
                sac_gather(nullptr, &g, 1, 0, 0, nullptr),
                sac_put_begin(nullptr, out, 1, nullptr, &put),
                sac_put_missing(nullptr, 0, nullptr, &n),
                sac_put_write(nullptr, &s, 1, 0),
                sac_put_view(nullptr, 0, 0, 0, &to, &n),
                sac_put_commit(nullptr, nullptr),
                sac_seq_open(nullptr, tokens, 1, nullptr, 0, &seq),
                sac_seq_extend(nullptr, tokens, 1, 0),
                sac_seq_write(nullptr, &s, 1, 0),
                sac_seq_flush(nullptr, nullptr),
                sac_events(nullptr, &m, &event, &n, nullptr),
                sac_evict(nullptr, 1, nullptr),
                sac_verify(nullptr, nullptr, nullptr)});
    CHECK(sac_seq_view(nullptr) == nullptr);
    CHECK_EQ(sac_pool_close(nullptr), 0);
    CHECK_EQ(sac_ns_close(nullptr), 0);
    CHECK_EQ(sac_prefix_close(nullptr), 0);
    CHECK_EQ(sac_put_close(nullptr), 0);
    CHECK_EQ(sac_seq_close(nullptr), 0);
}

TEST(no_place_for_the_answer_and_no_input) {
    const Fixture f;
    std::uint64_t n = 0, one = 1;
    std::uint8_t out[64] = {};
    const std::uint32_t tokens[16] = {};
    sac_put *put = nullptr;
    sac_seq *seq = nullptr;
    sac_prefix *prefix = nullptr;
    const void *at = nullptr;
    void *to = nullptr;
    sac_pool *pool = nullptr;
    sac_pool_options po{};
    po.struct_size = sizeof po, po.bytes = 4 * kit::kMiB;
    const sac_layout l = kit::plain(16, 64).get();
    const sac_ns_options o = kit::ns_options(&l);
    sac_ns *ns = nullptr;
    sac_geometry geometry;
    all_refuse({sac_pool_embedded(nullptr, &pool),
                sac_pool_embedded(&po, nullptr),
                sac_layout_check(nullptr, &geometry),
                sac_layout_check(&l, nullptr),
                sac_pool_get_info(f.pool.get(), nullptr),
                sac_pool_list(f.pool.get(), nullptr, nullptr),
                sac_pool_drop(f.pool.get(), nullptr),
                sac_ns_open(f.pool.get(), nullptr, &o, &ns),
                sac_ns_open(f.pool.get(), "x", nullptr, &ns),
                sac_ns_open(f.pool.get(), "x", &o, nullptr),
                sac_ns_get_info(f.ns.get(), nullptr),
                sac_ns_plane(f.ns.get(), 0, nullptr),
                sac_ns_get_stats(f.ns.get(), nullptr),
                sac_keys(f.ns.get(), nullptr, 16, nullptr, 0, nullptr, out),
                sac_keys(f.ns.get(), tokens, 16, nullptr, 0, nullptr, nullptr),
                sac_keys(f.ns.get(), tokens, 16, nullptr, 3, nullptr, out),
                sac_root(f.ns.get(), nullptr, 0, nullptr),
                sac_root(f.ns.get(), nullptr, 3, out),
                sac_lookup(f.ns.get(), nullptr, 1, nullptr, &n),
                sac_longest(f.ns.get(), nullptr, 1, &n),
                sac_longest(f.ns.get(), out, 1, nullptr),
                sac_pin(f.ns.get(), nullptr, 1, &prefix),
                sac_pin(f.ns.get(), out, 1, nullptr),
                sac_prefix_pages(f.prefix.get(), nullptr),
                sac_prefix_tokens(f.prefix.get(), nullptr),
                sac_prefix_handles(f.prefix.get(), nullptr, nullptr),
                sac_prefix_rows(f.prefix.get(), 0, 0, nullptr),
                sac_prefix_view(f.prefix.get(), 0, 0, 0, nullptr, &n),
                sac_prefix_view(f.prefix.get(), 0, 0, 0, &at, nullptr),
                sac_gather(f.ns.get(), nullptr, 1, 0, 0, nullptr),
                sac_put_begin(f.ns.get(), nullptr, 1, nullptr, &put),
                sac_put_begin(f.ns.get(), f.keys.data(), 1, nullptr, nullptr),
                sac_seq_open(f.ns.get(), nullptr, 1, nullptr, 0, &seq),
                sac_seq_open(f.ns.get(), tokens, 1, nullptr, 0, nullptr),
                sac_seq_open(f.ns.get(), tokens, 1, nullptr, 3, &seq),
                sac_events(f.ns.get(), nullptr, nullptr, &n, nullptr),
                sac_events(f.ns.get(), &n, nullptr, nullptr, nullptr),
                sac_events(f.ns.get(), &n, nullptr, &one, nullptr)});
    CHECK(pool == nullptr && ns == nullptr && prefix == nullptr);
    kit::PutHandle p;
    MUST(kit::begin(f.ns, kit::keys(90, 1), p));
    all_refuse({sac_put_missing(p.get(), 0, nullptr, nullptr),
                sac_put_missing(p.get(), 2, nullptr, &n), sac_put_write(p.get(), nullptr, 1, 0),
                sac_put_view(p.get(), 0, 0, 0, nullptr, &n),
                sac_put_view(p.get(), 0, 0, 0, &to, nullptr)});
    p.reset();
    MUST(sac_seq_open(f.ns.get(), nullptr, 0, nullptr, 0, &seq));
    const kit::SeqHandle s(seq);
    all_refuse({sac_seq_extend(seq, nullptr, 1, 0), sac_seq_write(seq, nullptr, 1, 0)});
    f.still_works();
}

TEST(structs_of_another_size) {
    const Fixture f;
    const auto layout = kit::plain(16, 64);
    for (const std::uint32_t off : {0u, 1u, 7u, 1000u}) {
        sac_pool_options po{};
        po.bytes = 4 * kit::kMiB;
        po.struct_size = off == 0 ? 0 : static_cast<std::uint32_t>(sizeof po) + off;
        sac_pool *pool = nullptr;
        sac_layout l = layout.get();
        sac_ns_options o = kit::ns_options(&l);
        sac_ns *ns = nullptr;
        kit::PutOptions put_options;
        sac_put *put = nullptr;
        sac_geometry geometry;
        o.struct_size += off + 1, put_options.struct_size += off + 1;
        const int nested = [&] {
            sac_layout wrong = layout.get();
            wrong.struct_size += off + 1;
            const sac_ns_options right = kit::ns_options(&wrong);
            return sac_ns_open(f.pool.get(), "x", &right, &ns);
        }();
        l.struct_size += off + 1;
        all_refuse({sac_pool_embedded(&po, &pool), nested,
                    sac_ns_open(f.pool.get(), "x", &o, &ns), sac_layout_check(&l, &geometry),
                    sac_put_begin(f.ns.get(), f.keys.data(), 4, &put_options, &put)});
        CHECK(pool == nullptr && ns == nullptr && put == nullptr);
    }
    CHECK_EQ(kit::info(f.pool).namespaces, 1u);
    f.still_works();
}

TEST(pools_that_cannot_be) {
    kit::PoolHandle pool;
    CHECK_EQ(kit::open_pool(pool, 0), static_cast<int>(SAC_E_ARG));
    CHECK_EQ(kit::open_pool(pool, 1000), static_cast<int>(SAC_E_ARG));
    CHECK_EQ(kit::open_pool(pool, 4 * kit::kMiB, nullptr, 3), static_cast<int>(SAC_E_ARG));
    CHECK_EQ(kit::open_pool(pool, 400 * kit::kMiB, nullptr, 65), static_cast<int>(SAC_E_ARG));
    CHECK_EQ(kit::open_pool(pool, UINT64_MAX), static_cast<int>(SAC_E_ARG));
    CHECK_EQ(kit::open_pool(pool, std::uint64_t{1} << 49), static_cast<int>(SAC_E_NO_SPACE));
    CHECK_EQ(kit::open_pool(pool, 4 * kit::kMiB, nullptr, 1, 0x100),
             static_cast<int>(SAC_E_ARG));
    CHECK_EQ(kit::open_pool(pool, 0, nullptr, 1, SAC_POOL_OPEN), static_cast<int>(SAC_E_ARG));
    CHECK(kit::open_pool(pool, 4 * kit::kMiB, "/proc/none/pool") != SAC_OK);
    CHECK(kit::open_pool(pool, 4 * kit::kMiB, "") != SAC_OK);
    CHECK(pool == nullptr);
}

TEST(lists_and_short_buffers) {
    const Fixture f;
    (void)kit::space(f.pool, std::string(63, 'z').c_str(), kit::plain(16, 64));
    char names[3 * SAC_NAME_BYTES];
    std::memset(names, 'x', sizeof names);
    std::uint64_t n = 1;
    MUST(sac_pool_list(f.pool.get(), names, &n));
    CHECK_EQ(n, 2u);
    CHECK_EQ(std::string(names), "ns");
    CHECK_EQ(names[SAC_NAME_BYTES], 'x');
    n = 3;
    MUST(sac_pool_list(f.pool.get(), names, &n));
    CHECK_EQ(std::string(names + SAC_NAME_BYTES), std::string(63, 'z'));
    CHECK_EQ(names[2 * SAC_NAME_BYTES], 'x');
    sac_plane plane;
    CHECK_EQ(sac_ns_plane(f.ns.get(), 4, &plane), static_cast<int>(SAC_E_RANGE));
    MUST(sac_ns_plane(f.ns.get(), 3, &plane));
    CHECK_EQ(std::string(plane.name), "state");
}
