// SPDX-License-Identifier: Apache-2.0
// New pools over memory that had another owner, and memory that is cleared for the next one.
#include <sys/wait.h>

#include "check.hpp"
#include "extent_kit.hpp"
#include "format.hpp"
#include "in_child.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }
using kit::kMiB;
constexpr std::uint32_t kFormat = SAC_POOL_FORMAT;
constexpr std::uint16_t kDirty = SAC_EXTENT_DIRTY;

// Where in an extent a pool's page lies.
std::uint64_t place(const kit::NsHandle &ns, const kit::PrefixHandle &prefix) {
    std::uint64_t within = 0;
    const sac::Mapping &data = kit::owned(ns.get()).media().data();
    data.locate(static_cast<std::uint64_t>(prefix->it->addresses(0)[0] - data.data()), within);
    return within;
}

}  // namespace

TEST(nothing_of_the_old_owner_stays_where_somebody_reads) {
    const kit::Extents e(4 * kMiB, {8 * kMiB, 8 * kMiB}, 0xA5);
    kit::PoolHandle pool = e.pool(kFormat, kDirty);
    CHECK_EQ(kit::info(pool).free_bytes, 12 * kMiB);
    // Pages of 512 bytes in slabs of 2 MiB: what is not written of them is zeros.
    const auto ns = kit::space(pool, "ns", kit::plain(16, 32));
    CHECK_EQ(kit::put(ns, kit::keys(0, 1)), 1u);
    const auto prefix = kit::pin(ns, kit::keys(0, 1));
    CHECK(kit::intact(ns, prefix, kit::keys(0, 1)));
    const std::uint64_t at = place(ns, prefix);
    const auto slab = kit::content(e.fds[1], 2 * kMiB, 2 * kMiB);
    CHECK_EQ(at, 2 * kMiB);
    CHECK(kit::all({slab.begin() + 512, slab.end()}, 0));
    CHECK(!kit::all({slab.begin(), slab.begin() + 512}, 0));
    // Not given out yet: as it was.
    CHECK(kit::all(kit::content(e.fds[1], 4 * kMiB, 4 * kMiB), 0xA5));
    const auto meta = kit::content(e.fds[0], 0, 4 * kMiB);
    CHECK(std::count(meta.begin(), meta.end(), 0xA5) < 4096);  // chance alone
}

TEST(a_pool_that_was_there_does_not_come_back) {
    const kit::Extents e(4 * kMiB, {8 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    for (int i = 0; i < 5; ++i) {  // its superblocks have high numbers then
        pool.reset();
        pool = e.pool();
    }
    CHECK_EQ(kit::put(kit::space(pool, "old", kit::plain(16, 256)), kit::keys(0, 4)), 4u);
    const sac_pool_info old = kit::info(pool);
    pool.reset();
    pool = e.pool(kFormat, kDirty);
    CHECK(std::memcmp(kit::info(pool).uuid, old.uuid, 16) != 0);
    CHECK_EQ(kit::info(pool).namespaces, 0u);
    pool.reset();
    pool = e.pool();
    CHECK_EQ(kit::info(pool).incarnation, 2u);
    CHECK_EQ(kit::put(kit::space(pool, "new", kit::plain(16, 256)), kit::keys(0, 4)), 4u);
}

TEST(an_extent_that_was_another_pools_can_be_added) {
    const kit::Extents other(4 * kMiB, {8 * kMiB});
    kit::PoolHandle pool = other.pool(kFormat);
    pool.reset();
    for (int i = 0; i < 3; ++i)
        other.pool().reset();
    kit::Extents e(4 * kMiB, {4 * kMiB});
    pool = e.pool(kFormat);
    const sac_extent_fd more{other.fds[1].get(), kDirty, 0, "more"};
    MUST(sac_pool_extend(pool.get(), &more));
    pool.reset();
    e.add(sac::Fd(dup(other.fds[1].get())), "more");
    pool = e.pool();
    CHECK_EQ(kit::info(pool).extents, 2u);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 65536));
    for (std::uint64_t i = 0; i < 8; ++i)
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
    CHECK_EQ(kit::hits(ns, kit::keys(0, 8)), 8u);
}

