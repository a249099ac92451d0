// SPDX-License-Identifier: Apache-2.0
// Superblocks, generations, reboots, and what is refused at opening.
#include "media.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <functional>
#include <set>

#include "check.hpp"
#include "kit_pages.hpp"
#include "superblock.hpp"

namespace {

namespace fmt = sac::fmt;
int as_int(sac_status s) { return static_cast<int>(s); }

int reopen(kit::PoolHandle &out, const kit::Directory &dir) {
    out.reset();
    return kit::open_pool(out, 0, dir.pool().c_str(), 0, SAC_POOL_OPEN);
}

class Bytes {  // of a file, changed and written back
public:
    Bytes(const std::string &path, std::uint64_t offset, std::uint64_t bytes)
        : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)), offset_(static_cast<off_t>(offset)),
          data_(bytes) {
        CHECK(fd_ >= 0);
        CHECK_EQ(pread(fd_, data_.data(), bytes, offset_), static_cast<ssize_t>(bytes));
    }
    ~Bytes() { close(fd_); }
    Bytes(const Bytes &) = delete;
    Bytes &operator=(const Bytes &) = delete;
    template <class T> T &as() { return *reinterpret_cast<T *>(data_.data()); }
    void write() {
        CHECK_EQ(pwrite(fd_, data_.data(), data_.size(), offset_),
                 static_cast<ssize_t>(data_.size()));
    }

private:
    int fd_;
    off_t offset_;
    std::vector<std::uint8_t> data_;
};

// Changes the newest superblock of a file, its checksum made right again.
void change(const std::string &path, const std::function<void(fmt::Superblock &)> &fn) {
    Bytes a(path, 0, 4096), b(path, 4096, 4096);
    Bytes &newest = a.as<fmt::Superblock>().sequence > b.as<fmt::Superblock>().sequence ? a : b;
    fmt::Superblock &sb = newest.as<fmt::Superblock>();
    fn(sb);
    sb.crc = fmt::block_crc(sb);
    newest.write();
}

}  // namespace

TEST(one_damaged_copy_of_a_superblock_does_not_matter) {
    for (const char *file : {"meta", "data.0"}) {
        kit::Directory dir;
        kit::PoolHandle pool = kit::pool(4 * kit::kMiB, dir.pool());
        for (int opened = 0; opened < 3; ++opened) {
            MUST(reopen(pool, dir));
        }
        pool.reset();
        Bytes a(dir.file(file), 0, 4096), b(dir.file(file), 4096, 4096);
        const bool a_newer =
            a.as<fmt::Superblock>().sequence > b.as<fmt::Superblock>().sequence;
        Bytes &older = a_newer ? b : a, &newer = a_newer ? a : b;
        older.as<std::uint8_t>() ^= 0x10;
        older.write();
        MUST(reopen(pool, dir));
        pool.reset();
        if (std::strcmp(file, "meta") == 0) {
            continue;  // the next opening wrote the older copy anew
        }
        newer.as<fmt::Superblock>().bytes ^= 1;
        newer.write();
        CHECK_EQ(reopen(pool, dir), as_int(SAC_E_CORRUPT));
    }
}

