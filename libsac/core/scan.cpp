// SPDX-License-Identifier: Apache-2.0
// Opening a pool: its superblocks and slab tables checked, its slabs sorted by owner.
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "error.hpp"
#include "media.hpp"
#include "superblock.hpp"

namespace sac {
namespace {

[[noreturn]] void corrupt(const std::string &name, const std::string &what) {
    throw Error(SAC_E_CORRUPT, name,
                format("superblock of %s: %s. The pool cannot be trusted; create it anew.",
                       name.c_str(), what.c_str()));
}

}  // namespace

void Media::load() {
    const Extent &m = meta_->extents().front();
    if (m.bytes < 2 * fmt::kMetaSlab)
        corrupt(m.name, format("the file has %" PRIu64 " bytes only", m.bytes));
    bool alone = false;
    super_ = read_superblock(meta_->data(), m.name, &alone);
    // The copy that is lost may have been the newer one. It was a step ahead at most.
    if (alone && super_.generation_limit <= fmt::kGenerationMax)
        super_.generation_limit += kGenerationStep;
    if (super_.kind != fmt::kMetadata)
        corrupt(m.name, "this is not a metadata extent");
    if (super_.slab_bytes != fmt::kMetaSlab || super_.bytes > m.bytes ||
        super_.meta_slabs > super_.bytes / fmt::kMetaSlab || super_.meta_slabs < 2)
        corrupt(m.name, format("it describes %" PRIu64 " bytes, the extent has %" PRIu64,
                               super_.bytes, m.bytes));
    if (super_.extent_count != data_->extents().size())
        corrupt(m.name, format("it names %u data extents, %zu are given", super_.extent_count,
                               data_->extents().size()));
    if (super_.generation_limit == 0 ||
        super_.generation_limit > fmt::kGenerationMax - kGenerationStep)
        corrupt(m.name, "its generation limit is not possible");
    const auto table = [&](std::uint64_t offset, std::uint64_t count) {
        if (offset % fmt::kMetaSlab != 0 || offset >= super_.bytes ||
            count > super_.bytes / 8 || count * 8 > super_.bytes - offset)
            corrupt(m.name,
                    format("a slab table at %" PRIu64 " lies outside the extent", offset));
        return reinterpret_cast<std::uint64_t *>(meta_->data() + offset);
    };
    meta_slabs_ = std::make_unique<SlabTable>(
        table(super_.meta_table_offset, super_.meta_slabs), super_.meta_slabs, super_.pool,
        SlabTable::kMetaExtent, m.name);
    for (std::uint32_t i = 0; i < super_.extent_count; ++i) {
        const Extent &e = data_->extents()[i];
        const fmt::ExtentEntry &entry = super_.extents[i];
        if (entry.bytes > e.bytes || entry.slab_count != entry.bytes / fmt::kDataSlab ||
            entry.slab_count < 2)
            corrupt(e.name,
                    format("the pool expects %" PRIu64 " bytes, the extent has %" PRIu64,
                           entry.bytes, e.bytes));
        const fmt::Superblock own = read_superblock(data_->data() + e.offset, e.name);
        if (own.kind != fmt::kData || own.position != i ||
            std::memcmp(own.pool, super_.pool, sizeof own.pool) != 0)
            corrupt(e.name, "it belongs to another pool or place");
        tables_.emplace_back(table(entry.table_offset, entry.slab_count), entry.slab_count,
                             super_.pool, i, e.name);
    }
    check_system_slabs();
    for (const Extent &e : data_->extents())
        weights_.push_back(e.weight);
    mark_bad();
}

// The slabs of superblocks and tables are theirs alone: handed out, they would be overwritten.
void Media::check_system_slabs() {
    const Extent &m = meta_->extents().front();
    std::vector<std::uint64_t> slabs{0};
    const auto add = [&](std::uint64_t offset, std::uint64_t entries) {
        for (std::uint64_t i = 0; i < meta_slabs_for(entries * 8); ++i)
            slabs.push_back(offset / fmt::kMetaSlab + i);
    };
    add(super_.meta_table_offset, super_.meta_slabs);
    for (std::uint32_t i = 0; i < super_.extent_count; ++i)
        add(super_.extents[i].table_offset, super_.extents[i].slab_count);
    std::sort(slabs.begin(), slabs.end());
    if (std::adjacent_find(slabs.begin(), slabs.end()) != slabs.end())
        corrupt(m.name, "its slab tables overlap");
    for (const std::uint64_t slab : slabs)
        if (slab >= meta_slabs_->count() || meta_slabs_->get(slab).role != fmt::kSystem)
            corrupt(m.name,
                    format("slab %" PRIu64 " holds a superblock or slab table, but is not "
                           "marked so",
                           slab));
    for (std::uint64_t slab = 0; slab < meta_slabs_->count(); ++slab)
        if (meta_slabs_->get(slab).role == fmt::kSystem &&
            !std::binary_search(slabs.begin(), slabs.end(), slab))
            orphans_.push_back(slab);
    for (std::uint32_t i = 0; i < super_.extent_count; ++i)
        if (tables_[i].get(0).role != fmt::kSystem)
            corrupt(data_->extents()[i].name,
                    "slab 0 holds the superblock, but is not marked so");
}

// Files that were copied, or made by others, may have holes where zeros are.
void Media::allocate_owned() const {
    const auto allocate = [](const Mapping &mapping, const Extent &e, std::uint64_t offset,
                             std::uint64_t bytes) {
        if (!mapping.allocate(offset, bytes))
            throw Error(SAC_E_NO_SPACE, e.name,
                        format("%s has holes, and the file system is full: free some room "
                               "before the pool is opened.",
                               e.name.c_str()),
                        ENOSPC);
    };
    const Extent &m = meta_->extents().front();
    std::uint64_t first = 0;
    for (std::uint64_t i = 0; i <= meta_slabs_->count(); ++i) {
        if (i < meta_slabs_->count() && meta_slabs_->get(i).role > fmt::kDirty)
            continue;
        if (i > first)
            allocate(*meta_, m, first * fmt::kMetaSlab, (i - first) * fmt::kMetaSlab);
        first = i + 1;
    }
    for (const Extent &e : data_->extents())
        allocate(*data_, e, e.offset, fmt::kMetaSlab);
}

std::map<std::uint32_t, Owned> Media::owned() const {
    const std::lock_guard lock(mutex_);
    std::map<std::uint32_t, Owned> out;
    for (std::uint64_t i = 0; i < meta_slabs_->count(); ++i) {
        const fmt::Slab s = meta_slabs_->get(i);
        if (s.role == fmt::kNamespace)
            out[s.owner].blocks.push_back(i);
        if (s.role == fmt::kHeaders)
            out[s.owner].headers.emplace_back(s.position, i);
    }
    for (std::uint32_t e = 0; e < tables_.size(); ++e) {
        Run *last = nullptr;
        std::uint32_t owner = 0;
        for (std::uint64_t i = 1; i < tables_[e].count(); ++i) {
            const fmt::Slab s = tables_[e].get(i);
            if (s.role != fmt::kBody && s.role != fmt::kTail) {
                last = nullptr;
            } else if (last && owner == s.owner && last->role == s.role &&
                       last->position == s.position) {
                ++last->count;
            } else {
                owner = s.owner;
                out[owner].runs.push_back({s.role, s.position, e, i, 1});
                last = &out[owner].runs.back();
            }
        }
    }
    return out;
}

}  // namespace sac
