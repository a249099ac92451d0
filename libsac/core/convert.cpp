// SPDX-License-Identifier: Apache-2.0
// Chunks of one part made out of the other's, where a cache has too few of it.
#include <algorithm>
#include <map>

#include "control.hpp"

namespace sac {

// Chunks of a part that can be taken back, the coldest first, so many that keep slots and one
// chunk are left.
std::vector<std::uint64_t> CacheControl::candidates(std::uint32_t part, std::uint64_t keep,
                                                    const Survey &s) const {
    std::vector<std::uint64_t> all, out;
    std::uint64_t chunks = 0;
    for (std::uint64_t c = 0; c < chunk_part_.size(); ++c) {
        if (chunk_part_[c] != part)
            continue;
        const std::uint64_t dead = dead_slabs(c);
        chunks += dead < shape_[part].slabs;
        // A slot that is neither free nor committed is held, waits for a reader, or is dead.
        if (s.chunks[c].pinned == 0 && s.chunks[c].there == shape_[part].pages && dead == 0)
            all.push_back(c);
    }
    std::stable_sort(all.begin(), all.end(), [&](std::uint64_t a, std::uint64_t b) {
        return s.chunks[a].newest < s.chunks[b].newest;
    });
    std::uint64_t avail = s.avail[part];
    for (const std::uint64_t c : all) {
        if (out.size() + 1 >= chunks || avail < keep + s.chunks[c].avail)
            continue;
        avail -= s.chunks[c].avail;
        out.push_back(c);
    }
    return out;
}

// The runs to take back so that a chunk of the part fits: those in a row of slabs that are
// free or a candidate's, whose hottest candidate is the coldest. Empty: there is no such row.
std::vector<Run> CacheControl::window(std::uint32_t part,
                                      const std::vector<std::uint64_t> &coldest) const {
    std::map<std::uint64_t, std::uint64_t> rank;  // of a position; 0 is for free slabs
    for (std::uint64_t i = 0; i < coldest.size(); ++i)
        rank[coldest[i]] = i + 1;
    const std::uint64_t n = shape_[part].slabs;
    const auto all = media_.owned();
    const std::vector<std::uint64_t> extents = media_.extent_slabs();
    std::vector<std::vector<std::uint64_t>> slab(extents.size());
    for (std::uint32_t e = 0; e < slab.size(); ++e) {
        slab[e].resize(extents[e]);
        slab[e][0] = UINT64_MAX;  // the superblock's
    }
    std::vector<Run> own;  // by rank
    own.resize(coldest.size() + 1);
    for (const auto &[owner, owned] : all)
        for (const Run &r : owned.runs) {
            const auto it = owner == block_.id ? rank.find(r.position) : rank.end();
            const std::uint64_t v = it == rank.end() ? UINT64_MAX : it->second;
            std::fill_n(slab[r.extent].begin() + static_cast<std::ptrdiff_t>(r.first), r.count,
                        v);
            if (it != rank.end())
                own[v] = r;
        }
    for (const auto &[extent, bad] : media_.out_of_use())
        slab[extent][bad] = UINT64_MAX;
    std::uint64_t best = UINT64_MAX;
    std::vector<std::uint64_t> ranks;
    for (const auto &s : slab)
        for (std::uint64_t first = 1; first + n <= s.size(); ++first) {
            const auto from = s.begin() + static_cast<std::ptrdiff_t>(first);
            const auto to = from + static_cast<std::ptrdiff_t>(n);
            const std::uint64_t hottest = *std::max_element(from, to);
            if (hottest < best)
                best = hottest, ranks.assign(from, to);
        }
    if (best == 0)
        ranks = {1};  // there is a row already; what is missing is quota
    std::vector<Run> out;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    for (const std::uint64_t r : ranks)
        if (r != 0)
            out.push_back(own[r]);
    return out;
}

// Makes chunks of the part out of the other's until so many slots are there or can leave.
void CacheControl::convert(std::uint32_t part, const Want &want, Survey &s) {
    const std::uint32_t other = part == kBodyPart ? kTailPart : kBodyPart;
    const Shape &shape = shape_[part];
    auto coldest = candidates(other, want[other], s);
    const std::uint64_t lack = want[part] - s.avail[part];
    const std::uint64_t need = ((lack - 1) / shape.pages + 1) * shape.slabs;
    const std::uint64_t spare = std::min(media_.free_bytes() / fmt::kDataSlab,
                                         max_slabs_ - std::min(max_slabs_, held_slabs()));
    if (coldest.size() * shape_[other].slabs + spare < need)
        no_space(want, s.pinned);
    while (s.avail[part] < want[part]) {
        const auto runs = coldest.empty() ? std::vector<Run>() : window(part, coldest);
        if (runs.empty())
            no_space(want, s.pinned);
        for (const Run &r : runs) {
            std::erase(coldest, r.position);
            if (!take_back(r, other))
                break;  // pinned this very moment
        }
        while (s.avail[part] < want[part] && grow(part))
            s.avail[part] += shape.pages;
    }
}

}  // namespace sac