// In a process of its own: makes a pool over the parent's extents.
TEST(creation_in_a_child) {
    const char *const fds = std::getenv("SAC_TEST_FDS");
    if (!fds)
        return;
    kit::Extents mine;
    int meta = -1, data = -1;
    CHECK_EQ(std::sscanf(fds, "%d,%d", &meta, &data), 2);
    for (const int fd : {meta, data}) {
        const std::string path = sac::format("/proc/%d/fd/%d", getppid(), fd);
        mine.add(sac::Fd(open(path.c_str(), O_RDWR | O_CLOEXEC)), path);
    }
    mine.pool(kFormat, kDirty).reset();
}

#ifdef SAC_STOP_POINTS
// Killed anywhere in the middle there is no pool, neither the old nor the new one, and the next
// creation begins anew.
TEST(a_creation_that_is_cut_off_leaves_no_pool) {
    for (const char *point : {"clear.begun:1", "clear.end:1", "format.tables:1"}) {
        const kit::Extents e(4 * kMiB, {8 * kMiB});
        e.pool(kFormat).reset();
        e.pool().reset();
        const pid_t child = kit::fork_at_rest();
        if (child == 0) {
            setenv("SAC_STOP_AT", point, 1);
            setenv("SAC_TEST_FDS", sac::format("%d,%d", e.fds[0].get(), e.fds[1].get()).c_str(),
                   1);
            execl("/proc/self/exe", "child", "creation_in_a_child",
                  static_cast<char *>(nullptr));
            _exit(127);
        }
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        kit::PoolHandle pool;
        CHECK_EQ(e.open(pool, 0), as_int(SAC_E_CORRUPT));
        pool = e.pool(kFormat, kDirty);
        CHECK_EQ(kit::put(kit::space(pool, "ns", kit::plain(16, 256)), kit::keys(0, 4)), 4u);
    }
}
#endif

TEST(what_extents_may_say) {
    const kit::Extents e(4 * kMiB, {8 * kMiB});
    kit::PoolHandle pool;
    CHECK_EQ(e.open(pool, kFormat, 2), as_int(SAC_E_ARG));
    const kit::Extents same(4 * kMiB, {});
    kit::Extents twice;
    twice.add(sac::Fd(dup(e.fds[0].get())), "meta");
    twice.add(sac::Fd(open(sac::format("/proc/self/fd/%d", e.fds[0].get()).c_str(), O_RDWR)),
              "meta again");
    const int status = twice.open(pool, kFormat);
    CHECK(status == as_int(SAC_E_ARG) || status == as_int(SAC_E_BUSY));
    // Devices of another kind are none.
    for (const char *path : {"/dev/null", "/dev/zero"}) {
        kit::Extents device(4 * kMiB, {});
        device.add(sac::Fd(open(path, O_RDWR | O_CLOEXEC)), path);
        CHECK_EQ(device.open(pool, kFormat), as_int(SAC_E_ARG));
        CHECK(std::strstr(sac_last_error()->message, "DAX") != nullptr);
    }
}

// ---- scrubbing

namespace {

struct Told {
    std::vector<std::uint64_t> done;
    std::uint64_t stop_at = UINT64_MAX;
    static int go_on(void *arg, std::uint64_t n) {
        Told &self = *static_cast<Told *>(arg);
        self.done.push_back(n);
        return n < self.stop_at;
    }
};

}  // namespace

