// SPDX-License-Identifier: Apache-2.0
// Opens a small pool whose bytes were changed, and uses what opens. Any sac::Error is an
// answer; a crash, a hang, a leak or a sanitizer's report is a fault of the library.
//
// Input: a byte of flags, a byte that says what is done after opening, then patches:
//   place (1 byte), offset in it (2, little-endian), length (1), so many bytes.
// CRCs count as right in fuzz builds. The layout's hash does not, so that a flag has it, and
// what follows from the layout, computed anew: else no change of a layout would get far.
#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>

#include "../kit_pages.hpp"
#include "error.hpp"
#include "gather.hpp"
#include "namespace_block.hpp"

namespace {

namespace fmt = sac::fmt;

constexpr std::uint64_t kMetaBytes = 14 * fmt::kMetaSlab;
constexpr std::uint64_t kDataBytes = 6 * fmt::kDataSlab;
constexpr std::uint64_t kPage = 4096;

enum Flags : std::uint8_t { kFixLayout = 1, kFixShape = 2, kRebooted = 4, kTwoExtents = 8 };

struct Place {
    bool meta;
    std::uint64_t offset, bytes;
};

// A formatted pool with two namespaces and some pages in each: pages that are not zero.
struct Image {
    std::vector<std::uint8_t> meta, data;
    std::vector<std::uint64_t> meta_pages, data_pages;
    std::vector<Place> places;
    std::vector<std::uint64_t> blocks;  // offsets of namespace superblocks' copies
};

// Small rows, far apart: some 100 pages a slab, of which a run touches little.
kit::Layout wide(kit::Layout l) {
    for (sac_plane &p : l.planes) {
        p.row_pitch = p.kind == SAC_PLANE_STATE ? 4096 : 256;
    }
    return l;
}
kit::Layout layout_a() { return wide(kit::rich(16, 20)); }

std::vector<sac::Extent> extents(std::uint64_t bytes, std::uint32_t count) {
    std::vector<sac::Extent> out(count);
    for (sac::Extent &e : out) {
        e.name = "memory";
        e.bytes = bytes / count;
    }
    return out;
}

std::vector<std::uint64_t> used_pages(const std::vector<std::uint8_t> &bytes) {
    std::vector<std::uint64_t> out;
    for (std::uint64_t at = 0; at < bytes.size(); at += kPage) {
        if (std::any_of(&bytes[at], &bytes[at] + kPage,
                        [](std::uint8_t b) { return b != 0; })) {
            out.push_back(at);
        }
    }
    return out;
}

Image make_image(std::uint32_t count) {
    Image image;
    auto meta = std::make_unique<sac::Mapping>(extents(kMetaBytes, 1));
    auto data = std::make_unique<sac::Mapping>(extents(kDataBytes, count));
    sac::Media::create(*meta, *data);
    const std::uint8_t *const meta_at = meta->data(), *const data_at = data->data();
    const std::uint64_t data_bytes = data->bytes();
    const kit::PoolHandle pool(new sac_pool{
        std::make_shared<sac::OwnedPool>(std::move(meta), std::move(data), sac::Fd())});
    const auto a = kit::space(pool, "a", layout_a(), 0, SAC_NS_DATA_CHECKSUM);
    const auto b = kit::space(pool, "b", wide(kit::plain(16, 40)), 0, SAC_NS_TOKEN_IDS);
    const std::vector<std::uint32_t> tokens(16 * 8, 7);
    kit::PutOptions with_tokens;
    with_tokens.tokens = tokens.data();
    kit::put(a, kit::keys(0, 4));
    kit::put(b, kit::keys(0, 4), with_tokens);
    kit::evict(b, 1);
    // The places that say something, found by the owners of the slabs.
    image.places = {{true, 0, 8192}, {false, 0, 8192}};
    const fmt::Superblock &sb = kit::owned(a.get()).media().superblock();
    image.places.push_back({true, sb.meta_table_offset, 8 * sb.meta_slabs});
    image.places.push_back({true, sb.extents[0].table_offset, 8 * sb.extents[0].slab_count});
    for (const auto &[id, owned] : kit::owned(a.get()).media().owned()) {
        for (const std::uint64_t slab : owned.blocks) {
            for (const std::uint64_t copy : fmt::kNamespaceCopies) {
                image.places.push_back({true, slab * fmt::kMetaSlab + copy, 512});
                image.places.push_back({true, slab * fmt::kMetaSlab + copy + 512, 4 * 144});
                image.blocks.push_back(slab * fmt::kMetaSlab + copy);
            }
        }
        for (const auto &[position, slab] : owned.headers) {
            image.places.push_back({true, slab * fmt::kMetaSlab, 8 * 256});
        }
        for (const sac::Run &r : owned.runs) {
            image.places.push_back({false, kit::owned(a.get()).media().chunk_offset(r), 65536});
        }
    }
    image.meta.assign(meta_at, meta_at + kMetaBytes);
    image.data.assign(data_at, data_at + data_bytes);
    image.meta_pages = used_pages(image.meta);
    image.data_pages = used_pages(image.data);
    return image;
}

// Numbers that follow from the layout, made to follow.
void fix(fmt::NamespaceBlock &b, std::uint8_t flags) {
    try {
        b.plane_count = std::min<std::uint32_t>(b.plane_count, SAC_MAX_PLANES);
        const sac::Geometry g({sizeof(sac_layout), b.page_tokens, b.plane_count, b.planes});
        std::copy(g.hash.begin(), g.hash.end(), b.layout_hash);
        b.body_bytes = g.part_bytes[0], b.tail_bytes = g.part_bytes[1];
        b.header_pitch = fmt::header_pitch(b.flags & SAC_NS_TOKEN_IDS, b.page_tokens);
        if ((flags & kFixShape) != 0) {
            const auto pages = [](std::uint32_t &slabs, std::uint64_t bytes) {
                slabs = bytes == 0 ? 0 : std::clamp(slabs, 1u, 3u);
                return bytes == 0 ? 0
                                  : static_cast<std::uint32_t>(slabs * fmt::kDataSlab / bytes);
            };
            b.body_pages = pages(b.body_slabs, b.body_bytes);
            b.tail_pages = pages(b.tail_slabs, b.tail_bytes);
            b.chunk_slots = std::max(b.body_pages, b.tail_pages);
        }
    } catch (const sac::Error &) {
    }
}

template <class Fn> void attempt(Fn &&fn) {
    try {
        fn();
    } catch (const sac::Error &) {
    }
}

void use(const std::shared_ptr<sac::Namespace> &ns, std::uint8_t what) {
    const auto keys = kit::keys(0, 5);
    const sac::Geometry &g = ns->geometry();
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;  // plane, layer
    kit::each_pair(g, [&](std::uint32_t p, std::uint32_t l) { pairs.emplace_back(p, l); });
    if ((what & 1) != 0) {
        attempt([&] {
            (void)sac::longest(*ns, keys.data(), 5);
            const sac_prefix prefix{std::make_shared<sac::Prefix>(ns)};
            prefix.it->pin(keys.data(), 5);
            for (const auto &[p, layer] : pairs) {
                std::vector<std::uint8_t> out(3 * std::size_t{g.planes[p].row_bytes});
                const std::uint64_t rows = prefix.it->rows(p, layer);
                const std::int64_t index[3] = {-1, 0, static_cast<std::int64_t>(rows) - 1};
                sac_gather_req r{};
                r.prefix = &prefix, r.plane = p, r.layer = layer;
                r.head = g.planes[p].heads - 1;
                r.index = index, r.index_bytes = 8, r.count = 3, r.dst = out.data();
                std::uint64_t failed = 0;
                attempt([&] { sac::gather(*ns, {&r, 1}, 0, 1, failed); });
            }
        });
    }
    if ((what & 2) != 0) {
        attempt([&] { (void)kit::owned(*ns).control().evict(3); });
    }
    if ((what & 4) != 0) {
        const std::vector<std::uint32_t> tokens(std::size_t{5} * g.page_tokens, 3);
        kit::PutOptions o;
        o.tokens = tokens.data();
        attempt([&] {
            sac::Put put(ns, keys.data(), 5, o);
            for (const std::uint32_t part : {sac::kBodyPart, sac::kTailPart}) {
                for (std::uint64_t i = 0; i < put.missing(part).size(); ++i) {
                    for (const auto &[p, l] : pairs) {
                        std::uint64_t bytes = 0;
                        if (g.at[p].part == part) {
                            std::uint8_t *const at = put.view(i, p, l, bytes);
                            at[0] = at[bytes - 1] = 1;
                        }
                    }
                }
            }
            (void)put.commit();
        });
    }
    if ((what & 8) != 0) {
        std::uint64_t checked = 0, dropped = 0;
        attempt([&] { kit::owned(*ns).control().verify(checked, dropped); });
    }
    if ((what & 16) != 0) {
        attempt([&] {
            const std::vector<std::uint32_t> tokens(std::size_t{g.page_tokens} + 1, 3);
            sac::Sequence seq(ns, nullptr, 0, nullptr, 0);
            seq.extend(tokens.data(), tokens.size(), 0);
            (void)seq.flush();
        });
    }
    sac_ns_stats stats{};
    std::uint64_t assigned = 0;
    ns->authority().stats(stats, assigned);
}

void run(const std::uint8_t *input, std::size_t size) {
    static const Image images[2] = {make_image(1), make_image(2)};
    if (size < 2) {
        return;
    }
    const std::uint8_t flags = input[0], what = input[1];
    const std::uint32_t count = (flags & kTwoExtents) != 0 ? 2 : 1;
    const Image &image = images[count - 1];
    auto meta = std::make_unique<sac::Mapping>(extents(kMetaBytes, 1));
    auto data = std::make_unique<sac::Mapping>(extents(kDataBytes, count));
    for (const std::uint64_t at : image.meta_pages) {
        std::memcpy(meta->data() + at, &image.meta[at], kPage);
    }
    for (const std::uint64_t at : image.data_pages) {
        std::memcpy(data->data() + at, &image.data[at], kPage);
    }
    for (std::size_t i = 2; i + 4 <= size;) {
        const Place &place = image.places[input[i] % image.places.size()];
        const std::uint64_t offset =
            (input[i + 1] | std::uint64_t{input[i + 2]} << 8) % place.bytes;
        const std::uint64_t n =
            std::min<std::uint64_t>({input[i + 3], size - i - 4, place.bytes - offset});
        std::memcpy((place.meta ? meta : data)->data() + place.offset + offset, input + i + 4,
                    n);
        i += 4 + n;
    }
    if ((flags & kFixLayout) != 0) {
        for (const std::uint64_t at : image.blocks) {
            fix(*reinterpret_cast<fmt::NamespaceBlock *>(meta->data() + at), flags);
        }
    }
    if ((flags & kRebooted) != 0) {
        for (const std::uint64_t copy : fmt::kSuperblockCopies) {
            meta->data()[copy + offsetof(fmt::Superblock, boot_id)] ^= 1;
        }
    }
    attempt([&] {
        const auto pool =
            std::make_shared<sac::OwnedPool>(std::move(meta), std::move(data), sac::Fd());
        const sac_ns_options open_only = kit::ns_options(nullptr);
        for (const std::string &name : pool->names()) {
            attempt([&] { use(pool->open_namespace(name, open_only), what); });
        }
        if ((what & 32) != 0) {
            for (const std::string &name : pool->names()) {
                attempt([&] { pool->drop(name); });
            }
        }
        // Scrubbing the slabs that were dropped is slow: when two bits ask for it.
        if ((what & 64) != 0 && (what & 128) != 0) {
            const kit::Layout layout = layout_a();
            const sac_layout l = layout.get();
            attempt([&] { use(pool->open_namespace("c", kit::ns_options(&l)), what); });
        }
    });
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    // A huge page would be cleared, 2 MiB of it, for each that a run touches.
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *input, std::size_t size) {
    run(input, size);
    return 0;
}
