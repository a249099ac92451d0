// SPDX-License-Identifier: Apache-2.0
// Owners, names, ids and sizes of pools.
#include <fcntl.h>

#include <chrono>

#include "check.hpp"
#include "kit_pages.hpp"
#include "pool.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

int open_only(kit::PoolHandle &out, const std::string &path) {
    return kit::open_pool(out, 0, path.c_str(), 0, SAC_POOL_OPEN);
}

}  // namespace

TEST(ids_are_used_again_and_names_of_damaged_ones_are_unique) {
    kit::Directory dir;
    auto pool = kit::pool(16 * kit::kMiB, dir.pool());
    const auto layout = kit::plain(16, 64);
    const auto k = kit::keys(0, 4);
    const auto id = [&](const char *name) {
        return kit::space(pool, name, layout)->it->block().id;
    };
    CHECK_EQ(id("damaged.2"), 1u);
    CHECK_EQ(id("x"), 2u);
    CHECK_EQ(id("damaged.2.2"), 3u);
    CHECK_EQ(id("gap"), 4u);
    CHECK_EQ(id("last"), 5u);
    MUST(sac_pool_drop(pool.get(), "gap"));
    CHECK_EQ(id("again"), 4u);
    CHECK_EQ(id("behind"), 6u);
    CHECK_EQ(kit::put(kit::space(pool, "x", layout), k), 4u);
    CHECK_EQ(kit::put(kit::space(pool, "damaged.2", layout), k), 4u);
    std::uint64_t block = 0;
    {
        const auto bad = kit::space(pool, "x", layout);
        block = kit::owned(bad.get()).media().owned().at(2).blocks.at(0);
    }
    pool.reset();
    const int fd = open(dir.file("meta").c_str(), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, "xx", 2, static_cast<off_t>(block * 65536 + 32768 + 200)), 2);
    close(fd);
    MUST(open_only(pool, dir.pool()));
    CHECK_EQ(kit::info(pool).namespaces, 6u);
    CHECK_EQ(kit::hits(kit::space(pool, "damaged.2", layout), k), 4u);
    sac_ns *none = nullptr;
    const sac_ns_options o = kit::ns_options(nullptr);
    CHECK_EQ(sac_ns_open(pool.get(), "damaged.2.3", &o, &none), as_int(SAC_E_CORRUPT));
    CHECK_EQ(id("new"), 7u);  // not the damaged one's
    MUST(sac_pool_drop(pool.get(), "damaged.2.3"));
    CHECK_EQ(id("newer"), 2u);
    CHECK_EQ(kit::hits(kit::space(pool, "newer", layout), k), 0u);
}

TEST(many_namespaces_are_quickly_made) {
    const sac_pool_options o = [] {
        sac_pool_options p{};
        p.struct_size = sizeof p, p.bytes = 2 * kit::kMiB, p.metadata_bytes = 256 * kit::kMiB;
        return p;
    }();
    sac_pool *raw = nullptr;
    MUST(sac_pool_embedded(&o, &raw));
    const kit::PoolHandle pool(raw);
    const auto layout = kit::plain(16, 64);
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 1500; ++i) {
        CHECK_EQ(kit::space(pool, ("n" + std::to_string(i)).c_str(), layout)->it->block().id,
                 static_cast<std::uint32_t>(i + 1));
    }
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(60));
}

TEST(two_owners_of_the_same_files) {
    kit::Directory dir, other;
    auto pool = kit::pool(4 * kit::kMiB, dir.pool());
    CHECK_EQ(mkdir(other.pool().c_str(), 0700), 0);
    for (const char *file : {"meta", "data.0"}) {
        CHECK_EQ(link(dir.file(file).c_str(), other.file(file).c_str()), 0);
    }
    kit::PoolHandle second;
    CHECK_EQ(open_only(second, other.pool()), as_int(SAC_E_BUSY));
    pool.reset();
    MUST(open_only(second, other.pool()));
    CHECK_EQ(open_only(pool, dir.pool()), as_int(SAC_E_BUSY));
    second.reset();
    MUST(open_only(pool, dir.pool()));
}

TEST(sizes_and_paths_that_cannot_be) {
    kit::Directory dir;
    const auto status = [&](std::uint64_t metadata, const char *path) {
        sac_pool_options p{};
        p.struct_size = sizeof p, p.bytes = 4 * kit::kMiB, p.metadata_bytes = metadata;
        p.path = path;
        sac_pool *raw = nullptr;
        const int got = sac_pool_embedded(&p, &raw);
        sac_pool_close(raw);
        return got;
    };
    const std::string folder = dir.pool();
    for (const char *path : {static_cast<const char *>(nullptr), folder.c_str()}) {
        CHECK_EQ(status(UINT64_MAX, path), as_int(SAC_E_ARG));
        CHECK(std::strstr(sac_last_error()->message, "18446744073709551615") != nullptr);
        CHECK_EQ(status(std::uint64_t{1} << 46, path), as_int(SAC_E_ARG));
        CHECK_EQ(status(std::uint64_t{1} << 45, path), as_int(SAC_E_NO_SPACE));
    }
    CHECK_EQ(kit::size_of(dir.pool()), UINT64_MAX);  // nothing is left
    CHECK_EQ(status(0, ""), as_int(SAC_E_ARG));
    kit::PoolHandle pool;
    CHECK_EQ(open_only(pool, ""), as_int(SAC_E_ARG));
}