TEST(what_a_superblock_may_not_say) {
    kit::Directory dir;
    kit::pool(4 * kit::kMiB, dir.pool(), 2).reset();
    const auto refused = [&](const char *file, int status, auto &&fn) {
        fmt::Superblock kept{};
        change(dir.file(file), [&](fmt::Superblock &sb) { kept = sb, fn(sb); });
        kit::PoolHandle pool;
        const int got = reopen(pool, dir);
        change(dir.file(file), [&](fmt::Superblock &sb) { sb = kept; });
        CHECK_EQ(got, status);
    };
    using S = fmt::Superblock;
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.kind = fmt::kData; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.bytes += fmt::kMetaSlab; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.slab_bytes *= 2; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.meta_slabs += 1; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.meta_slabs = 1; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.extent_count = 1; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.extent_count = 200; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.generation_limit = 0; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.generation_limit = fmt::kGenerationMax; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.meta_table_offset = s.bytes; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.meta_table_offset = 8; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.meta_table_offset = UINT64_MAX - 65535; });
    refused("meta", SAC_E_CORRUPT,
            [](S &s) { s.extents[1].table_offset = s.extents[0].table_offset; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.extents[0].table_offset = 0; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.extents[0].slab_count = UINT64_MAX; });
    refused("meta", SAC_E_CORRUPT, [](S &s) { s.extents[1].bytes += fmt::kDataSlab; });
    refused("meta", SAC_E_CORRUPT,
            [](S &s) { s.extents[1].bytes = 0, s.extents[1].slab_count = 0; });
    refused("data.1", SAC_E_CORRUPT, [](S &s) { s.position = 0; });
    refused("data.1", SAC_E_CORRUPT, [](S &s) { s.kind = fmt::kMetadata; });
    refused("data.0", SAC_E_CORRUPT, [](S &s) { s.pool[3] ^= 1; });
    kit::PoolHandle pool;
    MUST(reopen(pool, dir));
    pool.reset();
    // Both copies of another version.
    for (const std::uint64_t at : fmt::kSuperblockCopies) {
        Bytes b(dir.file("meta"), at, 4096);
        b.as<S>().major = 2, b.as<S>().crc = fmt::block_crc(b.as<S>());
        b.write();
    }
    CHECK_EQ(reopen(pool, dir), as_int(SAC_E_VERSION));
}

TEST(slabs_of_superblocks_and_tables_are_never_given_out) {
    for (const bool data : {false, true}) {
        kit::Directory dir;
        kit::pool(4 * kit::kMiB, dir.pool()).reset();
        Bytes head(dir.file("meta"), 0, 4096);
        const fmt::Superblock &sb = head.as<fmt::Superblock>();
        CHECK(std::memcmp(sb.magic, fmt::kPoolMagic, 8) == 0);
        Bytes table(dir.file("meta"), data ? sb.extents[0].table_offset : sb.meta_table_offset,
                    8);
        table.as<std::uint64_t>() = 0;  // a valid entry: free
        table.write();
        kit::PoolHandle pool;
        CHECK_EQ(reopen(pool, dir), as_int(SAC_E_CORRUPT));
    }
}

TEST(generations_never_repeat) {
    kit::Directory dir;
    std::set<std::uint64_t> seen;
    kit::PoolHandle pool = kit::pool(4 * kit::kMiB, dir.pool());
    const auto layout = kit::plain(16, 4096);
    for (std::uint64_t round = 0; round < 6; ++round) {
        auto ns = kit::space(pool, "ns", layout);
        std::uint64_t next = UINT64_MAX, none = 0;
        MUST(sac_events(ns.get(), &next, nullptr, &none, nullptr));
        for (std::uint64_t i = 0; i < 30; ++i) {
            CHECK_EQ(kit::put(ns, kit::keys(round * 1000 + i * 4, 4)), 4u);
        }
        std::vector<sac_event> e(500);
        std::uint64_t n = e.size(), lost = 0;
        MUST(sac_events(ns.get(), &next, e.data(), &n, &lost));
        for (std::uint64_t i = 0; i < n; ++i) {
            if (e[i].kind == SAC_EVENT_STORED) {
                CHECK(seen.empty() || e[i].handle.generation > *seen.rbegin());
                CHECK(seen.insert(e[i].handle.generation).second);
            }
        }
        ns.reset();
        MUST(reopen(pool, dir));
        CHECK_EQ(kit::info(pool).incarnation, round + 2);
    }
    CHECK_EQ(seen.size(), 720u);
}

// Past the step by which the limit on memory is raised.
TEST(the_limit_on_memory_is_ahead_of_every_generation) {
    kit::Directory dir;
    kit::PoolHandle pool = kit::pool(4 * kit::kMiB, dir.pool());
    const auto ns = kit::space(pool, "ns", kit::plain(16, 64));
    sac::Media &media = kit::owned(ns.get()).media();
    std::uint64_t last = 0;
    for (int i = 0; i < (1 << 20) + 10; ++i) {
        const std::uint64_t g = media.generation();
        CHECK(g > last);
        last = g;
    }
    Bytes a(dir.file("meta"), 0, 4096), b(dir.file("meta"), 4096, 4096);
    CHECK(std::max(a.as<fmt::Superblock>().generation_limit,
                   b.as<fmt::Superblock>().generation_limit) > last);
}

