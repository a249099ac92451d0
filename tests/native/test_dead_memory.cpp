// SPDX-License-Identifier: Apache-2.0
// Memory of a pool that dies under it: the file behind an extent is made shorter.
#include <fcntl.h>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

// Pages of 1 MiB, two to a slab and a block; data begins behind one slab.
struct Files {
    kit::Directory dir;
    kit::PoolHandle pool = kit::pool(16 * kit::kMiB, dir.pool());
    kit::NsHandle ns = kit::space(pool, "ns", kit::plain(16, 65536));

    void shorten(const char *name, std::uint64_t bytes) const {
        CHECK_EQ(truncate(dir.file(name).c_str(), static_cast<off_t>(bytes)), 0);
    }
    int gather(const kit::PrefixHandle &prefix, std::int64_t row, std::uint8_t *out,
               std::uint64_t *failed = nullptr) const {
        sac_gather_req r{};
        r.prefix = prefix.get(), r.index = &row, r.index_bytes = 8, r.count = 1, r.dst = out;
        return sac_gather(ns.get(), &r, 1, 0, 1, failed);
    }
};

}  // namespace

TEST(the_dead_page_leaves_and_the_others_go_on) {
    const Files f;
    const auto k = kit::keys(0, 16);
    CHECK_EQ(kit::put(f.ns, k), 16u);
    const auto prefix = kit::pin(f.ns, k);
    sac_handle handles[16];
    std::uint64_t count = 16;
    MUST(sac_prefix_handles(prefix.get(), handles, &count));
    std::uint64_t last = 0;  // the page that lies last
    for (std::uint64_t i = 0; i < 16; ++i) {
        last = handles[i].slot > handles[last].slot ? i : last;
    }
    const std::uint64_t block = (2 + handles[last].slot / 2 * 2) * kit::kMiB;
    f.shorten("data.0", block);
    std::vector<std::uint8_t> out(65536);
    std::vector<std::uint64_t> dead;
    for (std::uint64_t i = 0; i < 16; ++i) {
        if (handles[i].slot / 2 == handles[last].slot / 2) {
            dead.push_back(i);
        }
    }
    CHECK_EQ(dead.size(), 2u);
    std::uint64_t failed = 9;
    CHECK_EQ(f.gather(prefix, static_cast<std::int64_t>(last * 16 + 5), out.data(), &failed),
             as_int(SAC_E_MEDIA));
    CHECK_EQ(failed, 0u);
    CHECK_EQ(sac_last_error()->offset / (2 * kit::kMiB) * (2 * kit::kMiB), block);
    CHECK(std::strstr(sac_last_error()->object, "data.0") != nullptr);
    CHECK_EQ(kit::info(f.pool).dead_blocks, 1u);
    CHECK_EQ(kit::stats(f.ns).pages, 14u);
    // Who held it cannot go on with the old prefix; what is left of it is pinned anew.
    CHECK_EQ(f.gather(prefix, 0, out.data()), as_int(SAC_E_MEDIA));
    for (std::uint64_t i = 0; i < 16; ++i) {
        const bool gone = i == dead[0] || i == dead[1];
        const auto one = kit::keys(i, 1);
        CHECK_EQ(kit::hits(f.ns, one), gone ? 0u : 1u);
        const auto again = kit::pin(f.ns, one);
        if (!gone) {
            MUST(f.gather(again, 5, out.data()));
            CHECK(kit::intact(f.ns, again, one));
        }
    }
    // The slots of the dead block are not used again, also when their reader has gone.
    kit::PrefixHandle().swap(const_cast<kit::PrefixHandle &>(prefix));
    for (std::uint64_t i = 100; i < 140; ++i) {
        CHECK_EQ(kit::put(f.ns, kit::keys(i, 1)), 1u);
        const auto again = kit::pin(f.ns, kit::keys(i, 1));
        sac_handle h{};
        std::uint64_t one = 1;
        MUST(sac_prefix_handles(again.get(), &h, &one));
        CHECK(h.slot / 2 != handles[last].slot / 2);
        CHECK(kit::intact(f.ns, again, kit::keys(i, 1)));
    }
    const sac_ns_stats s = kit::stats(f.ns);
    CHECK_EQ(s.quarantined, 2u);
    CHECK_EQ(s.pages, 14u);
}

