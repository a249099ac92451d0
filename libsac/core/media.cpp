// SPDX-License-Identifier: Apache-2.0
#include "media.hpp"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "error.hpp"
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

}  // namespace

std::uint64_t Media::meta_bytes_needed(std::uint64_t data_bytes, std::uint32_t extents) {
    const std::uint64_t tables = meta_slabs_for(data_bytes / fmt::kDataSlab * 8) + extents;
    return (1 + tables + 2) * fmt::kMetaSlab;
}

namespace {

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

Media::Media(std::unique_ptr<Mapping> meta, std::unique_ptr<Mapping> data, Fd lock)
    : Backing(std::move(data)), lock_(std::move(lock)), meta_(std::move(meta)) {
    huge_ = std::make_unique<HugePages>(*data_);
    try {
        load();
        allocate_owned();
        check_writable();
    } catch (...) {
        huge_.reset();
        data_.reset();
        meta_.reset();
        unlock();
        throw;
    }
    std::uint8_t boot[16];
    read_boot_id(boot);
    recovered_ = (super_.flags & fmt::kClean) == 0;
    rebooted_ = std::memcmp(boot, super_.boot_id, sizeof boot) != 0;
    served_ = (super_.flags & fmt::kServed) != 0 && !rebooted_;
    first_generation_ = super_.generation_limit;
    next_generation_ = first_generation_;
    std::memcpy(super_.boot_id, boot, sizeof boot);
    super_.flags &= ~static_cast<std::uint32_t>(fmt::kClean);
    ++super_.incarnation;
    super_.generation_limit = first_generation_ + kGenerationStep;
    generation_limit_ = super_.generation_limit;
}

std::uint64_t Media::generation() noexcept {
    const std::uint64_t g = next_generation_.fetch_add(1, std::memory_order_relaxed);
    if (g < generation_limit_.load(std::memory_order_acquire))
        return g;
    const std::lock_guard lock(mutex_);
    while (g >= super_.generation_limit) {
        super_.generation_limit += kGenerationStep;
        if (meta_->guard().faults() == 0)
            store_superblock();
        generation_limit_.store(super_.generation_limit, std::memory_order_release);
    }
    return g;
}

std::uint64_t Media::assign_meta(std::uint32_t owner, std::uint32_t role,
                                 std::uint64_t position, const void *content,
                                 std::uint64_t bytes, std::uint64_t at) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t slab = meta_slabs_->find(1);
    // Behind the search: the table may have died under it.
    check_writable();
    file_system_full_ =
        slab != SlabTable::kNone && !meta_->allocate(slab * fmt::kMetaSlab, fmt::kMetaSlab);
    if (slab == SlabTable::kNone || file_system_full_)
        return UINT64_MAX;
    std::uint8_t *const to = meta_->data() + slab * fmt::kMetaSlab;
    std::memset(to, 0, fmt::kMetaSlab);
    if (content)
        std::memcpy(to + at, content, bytes);
    SAC_STOP("meta.prepared");
    check_writable();
    meta_slabs_->set(slab, {owner, role, position});
    return slab * fmt::kMetaSlab;
}

void Media::release_meta(std::uint64_t slab) {
    const std::lock_guard lock(mutex_);
    check_writable();
    meta_slabs_->set(slab, {});
}

std::uint64_t Media::assign_chunk(std::uint32_t owner, std::uint32_t role,
                                  std::uint64_t position, std::uint64_t n) {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> order(tables_.size());
    for (std::uint32_t i = 0; i < order.size(); ++i)
        order[i] = i;
    // How far it is filled, for its weight.
    const auto filled = [&](std::uint32_t i) {
        return static_cast<double>(tables_[i].count() - tables_[i].free()) /
               (static_cast<double>(tables_[i].count()) * weights_[i]);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return filled(a) < filled(b); });
    file_system_full_ = false;
    for (const std::uint32_t e : order) {
        SlabTable &t = tables_[e];
        const std::uint64_t first = t.find(n);
        check_writable();
        if (first == SlabTable::kNone)
            continue;
        const std::uint64_t at = data_->extents()[e].offset + first * fmt::kDataSlab;
        huge_->prepare(e, t.count(), first, n);
        if (!data_->allocate(at, n * fmt::kDataSlab)) {
            (void)data_->discard(at, n * fmt::kDataSlab);
            file_system_full_ = true;
            continue;
        }
        file_system_full_ = false;
        for (std::uint64_t i = 0; i < n; ++i) {
            // Another owner's bytes are gone before the slab has a new owner.
            if (t.get(first + i).role == fmt::kDirty) {
                stream_zeros(data_->data() + at + i * fmt::kDataSlab, fmt::kDataSlab);
                SAC_STOP("slab.scrubbed");
            }
            t.set(first + i, {owner, role, position});
            SAC_STOP("slab.assigned");
        }
        return at;
    }
    return UINT64_MAX;
}

