// SPDX-License-Identifier: Apache-2.0
// What a pool holds on memory: superblocks, slab tables, generations. docs/format.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backing.hpp"
#include "format.hpp"
#include "huge_pages.hpp"
#include "mapping.hpp"
#include "slabs.hpp"

namespace sac {

inline std::uint64_t meta_slabs_for(std::uint64_t bytes) {
    return (bytes + fmt::kMetaSlab - 1) / fmt::kMetaSlab;
}

// Consecutive slabs of a data extent with the same owner, role and position.
struct Run {
    std::uint32_t role;
    std::uint64_t position;
    std::uint32_t extent;
    std::uint64_t first, count;
};

// The slabs of one namespace, as a scan found them.
struct Owned {
    std::vector<std::uint64_t> blocks;                             // of role kNamespace
    std::vector<std::pair<std::uint64_t, std::uint64_t>> headers;  // position, slab
    std::vector<Run> runs;
};

class Media final : public Backing {
public:
    // Writes superblocks and empty slab tables over extents whose bytes are zero, or which are
    // dirty: then whatever pool was there has gone with the first store, and no byte of the
    // metadata stays. meta and every data extent must be large enough: meta_bytes_needed().
    // Throws Error: SAC_E_ARG, SAC_E_NO_SPACE (the file system is full), SAC_E_MEDIA.
    static void create(Mapping &meta, Mapping &data);
    static std::uint64_t meta_bytes_needed(std::uint64_t data_bytes, std::uint32_t extents);

    // Checks all superblocks and slab tables; writes nothing before take().
    // Throws Error: SAC_E_CORRUPT, SAC_E_VERSION, SAC_E_MEDIA, SAC_E_NO_SPACE.
    Media(std::unique_ptr<Mapping> meta, std::unique_ptr<Mapping> data, Fd lock);
    ~Media() override;

    const Mapping &meta() const noexcept { return *meta_; }
    const fmt::Superblock &superblock() const noexcept { return super_; }
    bool recovered() const noexcept { return recovered_; }
    bool rebooted() const noexcept { return rebooted_; }
    std::map<std::uint32_t, Owned> owned() const;

    // Writes the superblock of this incarnation. To be called when recovery is done: a kill
    // before that leaves the boot id of the last owner, so a reboot is not forgotten.
    // shared: other processes will map the pool.
    void take(bool shared);
    // Tells those who have the pool mapped that this incarnation serves it from now on.
    void announce() noexcept;
    // Whether processes that are not this one's children may have it mapped since before.
    bool served() const noexcept { return served_; }

    // A generation that was never given before and never will be again. On dead metadata,
    // where the limit cannot be raised any more, the next owner may give it again: look at
    // check_writable() before anything is kept with it. Does not throw.
    std::uint64_t generation() noexcept;
    // Below this every generation lies that was given before this incarnation.
    std::uint64_t first_generation() const noexcept { return first_generation_; }

    // A metadata slab: zeros, but for content at its offset; complete before it is owned. Its
    // offset in the metadata extent, or UINT64_MAX where none is free, or the file system is
    // full: file_system_full() tells. Throws as check_writable().
    std::uint64_t assign_meta(std::uint32_t owner, std::uint32_t role, std::uint64_t position,
                              const void *content = nullptr, std::uint64_t bytes = 0,
                              std::uint64_t at = 0);
    void release_meta(std::uint64_t slab);  // throws as check_writable()

    // n consecutive slabs for a chunk, scrubbed where they had another owner; the offset in
    // the data range, or UINT64_MAX as above. Extents are taken in turn, so that each is filled
    // by its weight times its size. Throws as check_writable().
    std::uint64_t assign_chunk(std::uint32_t owner, std::uint32_t role, std::uint64_t position,
                               std::uint64_t n);
    void release(const Run &run);  // throws as check_writable()
    std::uint64_t chunk_offset(const Run &run) const;

    HugePages &huge() const noexcept { return *huge_; }

    std::uint64_t data_bytes() const;
    std::uint64_t free_bytes() const;
    std::uint64_t slab_count() const;                 // of all data extents, superblocks' aside
    std::vector<std::uint64_t> extent_slabs() const;  // of each data extent, all of them
    struct State {
        std::uint64_t slabs, free, bad;
        std::uint32_t weight;
        bool lost;
    };
    std::vector<State> states() const;  // of each data extent
    std::uint64_t free_meta_bytes() const;

    // One more data extent, at the end; its bytes are zeros, or it is dirty. Complete with the
    // last store, of the superblock: cut off before, nothing has changed. Throws Error:
    // SAC_E_ARG, SAC_E_NO_SPACE, as check_writable(). mapped is called when the extent is
    // mapped, before anything in it is given out.
    void extend(Extent extent, const std::function<void()> &mapped);

    // Of all data extents, one each. Throws Error(SAC_E_ARG).
    void set_weights(std::span<const std::uint32_t> weights);

    // ---- memory that is bad (bad_memory.cpp). Pages are the caller's to take out.
    static constexpr std::uint32_t kMetadata = UINT32_MAX;  // for the number of an extent
    // Blocks of 2 MiB that touch the range are out of use, on memory too: they are dead to this
    // process, and no slab of theirs is given out again. Used metadata cannot be spared: then
    // all of the metadata counts as dead. Throws Error: SAC_E_ARG, SAC_E_RANGE.
    void quarantine(std::uint32_t extent, std::uint64_t offset, std::uint64_t bytes);
    // The extent's device has gone, and its memory with it; the next owner may find it again.
    // Throws Error(SAC_E_ARG).
    void lose(std::uint32_t extent);
    // Slabs of the data that are bad and nobody's: extent and number.
    std::vector<std::pair<std::uint32_t, std::uint64_t>> out_of_use() const;
    // How many lie on dead memory, whoever has them, and are not counted as free.
    std::uint64_t dead_slabs() const;
    bool all_lost() const;
    // SAC_E_MEDIA where all data extents are lost.
    void check_room() const;

    // shared: clients have it mapped still.
    void close_clean(bool shared);
    // SAC_E_MEDIA, naming the file, once any of the metadata is dead: it reads as zeros since,
    // so that nothing which is to be kept may be decided by it or written to it.
    void check_writable() const;
    // Whether the last slab or chunk could not be had because the file system is full.
    bool file_system_full() const noexcept {
        return file_system_full_.load(std::memory_order_relaxed);
    }

private:
    static constexpr std::uint64_t kGenerationStep = std::uint64_t{1} << 20;

    void store_superblock();  // mutex_ held, as for the next
    void set_served(bool served) noexcept;
    void load();  // in scan.cpp
    void check_system_slabs();
    void mark_bad() noexcept;
    void quarantine_meta(std::uint64_t offset, std::uint64_t bytes);
    void allocate_owned() const;
    void unlock() noexcept;

    Fd lock_;  // outlives the mappings
    std::unique_ptr<Mapping> meta_;
    fmt::Superblock super_{};
    std::unique_ptr<SlabTable> meta_slabs_;
    std::vector<SlabTable> tables_;
    std::vector<std::uint32_t> weights_;  // as tables_
    std::unique_ptr<HugePages> huge_;
    std::vector<std::uint64_t> orphans_;  // metadata slabs marked as a table's, but of none
    bool recovered_ = false, rebooted_ = false, served_ = false;
    std::uint64_t first_generation_ = 0;
    std::atomic<std::uint64_t> next_generation_{0}, generation_limit_{0};
    std::atomic<bool> file_system_full_{false};
    std::atomic<bool> shared_{false};  // served to other processes
    mutable std::mutex mutex_;
};

}  // namespace sac