TEST(after_a_reboot_only_pages_with_a_right_checksum_count) {
    kit::Directory dir;
    kit::PoolHandle pool = kit::pool(8 * kit::kMiB, dir.pool());
    const auto k = kit::keys(0, 8);
    CHECK_EQ(kit::put(kit::space(pool, "with", kit::plain(16, 64), 0, SAC_NS_DATA_CHECKSUM), k),
             8u);
    CHECK_EQ(kit::put(kit::space(pool, "without", kit::plain(16, 64)), k), 8u);
    const auto layout = kit::plain(16, 64);
    std::uint64_t where = 0;
    {
        const auto ns = kit::space(pool, "with", layout, 0, SAC_NS_DATA_CHECKSUM);
        const auto prefix = kit::pin(ns, k);
        where = static_cast<std::uint64_t>(prefix->it->addresses(0)[3] -
                                           kit::owned(ns.get()).media().data().data());
    }
    MUST(reopen(pool, dir));
    CHECK_EQ(kit::info(pool).rebooted, 0u);
    CHECK_EQ(kit::longest(kit::space(pool, "without", layout), k), 8u);
    pool.reset();
    change(dir.file("meta"), [](fmt::Superblock &s) { s.boot_id[0] ^= 1; });
    Bytes row(dir.file("data.0"), where + 100, 1);
    row.as<std::uint8_t>() ^= 1;
    row.write();
    MUST(reopen(pool, dir));
    CHECK_EQ(kit::info(pool).rebooted, 1u);
    const auto with = kit::space(pool, "with", layout, 0, SAC_NS_DATA_CHECKSUM);
    CHECK_EQ(kit::hits(with, k), 7u);
    CHECK_EQ(kit::longest(with, k), 3u);
    CHECK_EQ(kit::stats(with).checks_failed, 1u);
    const auto without = kit::space(pool, "without", layout);
    CHECK_EQ(kit::hits(without, k), 0u);
    CHECK_EQ(kit::put(without, k), 8u);
}

TEST(extents_are_filled_in_turn) {
    kit::PoolHandle pool = kit::pool(32 * kit::kMiB, {}, 2);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 65536));  // two pages a slab
    const sac::Media &media = kit::owned(ns.get()).media();
    for (std::uint64_t i = 0; i < 32; ++i) {
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
        std::array<std::uint64_t, 2> slabs{};
        for (const auto &[id, owned] : media.owned()) {
            for (const sac::Run &r : owned.runs) {
                slabs[r.extent] += r.count;
            }
        }
        CHECK(slabs[0] <= slabs[1] + 1 && slabs[1] <= slabs[0] + 1);
        CHECK_EQ(slabs[0] + slabs[1], i / 2 + 1);
    }
    const auto k = kit::keys(0, 32);
    CHECK_EQ(kit::hits(ns, k), 32u);
    CHECK_EQ(kit::info(pool).free_bytes, 0u);
}

// Holes are filled when a slab is given, not when it is touched.
TEST(what_is_given_has_memory_behind_it) {
    kit::Directory dir;
    kit::PoolHandle pool = kit::pool(8 * kit::kMiB, dir.pool());
    const auto blocks = [&](const char *file) {
        struct stat st{};
        CHECK_EQ(stat(dir.file(file).c_str(), &st), 0);
        return static_cast<std::uint64_t>(st.st_blocks) * 512;
    };
    CHECK(blocks("data.0") >= fmt::kMetaSlab);
    CHECK(blocks("meta") >= 3 * fmt::kMetaSlab);  // the superblock and two tables
    const auto ns = kit::space(pool, "ns", kit::plain(16, 64));
    CHECK(blocks("meta") >= 4 * fmt::kMetaSlab);
    sac::Media &media = kit::owned(ns.get()).media();
    CHECK(media.assign_chunk(7, fmt::kBody, 0, 2) != UINT64_MAX);
    CHECK(!media.file_system_full());
    CHECK(blocks("data.0") >= 2 * fmt::kDataSlab);
    CHECK_EQ(media.assign_chunk(7, fmt::kBody, 1, 3), UINT64_MAX);
    CHECK(!media.file_system_full());  // the pool is, not the file system
}
