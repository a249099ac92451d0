// SPDX-License-Identifier: Apache-2.0
// Memory that is bad: taken out of use for good, or gone for as long as its device is.
#include <algorithm>
#include <cinttypes>

#include "error.hpp"
#include "media.hpp"
#include "stop.hpp"

namespace sac {
namespace {

[[noreturn]] void no_extent(std::uint32_t extent, std::size_t count) {
    throw Error(SAC_E_ARG, "extent",
                format("there is no data extent %u; the pool has %zu", extent, count));
}

void check_range(const Extent &e, std::uint64_t offset, std::uint64_t bytes) {
    if (bytes == 0 || offset >= e.bytes || bytes > e.bytes - offset)
        throw Error(SAC_E_RANGE, e.name,
                    format("%s has %" PRIu64 " bytes; %" PRIu64 " from %" PRIu64
                           " on are not all there",
                           e.name.c_str(), e.bytes, bytes, offset));
}

}  // namespace

void Media::quarantine(std::uint32_t extent, std::uint64_t offset, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (extent == kMetadata)
        return quarantine_meta(offset, bytes);
    if (extent >= tables_.size())
        no_extent(extent, tables_.size());
    const Extent &e = data_->extents()[extent];
    check_range(e, offset, bytes);
    const std::uint64_t first = offset / fmt::kDataSlab;
    const std::uint64_t end = (offset + bytes - 1) / fmt::kDataSlab + 1;
    // For this process first: what is being committed there is refused from now on.
    data_->mark_dead(e.offset + first * fmt::kDataSlab, (end - first) * fmt::kDataSlab);
    SlabTable &t = tables_[extent];
    // Slab 0 is nobody's to get. On dead metadata nothing can be kept.
    for (std::uint64_t i = std::max<std::uint64_t>(first, 1);
         i < std::min(end, t.count()) && meta_->guard().faults() == 0; ++i) {
        t.set_bad(i);
        SAC_STOP("bad.slab");
    }
}

void Media::quarantine_meta(std::uint64_t offset, std::uint64_t bytes) {
    constexpr std::uint64_t kSlabs = kBlockBytes / fmt::kMetaSlab;
    const Extent &e = meta_->extents().front();
    check_range(e, offset, bytes);
    for (std::uint64_t block = offset / kBlockBytes; block * kBlockBytes < offset + bytes;
         ++block) {
        const std::uint64_t end = std::min((block + 1) * kSlabs, meta_slabs_->count());
        bool used = meta_->guard().faults() != 0;
        for (std::uint64_t i = block * kSlabs; i < end; ++i)
            used |= i == 0 || meta_slabs_->get(i).role != fmt::kFree;
        if (used)
            meta_->mark_dead(block * kBlockBytes, kBlockBytes);
        for (std::uint64_t i = block * kSlabs; !used && i < end; ++i)
            meta_slabs_->set_bad(i);
    }
}

// As the last owner left it.
void Media::mark_bad() noexcept {
    for (std::size_t x = 0; x < tables_.size(); ++x)
        for (std::uint64_t i = 1; tables_[x].bad() != 0 && i < tables_[x].count(); ++i)
            if (tables_[x].get(i).bad)
                data_->mark_dead(data_->extents()[x].offset + i * fmt::kDataSlab,
                                 fmt::kDataSlab);
}

void Media::lose(std::uint32_t extent) {
    const std::lock_guard lock(mutex_);
    if (extent == kMetadata) {
        meta_->lose(meta_->extents().front());
        return;
    }
    if (extent >= tables_.size())
        no_extent(extent, tables_.size());
    tables_[extent].lose();
    data_->lose(data_->extents()[extent]);
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> Media::out_of_use() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<std::uint32_t, std::uint64_t>> out;
    for (std::uint32_t x = 0; x < tables_.size(); ++x) {
        const SlabTable &t = tables_[x];
        for (std::uint64_t i = 1; (t.bad() != 0 || t.lost()) && i < t.count(); ++i)
            if (const fmt::Slab s = t.get(i); s.role <= fmt::kDirty && (s.bad || t.lost()))
                out.emplace_back(x, i);
    }
    return out;
}

std::uint64_t Media::dead_slabs() const {
    const std::lock_guard lock(mutex_);
    const FaultGuard &guard = data_->guard();
    std::uint64_t n = 0;
    for (std::uint32_t x = 0; x < tables_.size() && guard.faults() != 0; ++x) {
        const SlabTable &t = tables_[x];
        const std::uint64_t base = data_->extents()[x].offset;
        const std::uint64_t end = base + t.count() * fmt::kDataSlab;
        for (std::uint64_t at = guard.next_dead(base + fmt::kDataSlab); at < end;
             at = guard.next_dead(at + fmt::kDataSlab)) {
            const fmt::Slab s = t.get((at - base) / fmt::kDataSlab);
            n += s.role > fmt::kDirty || s.bad || t.lost();
        }
    }
    return n;
}

bool Media::all_lost() const {
    const std::lock_guard lock(mutex_);
    return !tables_.empty() && std::all_of(tables_.begin(), tables_.end(),
                                           [](const SlabTable &t) { return t.lost(); });
}

void Media::check_writable() const {
    if (meta_->guard().faults() == 0)
        return;
    const std::string &name = meta_->extents().front().name;
    const std::uint64_t at = meta_->guard().next_dead(0);
    // Clients of a daemon can neither close the pool nor open it.
    const char *const next =
        shared_.load(std::memory_order_relaxed)
            ? "The pool cannot be changed. If its device went away, the administrator "
              "assembles "
              "it again when that is back ('sacctl pool assemble'); where the memory is bad, "
              "the pool must be destroyed and created."
            : "The pool cannot be changed any more: close it, and open it again or create it "
              "anew.";
    throw Error(SAC_E_MEDIA, name,
                format("metadata of the pool at offset %" PRIu64
                       " of %s is dead: the device or file behind it has gone or is damaged. "
                       "%s",
                       at, name.c_str(), next),
                0, at);
}

void Media::check_room() const {
    if (!all_lost())
        return;
    const std::string &name = data_->extents().front().name;
    throw Error(
        SAC_E_MEDIA, name,
        format("the memory of the pool (%s%s) has gone with its device. It is back when "
               "the device is, and the pool is assembled again.",
               name.c_str(), tables_.size() > 1 ? " and others" : ""));
}

}  // namespace sac