TEST(a_range_is_cleared_and_nothing_beside_it) {
    const sac::Fd fd = kit::memory(200 * kMiB, 0x77);
    const sac_extent_fd e{fd.get(), 0, 0, "file"};
    Told told;
    MUST(sac_scrub(&e, kMiB + 100, 150 * kMiB, Told::go_on, &told));
    CHECK(told.done == (std::vector<std::uint64_t>{64 * kMiB, 128 * kMiB, 150 * kMiB}));
    CHECK(kit::all(kit::content(fd, 0, kMiB + 100), 0x77));
    CHECK(kit::all(kit::content(fd, kMiB + 100, 150 * kMiB), 0));
    CHECK(kit::all(kit::content(fd, 151 * kMiB + 100, 49 * kMiB - 100), 0x77));
    MUST(sac_scrub(&e, 0, 0, nullptr, nullptr));
    MUST(sac_scrub(&e, 200 * kMiB, 0, nullptr, nullptr));
    CHECK_EQ(sac_scrub(&e, 100 * kMiB, 101 * kMiB, nullptr, nullptr), as_int(SAC_E_RANGE));
    CHECK_EQ(sac_scrub(&e, UINT64_MAX, 2, nullptr, nullptr), as_int(SAC_E_RANGE));
    CHECK(kit::all(kit::content(fd, 151 * kMiB + 100, 49 * kMiB - 100), 0x77));
}

TEST(it_can_be_stopped_and_begun_again) {
    const sac::Fd fd = kit::memory(192 * kMiB, 0x77);
    const sac_extent_fd e{fd.get(), 0, 0, "file"};
    Told told;
    told.stop_at = 64 * kMiB;
    CHECK_EQ(sac_scrub(&e, 0, 192 * kMiB, Told::go_on, &told), as_int(SAC_E_INCOMPLETE));
    CHECK(kit::all(kit::content(fd, 0, 64 * kMiB), 0));
    CHECK(kit::all(kit::content(fd, 64 * kMiB, kMiB), 0x77));
    MUST(sac_scrub(&e, 64 * kMiB, 128 * kMiB, nullptr, nullptr));
    CHECK(kit::all(kit::content(fd, 0, 192 * kMiB), 0));
}

TEST(what_a_pool_has_open_is_not_cleared) {
    const kit::Extents e(4 * kMiB, {8 * kMiB});
    const kit::PoolHandle pool = e.pool(kFormat);
    const sac::Fd other(
        open(sac::format("/proc/self/fd/%d", e.fds[1].get()).c_str(), O_RDWR | O_CLOEXEC));
    const sac_extent_fd x{other.get(), 0, 0, "data"};
    CHECK_EQ(sac_scrub(&x, 0, 8 * kMiB, nullptr, nullptr), as_int(SAC_E_BUSY));
}

TEST(holes_stay_holes) {
    kit::Directory dir;
    kit::pool(64 * kMiB, dir.pool()).reset();
    const sac::Fd fd(open(dir.file("data.0").c_str(), O_RDWR | O_CLOEXEC));
    struct stat before{}, after{};
    CHECK_EQ(fstat(fd.get(), &before), 0);
    const sac_extent_fd e{fd.get(), 0, 0, "data"};
    MUST(sac_scrub(&e, 0, 66 * kMiB, nullptr, nullptr));
    CHECK_EQ(fstat(fd.get(), &after), 0);
    CHECK(after.st_blocks <= before.st_blocks + 4096);  // the part that had data
    CHECK(kit::all(kit::content(fd, 0, 2 * kMiB), 0));
}

TEST(memory_that_is_gone_is_no_success) {
    const sac::Fd fd = kit::memory(8 * kMiB, 0x77);
    const sac_extent_fd e{fd.get(), 0, 0, "file"};
    struct Cut {
        int fd;
        static int now(void *arg, std::uint64_t) {
            // Between two pieces.
            return ftruncate(static_cast<Cut *>(arg)->fd, 4 * kMiB) == 0;
        }
    } cut{fd.get()};
    CHECK_EQ(ftruncate(fd.get(), static_cast<off_t>(200 * kMiB)), 0);
    CHECK_EQ(sac_scrub(&e, 0, 200 * kMiB, Cut::now, &cut), as_int(SAC_E_MEDIA));
    CHECK_EQ(sac_last_error()->offset, 64 * kMiB);
}