void Media::release(const Run &run) {
    const std::lock_guard lock(mutex_);
    check_writable();
    for (std::uint64_t i = 0; i < run.count; ++i) {
        tables_[run.extent].set(run.first + i, {0, fmt::kDirty, 0});
        SAC_STOP("slab.released");
    }
}

std::uint64_t Media::chunk_offset(const Run &run) const {
    return data_->extents()[run.extent].offset + run.first * fmt::kDataSlab;
}

std::uint64_t Media::slab_count() const {
    const std::lock_guard lock(mutex_);
    std::uint64_t n = 0;
    for (const SlabTable &t : tables_)
        n += t.count() - 1;
    return n;
}

std::vector<std::uint64_t> Media::extent_slabs() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> out;
    for (const SlabTable &t : tables_)
        out.push_back(t.count());
    return out;
}

std::vector<Media::State> Media::states() const {
    const std::lock_guard lock(mutex_);
    std::vector<State> out;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
        const SlabTable &t = tables_[i];
        out.push_back({t.count(), t.free(), t.bad(), weights_[i], t.lost()});
    }
    return out;
}

void Media::set_weights(std::span<const std::uint32_t> weights) {
    const std::lock_guard lock(mutex_);
    if (weights.size() != tables_.size() ||
        std::any_of(weights.begin(), weights.end(),
                    [](std::uint32_t w) { return w == 0 || w > UINT16_MAX; }))
        throw Error(
            SAC_E_ARG, "weights",
            format("%zu weights; the pool has %zu data extents, and each has one from 1 "
                   "to 65535",
                   weights.size(), tables_.size()));
    weights_.assign(weights.begin(), weights.end());
}

std::uint64_t Media::free_meta_bytes() const {
    const std::lock_guard lock(mutex_);
    return meta_slabs_->free() * fmt::kMetaSlab;
}

std::uint64_t Media::data_bytes() const { return slab_count() * fmt::kDataSlab; }

std::uint64_t Media::free_bytes() const {
    const std::lock_guard lock(mutex_);
    std::uint64_t n = 0;
    for (const SlabTable &t : tables_)
        n += t.free();
    return n * fmt::kDataSlab;
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

void Media::store_superblock() {
    write_superblock(meta_->data(), super_);
    SAC_STOP("superblock.written");
}

Media::~Media() {
    huge_.reset();
    data_.reset();
    meta_.reset();
    unlock();
}

// The last step of all. Not by closing alone: a child that was forked this instant still has
// the fd open.
void Media::unlock() noexcept {
    if (lock_ && !forked())
        (void)flock(lock_.get(), LOCK_UN);
}

void Media::take(bool shared) {
    const std::lock_guard lock(mutex_);
    check_writable();
    shared_.store(shared, std::memory_order_relaxed);
    set_served(shared);
    super_.minor = std::max(super_.minor, fmt::kMinor);
    // Of an extension that was cut off before its superblock: no table of ours.
    for (const std::uint64_t slab : orphans_)
        meta_slabs_->set(slab, {});
    orphans_.clear();
    store_superblock();
    check_writable();
}

void Media::announce() noexcept {
    auto *const at = reinterpret_cast<std::uint64_t *>(data_->data() + fmt::kServedAt);
    std::atomic_ref<std::uint64_t>(*at).store(super_.incarnation, std::memory_order_seq_cst);
}

void Media::close_clean(bool shared) {
    const std::lock_guard lock(mutex_);
    if (closed_.exchange(true))
        return;
    if (meta_->guard().faults() != 0)
        return;  // not clean: the next owner takes it as after a kill
    super_.flags |= fmt::kClean;
    set_served(shared);
    store_superblock();
}

void Media::set_served(bool served) noexcept {
    if (served)
        super_.flags |= fmt::kServed;
    else
        super_.flags &= ~static_cast<std::uint32_t>(fmt::kServed);
}

}  // namespace sac
