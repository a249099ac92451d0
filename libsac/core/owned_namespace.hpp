// SPDX-License-Identifier: Apache-2.0
// A namespace of a pool of this process: its superblock, its cache control, and the tables of
// those who use it.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "control.hpp"
#include "media.hpp"
#include "namespace.hpp"

namespace sac {

class OwnedNamespace final : public Namespace {
public:
    // Writes a new namespace's superblock; uid and gid own it. Throws Error.
    static std::shared_ptr<OwnedNamespace>
    create(std::shared_ptr<Media> media, std::uint32_t id, const std::string &name,
           const sac_ns_options &options, std::uint32_t uid, std::uint32_t gid, bool shared);
    // Reads one from memory and recovers its pages. Throws Error(SAC_E_CORRUPT) and others.
    static std::shared_ptr<OwnedNamespace> load(std::shared_ptr<Media> media,
                                                const Owned &owned, std::uint32_t id,
                                                bool rebooted, bool shared);
    // Gives all slabs back. Interrupted, it is completed when the pool is opened again.
    static void destroy(Media &media, const Owned &owned);

    // Throws where options ask for something else than what is there.
    void check_same(const sac_ns_options &options) const;
    // Marks it as being dropped, on memory too, unless pages are in use: their number. All
    // views are revoked.
    std::uint64_t drop();
    // Throws Error(SAC_E_BUSY) where pins keep a smaller quota from being met.
    void resize(std::uint64_t max_bytes);
    // The pool has grown: a namespace without a quota may, too.
    void pool_grew();
    // The pool is about to give out memory that holders of a view have not mapped.
    void pool_grows();

    // The superblock as it is now, for others to read: resize() changes it.
    fmt::NamespaceBlock copy_block() const;

    CacheControl &control() noexcept { return *control_; }
    Media &media() noexcept { return *media_; }
    // The index that is current: hand out its fd() read-only.
    std::shared_ptr<const Index> index() const { return control_->index(); }

    ~OwnedNamespace() override;

private:
    OwnedNamespace(std::shared_ptr<Media> media, const fmt::NamespaceBlock &block,
                   Geometry geometry, std::uint64_t block_offset, std::uint64_t capacity,
                   bool shared);
    void write_block();

    std::shared_ptr<Media> media_;
    std::uint64_t block_offset_;
    mutable std::mutex resizing_;
    std::unique_ptr<CacheControl> control_;
};

}  // namespace sac
