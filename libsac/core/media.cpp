// SPDX-License-Identifier: Apache-2.0
#include "media.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "error.hpp"
#include "stop.hpp"
#include "superblock.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kGenerationStep = std::uint64_t{1} << 20;
constexpr std::uint32_t kMetaExtent = UINT32_MAX;

std::uint64_t slabs_for(std::uint64_t bytes) {
    return (bytes + fmt::kMetaSlab - 1) / fmt::kMetaSlab;
}

[[noreturn]] void corrupt(const std::string &name, const std::string &what) {
    throw Error(SAC_E_CORRUPT, name,
                format("superblock of %s: %s. The pool cannot be trusted; create it anew.",
                       name.c_str(), what.c_str()));
}

}  // namespace

std::uint64_t Media::meta_bytes_needed(std::uint64_t data_bytes, std::uint32_t extents) {
    const std::uint64_t tables = slabs_for(data_bytes / fmt::kDataSlab * 8) + extents;
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

    for (std::uint32_t i = 0; i < sb.extent_count; ++i) {
        const Extent &e = data.extents()[i];
        fmt::Superblock own = sb;
        own.kind = fmt::kData, own.position = i;
        own.bytes = e.bytes, own.slab_bytes = fmt::kDataSlab;
        write_superblock(data.data() + e.offset, own);
    }

    const Extent &m = meta.extents().front();
    sb.kind = fmt::kMetadata, sb.bytes = m.bytes, sb.slab_bytes = fmt::kMetaSlab;
    sb.meta_slabs = m.bytes / fmt::kMetaSlab;
    std::uint64_t at = 1;
    sb.meta_table_offset = at * fmt::kMetaSlab;
    at += slabs_for(sb.meta_slabs * 8);
    for (std::uint32_t i = 0; i < sb.extent_count; ++i) {
        fmt::ExtentEntry &e = sb.extents[i];
        e.bytes = data.extents()[i].bytes;
        e.slab_count = e.bytes / fmt::kDataSlab;
        e.table_offset = at * fmt::kMetaSlab;
        at += slabs_for(e.slab_count * 8);
    }
    if (at >= sb.meta_slabs)
        throw Error(SAC_E_ARG, m.name,
                    format("metadata of %" PRIu64
                           " bytes is too small: the tables alone need %" PRIu64,
                           m.bytes, at * fmt::kMetaSlab));
    SlabTable meta_table(reinterpret_cast<std::uint64_t *>(meta.data() + sb.meta_table_offset),
                         sb.meta_slabs, sb.pool, kMetaExtent, m.name);
    for (std::uint64_t i = 0; i < at; ++i)
        meta_table.set(i, {0, fmt::kSystem, i});
    for (std::uint32_t i = 0; i < sb.extent_count; ++i) {
        SlabTable t(reinterpret_cast<std::uint64_t *>(meta.data() + sb.extents[i].table_offset),
                    sb.extents[i].slab_count, sb.pool, i, data.extents()[i].name);
        t.set(0, {0, fmt::kSystem, 0});
    }
    SAC_STOP("format.tables");
    write_superblock(meta.data(), sb);  // last: from here on the pool exists
}

Media::Media(std::unique_ptr<Mapping> meta, std::unique_ptr<Mapping> data, Fd lock)
    : lock_(std::move(lock)), meta_(std::move(meta)), data_(std::move(data)),
      epoch_(fork_epoch()) {
    load();
    meta_->check_alive(0, meta_->bytes());
    std::uint8_t boot[16];
    read_boot_id(boot);
    recovered_ = (super_.flags & fmt::kClean) == 0;
    rebooted_ = std::memcmp(boot, super_.boot_id, sizeof boot) != 0;
    first_generation_ = super_.generation_limit;
    next_generation_ = first_generation_;
    std::memcpy(super_.boot_id, boot, sizeof boot);
    super_.flags &= ~static_cast<std::uint32_t>(fmt::kClean);
    ++super_.incarnation;
    super_.generation_limit = first_generation_ + kGenerationStep;
    generation_limit_ = super_.generation_limit;
}

