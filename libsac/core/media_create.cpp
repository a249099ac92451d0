// SPDX-License-Identifier: Apache-2.0
// The structures of a pool are written: of a new one, and of one more extent.
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "error.hpp"
#include "kernel.hpp"
#include "media.hpp"
#include "scrub.hpp"
#include "stop.hpp"
#include "superblock.hpp"

namespace sac {
namespace {

void allocate(const Mapping &mapping, std::uint64_t offset, std::uint64_t bytes,
              const std::string &name) {
    if (!mapping.allocate(offset, bytes))
        throw Error(SAC_E_NO_SPACE, name,
                    format("%s: the file system is full: no room for %" PRIu64
                           " bytes of superblocks and slab tables. Free some, or use another.",
                           name.c_str(), bytes),
                    ENOSPC);
}

// Not one byte of an earlier owner stays where the pool's own structures will lie.
void clear_system(const Mapping &meta, const Mapping &data) {
    const Extent &m = meta.extents().front();
    if (m.dirty) {
        // The superblocks first, also for the compiler: nobody is to take what a kill left
        // half cleared for a pool.
        std::memset(meta.data(), 0, 2 * sizeof(fmt::Superblock));
        std::atomic_signal_fence(std::memory_order_seq_cst);
        SAC_STOP("clear.begun");
        if (!meta.discard(0, m.bytes))
            zero_all(meta.data(), m.bytes);
    }
    for (const Extent &e : data.extents())
        if (e.dirty)
            zero_all(data.data() + e.offset, fmt::kMetaSlab);
    SAC_STOP("clear.end");
}

// A data extent's table: the slab of its superblock is taken, the others are free.
void fill_table(SlabTable &table, bool dirty) {
    for (std::uint64_t i = 1; dirty && i < table.count(); ++i)
        table.set(i, {0, fmt::kDirty, 0});
    table.set(0, {0, fmt::kSystem, 0});
}

}  // namespace

std::uint64_t Media::meta_bytes_needed(std::uint64_t data_bytes, std::uint32_t extents) {
    const std::uint64_t tables = meta_slabs_for(data_bytes / fmt::kDataSlab * 8) + extents;
    return (1 + tables + 2) * fmt::kMetaSlab;
}

void Media::create(Mapping &meta, Mapping &data) {
    fmt::Superblock sb{};
    std::memcpy(sb.magic, fmt::kPoolMagic, sizeof sb.magic);
    sb.major = fmt::kMajor, sb.minor = fmt::kMinor;
    random_bytes(sb.pool, sizeof sb.pool);
    random_bytes(&sb.hash_seed, sizeof sb.hash_seed);
    read_boot_id(sb.boot_id);
    sb.flags = fmt::kClean;
    sb.generation_limit = 1;
    sb.extent_count = static_cast<std::uint32_t>(data.extents().size());
    const fmt::Superblock common = sb;

    const Extent &m = meta.extents().front();
    sb.kind = fmt::kMetadata, sb.bytes = m.bytes, sb.slab_bytes = fmt::kMetaSlab;
    sb.meta_slabs = m.bytes / fmt::kMetaSlab;
    std::uint64_t at = 1;
    sb.meta_table_offset = at * fmt::kMetaSlab;
    at += meta_slabs_for(sb.meta_slabs * 8);
    for (std::uint32_t i = 0; i < sb.extent_count; ++i) {
        fmt::ExtentEntry &e = sb.extents[i];
        e.bytes = data.extents()[i].bytes;
        e.slab_count = e.bytes / fmt::kDataSlab;
        e.table_offset = at * fmt::kMetaSlab;
        at += meta_slabs_for(e.slab_count * 8);
    }
    if (at >= sb.meta_slabs)
        throw Error(SAC_E_ARG, m.name,
                    format("metadata of %" PRIu64
                           " bytes is too small: the tables alone need %" PRIu64,
                           m.bytes, at * fmt::kMetaSlab));
    clear_system(meta, data);
    for (const Extent &e : data.extents())
        allocate(data, e.offset, fmt::kMetaSlab, e.name);
    allocate(meta, 0, at * fmt::kMetaSlab, m.name);
    for (std::uint32_t i = 0; i < sb.extent_count; ++i) {
        const Extent &e = data.extents()[i];
        fmt::Superblock own = common;
        own.kind = fmt::kData, own.position = i;
        own.bytes = e.bytes, own.slab_bytes = fmt::kDataSlab;
        write_superblock(data.data() + e.offset, own);
        data.check_alive(e.offset, fmt::kMetaSlab);
    }
    SlabTable meta_table(reinterpret_cast<std::uint64_t *>(meta.data() + sb.meta_table_offset),
                         sb.meta_slabs, sb.pool, SlabTable::kMetaExtent, m.name);
    for (std::uint64_t i = 0; i < at; ++i)
        meta_table.set(i, {0, fmt::kSystem, i});
    for (std::uint32_t i = 0; i < sb.extent_count; ++i) {
        SlabTable t(reinterpret_cast<std::uint64_t *>(meta.data() + sb.extents[i].table_offset),
                    sb.extents[i].slab_count, sb.pool, i, data.extents()[i].name);
        fill_table(t, data.extents()[i].dirty);
    }
    meta.check_alive(0, m.bytes);
    SAC_STOP("format.tables");
    write_superblock(meta.data(), sb);  // last: from here on the pool exists
}

void Media::extend(Extent extent, const std::function<void()> &mapped) {
    const std::string name = extent.name;
    const std::uint64_t bytes = extent.bytes / fmt::kDataSlab * fmt::kDataSlab;
    if (bytes < 2 * fmt::kDataSlab)
        throw Error(SAC_E_ARG, name,
                    format("%s has %" PRIu64 " bytes: an extent needs 4 MiB at least",
                           name.c_str(), extent.bytes));
    std::unique_lock lock(mutex_);
    check_writable();
    const std::uint32_t position = super_.extent_count;
    if (position == fmt::kMaxExtents)
        throw Error(SAC_E_ARG, name,
                    format("the pool has %u data extents, the most it can have", position));
    const std::uint64_t count = bytes / fmt::kDataSlab;
    const std::uint64_t slabs = meta_slabs_for(count * 8);
    const std::uint64_t first = meta_slabs_->find(slabs);
    if (first == SlabTable::kNone)
        throw Error(SAC_E_NO_SPACE, name,
                    format("the pool's metadata has no room for the %" PRIu64
                           " KiB of the extent's slab table: drop a namespace, or create the "
                           "pool anew with more metadata",
                           slabs * (fmt::kMetaSlab >> 10)));
    data_->append(std::move(extent));
    const Extent &e = data_->extents().back();
    const std::uint64_t table = first * fmt::kMetaSlab;
    allocate(*meta_, table, slabs * fmt::kMetaSlab, meta_->extents().front().name);
    allocate(*data_, e.offset, fmt::kMetaSlab, name);
    if (e.dirty)  // of another pool, it may have a superblock that seems to be the newer one
        stream_zeros(data_->data() + e.offset, fmt::kMetaSlab);
    std::memset(meta_->data() + table, 0, slabs * fmt::kMetaSlab);
    fmt::Superblock own{};
    std::memcpy(own.magic, fmt::kPoolMagic, sizeof own.magic);
    own.major = fmt::kMajor, own.minor = fmt::kMinor;
    std::memcpy(own.pool, super_.pool, sizeof own.pool);
    own.kind = fmt::kData, own.position = position;
    own.bytes = bytes, own.slab_bytes = fmt::kDataSlab;
    write_superblock(data_->data() + e.offset, own);
    SlabTable t(reinterpret_cast<std::uint64_t *>(meta_->data() + table), count, super_.pool,
                position, name);
    fill_table(t, e.dirty);
    for (std::uint64_t i = 0; i < slabs; ++i)
        meta_slabs_->set(first + i, {0, fmt::kSystem, first + i});
    check_writable();
    super_.extents[position] = {bytes, count, table, {}};
    ++super_.extent_count;
    SAC_STOP("extend.prepared");
    store_superblock();
    lock.unlock();
    mapped();
    lock.lock();
    tables_.push_back(std::move(t));
    weights_.push_back(e.weight);
}

}  // namespace sac
