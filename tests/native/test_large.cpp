// SPDX-License-Identifier: Apache-2.0
// Beyond 2^32: byte offsets and row numbers. Sparse memory: only what is looked at is there.
#include <sys/mman.h>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

sac::Extent sparse(const char *name, std::uint64_t bytes) {
    const int fd = memfd_create(name, MFD_CLOEXEC);
    CHECK(fd >= 0);
    sac::Extent e;
    e.fd = sac::Fd(fd);
    e.name = name;
    e.bytes = bytes;
    CHECK_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    return e;
}

// A pool that asks nobody whether there is so much memory.
kit::PoolHandle sparse_pool(std::uint64_t bytes, std::uint32_t extents) {
    std::vector<sac::Extent> metas, datas;
    metas.push_back(sparse("meta", 64 * kit::kMiB));
    for (std::uint32_t i = 0; i < extents; ++i) {
        datas.push_back(sparse("data", bytes / extents));
    }
    auto meta = std::make_unique<sac::Mapping>(std::move(metas));
    auto data = std::make_unique<sac::Mapping>(std::move(datas));
    sac::Media::create(*meta, *data);
    return kit::PoolHandle(new sac_pool{
        std::make_shared<sac::OwnedPool>(std::move(meta), std::move(data), sac::Fd())});
}

void gather_one(const kit::NsHandle &ns, const kit::PrefixHandle &prefix, std::int64_t row,
                std::uint8_t *out) {
    sac_gather_req r{};
    r.prefix = prefix.get(), r.index = &row, r.index_bytes = 8, r.count = 1, r.dst = out;
    MUST(sac_gather(ns.get(), &r, 1, 0, 1, nullptr));
}

}  // namespace

TEST(pages_far_beyond_4_gib) {
    for (const std::uint32_t extents : {1u, 3u}) {
        const auto pool = sparse_pool(12 * kGiB, extents);
        constexpr std::uint32_t kRow = 1u << 24;
        const auto ns = kit::space(pool, "ns", kit::plain(64, kRow));  // a page of 1 GiB
        const auto k = kit::keys(0, 9);
        kit::PutHandle put;
        MUST(kit::begin(ns, k, put));
        std::uint64_t highest = 0;
        std::uint8_t *first = nullptr;
        for (std::uint64_t i = 0; i < 9; ++i) {
            void *rows = nullptr;
            std::uint64_t bytes = 0;
            MUST(sac_put_view(put.get(), i, 0, 0, &rows, &bytes));
            CHECK_EQ(bytes, kGiB);
            auto *const at = static_cast<std::uint8_t *>(rows);
            first = i == 0 ? at : first;
            highest = std::max<std::uint64_t>(
                highest,
                static_cast<std::uint64_t>(at - kit::owned(ns.get()).media().data().data()));
            at[0] = static_cast<std::uint8_t>(i + 1);
            at[kGiB - 1] = static_cast<std::uint8_t>(i + 101);
        }
        CHECK(highest > 2 * (std::uint64_t{1} << 32) / extents);
        MUST(sac_put_commit(put.get(), nullptr));
        const auto prefix = kit::pin(ns, k);
        CHECK_EQ(kit::pages(prefix), 9u);
        std::vector<std::uint8_t> out(kRow);
        for (std::int64_t i = 0; i < 9; ++i) {
            gather_one(ns, prefix, i * 64, out.data());
            CHECK_EQ(out[0], i + 1);
            gather_one(ns, prefix, i * 64 + 63, out.data());
            CHECK_EQ(out[kRow - 1], i + 101);
        }
    }
}

TEST(more_than_2_to_the_32_rows) {
    const auto pool = sparse_pool(6 * kGiB, 1);
    const auto ns = kit::space(pool, "ns", kit::plain(65536, 1));
    constexpr std::uint64_t kPages = 65536 + 64;
    const auto k = kit::keys(0, kPages);
    kit::PutHandle put;
    MUST(kit::begin(ns, k, put));
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < kPages; ++i) {
        void *rows = nullptr;
        MUST(sac_put_view(put.get(), i, 0, 0, &rows, &bytes));
        if (i % 8192 == 3 || i == kPages - 1) {
            static_cast<std::uint8_t *>(rows)[i % 60000] =
                static_cast<std::uint8_t>(i / 8192 + 1);
        }
    }
    std::uint64_t committed = 0;
    MUST(sac_put_commit(put.get(), &committed));
    CHECK_EQ(committed, kPages);
    const auto prefix = kit::pin(ns, k);
    std::uint64_t rows = 0;
    MUST(sac_prefix_rows(prefix.get(), 0, 0, &rows));
    CHECK_EQ(rows, kPages * 65536);
    CHECK(rows > UINT32_MAX);
    std::uint8_t out = 0;
    for (std::uint64_t i = 0; i < kPages; ++i) {
        if (i % 8192 == 3 || i == kPages - 1) {
            gather_one(ns, prefix, static_cast<std::int64_t>(i * 65536 + i % 60000), &out);
            CHECK_EQ(out, static_cast<std::uint8_t>(i / 8192 + 1));
        }
    }
    sac_gather_req r{};
    const std::int64_t end = static_cast<std::int64_t>(rows);
    r.prefix = prefix.get(), r.index = &end, r.index_bytes = 8, r.count = 1, r.dst = &out;
    CHECK_EQ(sac_gather(ns.get(), &r, 1, 0, 1, nullptr), static_cast<int>(SAC_E_RANGE));
}