void Media::load() {
    const Extent &m = meta_->extents().front();
    if (m.bytes < 2 * fmt::kMetaSlab)
        corrupt(m.name, format("the file has %" PRIu64 " bytes only", m.bytes));
    super_ = read_superblock(meta_->data(), m.name);
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
    meta_slabs_ =
        std::make_unique<SlabTable>(table(super_.meta_table_offset, super_.meta_slabs),
                                    super_.meta_slabs, super_.pool, kMetaExtent, m.name);
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

std::uint64_t Media::generation() {
    const std::uint64_t g = next_generation_.fetch_add(1, std::memory_order_relaxed);
    if (g < generation_limit_.load(std::memory_order_acquire))
        return g;
    const std::lock_guard lock(mutex_);
    while (g >= super_.generation_limit) {
        super_.generation_limit += kGenerationStep;
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
    if (slab == SlabTable::kNone)
        return UINT64_MAX;
    std::uint8_t *const to = meta_->data() + slab * fmt::kMetaSlab;
    std::memset(to, 0, fmt::kMetaSlab);
    if (content)
        std::memcpy(to + at, content, bytes);
    SAC_STOP("meta.prepared");
    meta_slabs_->set(slab, {owner, role, position});
    return slab * fmt::kMetaSlab;
}

void Media::release_meta(std::uint64_t slab) {
    const std::lock_guard lock(mutex_);
    meta_slabs_->set(slab, {});
}

std::uint64_t Media::assign_chunk(std::uint32_t owner, std::uint32_t role,
                                  std::uint64_t position, std::uint64_t n) {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> order(tables_.size());
    for (std::uint32_t i = 0; i < order.size(); ++i)
        order[i] = i;
    const auto share = [&](std::uint32_t i) {
        return static_cast<double>(tables_[i].free()) / static_cast<double>(tables_[i].count());
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return share(a) > share(b); });
    for (const std::uint32_t e : order) {
        SlabTable &t = tables_[e];
        const std::uint64_t first = t.find(n);
        if (first == SlabTable::kNone)
            continue;
        const std::uint64_t at = data_->extents()[e].offset + first * fmt::kDataSlab;
        for (std::uint64_t i = 0; i < n; ++i) {
            // Another owner's bytes are gone before the slab has a new owner.
            if (t.get(first + i).role == fmt::kDirty) {
                std::memset(data_->data() + at + i * fmt::kDataSlab, 0, fmt::kDataSlab);
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
    for (std::uint64_t i = 0; i < run.count; ++i) {
        tables_[run.extent].set(run.first + i, {0, fmt::kDirty, 0});
        SAC_STOP("slab.released");
    }
}

std::uint64_t Media::chunk_offset(const Run &run) const {
    return data_->extents()[run.extent].offset + run.first * fmt::kDataSlab;
}

std::uint64_t Media::slab_count() const noexcept {
    std::uint64_t n = 0;
    for (const SlabTable &t : tables_)
        n += t.count() - 1;
    return n;
}

std::uint64_t Media::data_bytes() const noexcept { return slab_count() * fmt::kDataSlab; }

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

void Media::take() {
    const std::lock_guard lock(mutex_);
    store_superblock();
    meta_->check_alive(0, fmt::kMetaSlab);
}

void Media::close_clean() {
    const std::lock_guard lock(mutex_);
    if (closed_.exchange(true))
        return;
    super_.flags |= fmt::kClean;
    store_superblock();
}

void Media::check_usable() const {
    if (epoch_ != fork_epoch())
        throw Error(
            SAC_E_FORKED, "pool",
            "this pool was opened by the parent process; a forked child must open it anew");
    if (closed())
        throw Error(SAC_E_CLOSED, "pool", "the pool was closed");
}

}  // namespace sac
