// SPDX-License-Identifier: Apache-2.0
#include "media.hpp"

#include <sys/file.h>

#include <algorithm>
#include <cstring>

#include "error.hpp"
#include "kernel.hpp"
#include "scrub.hpp"
#include "stop.hpp"
#include "superblock.hpp"

namespace sac {

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