TEST(a_page_written_into_dead_memory_is_not_committed) {
    const Files f;
    const auto k = kit::keys(0, 2);
    kit::PutHandle put;
    MUST(kit::begin(f.ns, k, put));
    f.shorten("data.0", 2 * kit::kMiB);
    MUST(kit::write_missing(put.get(), f.ns->it->geometry(), k.data()));
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_MEDIA));
    CHECK_EQ(kit::hits(f.ns, k), 0u);
    put.reset();
    CHECK_EQ(kit::stats(f.ns).reserved, 0u);
    CHECK_EQ(kit::stats(f.ns).quarantined, 2u);
}

// All eviction finds is dead: room is looked for further on, not given up.
TEST(room_on_dead_memory_does_not_count) {
    const Files f;
    for (std::uint64_t i = 0; i < 16; ++i) {
        CHECK_EQ(kit::put(f.ns, kit::keys(i, 1)), 1u);
    }
    // The oldest pages lie on the first block behind the superblock's: pages 0 and 1. Other
    // blocks die too, but nobody has noticed.
    f.shorten("data.0", 14 * kit::kMiB);
    const auto reader = kit::pin(f.ns, kit::keys(15, 1));
    std::vector<std::uint8_t> out(65536);
    CHECK_EQ(f.gather(reader, 0, out.data()), as_int(SAC_E_MEDIA));
    CHECK_EQ(kit::put(f.ns, kit::keys(100, 4)), 4u);
    const auto k = kit::keys(100, 4);
    CHECK(kit::intact(f.ns, kit::pin(f.ns, k), k));
}

TEST(a_page_whose_header_cannot_be_kept_is_not_committed) {
    const Files f;
    const auto k = kit::keys(0, 2);
    kit::PutHandle put;
    MUST(kit::begin(f.ns, k, put));
    MUST(kit::write_missing(put.get(), f.ns->it->geometry(), k.data()));
    f.shorten("meta", 0);
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_MEDIA));
    CHECK_EQ(kit::hits(f.ns, k), 0u);
    CHECK(kit::info(f.pool).dead_blocks > 0);
}

TEST(a_truncated_extent_is_refused_at_opening) {
    kit::Directory dir;
    kit::pool(8 * kit::kMiB, dir.pool()).reset();
    const auto size = [&](const char *name, std::uint64_t bytes) {
        CHECK_EQ(truncate(dir.file(name).c_str(), static_cast<off_t>(bytes)), 0);
    };
    kit::PoolHandle again;
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{100}, 2 * kit::kMiB, 9 * kit::kMiB}) {
        size("data.0", bytes);
        CHECK_EQ(kit::open_pool(again, 0, dir.pool().c_str(), 0, SAC_POOL_OPEN),
                 as_int(SAC_E_CORRUPT));
        CHECK(std::strstr(sac_last_error()->object, "data.0") != nullptr);
    }
    size("data.0", 10 * kit::kMiB);
    // The superblock went with the first bytes.
    CHECK_EQ(kit::open_pool(again, 0, dir.pool().c_str(), 0, SAC_POOL_OPEN),
             as_int(SAC_E_CORRUPT));
}

// Zeros in place of the slab tables would give out slabs that others hold.
TEST(on_dead_metadata_nothing_is_decided) {
    const Files f;
    const auto k = kit::keys(0, 2);
    CHECK_EQ(kit::put(f.ns, k), 2u);
    sac::Media &media = kit::owned(f.ns.get()).media();
    media.check_writable();
    f.shorten("meta", 65536);
    CHECK_THROWS(SAC_E_MEDIA, media.assign_meta(9, sac::fmt::kHeaders, 0));
    CHECK_THROWS(SAC_E_MEDIA, media.check_writable());
    CHECK_THROWS(SAC_E_MEDIA, media.assign_chunk(9, sac::fmt::kBody, 0, 1));
    CHECK_THROWS(SAC_E_MEDIA, media.release({sac::fmt::kBody, 0, 0, 1, 1}));
    CHECK_THROWS(SAC_E_MEDIA, media.release_meta(5));
    CHECK_EQ(sac_pool_drop(f.pool.get(), "ns"), as_int(SAC_E_MEDIA));
    CHECK(std::strstr(sac_last_error()->object, "/meta") != nullptr);
    CHECK(std::strstr(sac_last_error()->object, "meta.new") == nullptr);
    const auto layout = kit::plain(16, 64);
    const sac_layout l = layout.get();
    const sac_ns_options o = kit::ns_options(&l);
    sac_ns *none = nullptr;
    CHECK_EQ(sac_ns_open(f.pool.get(), "new", &o, &none), as_int(SAC_E_MEDIA));
    std::uint64_t last = media.generation();  // eviction goes on, and does not throw
    for (int i = 0; i < (1 << 20) + 10; ++i) {
        const std::uint64_t g = media.generation();
        CHECK(g > last);
        last = g;
    }
}
