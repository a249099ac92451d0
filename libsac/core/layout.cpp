// SPDX-License-Identifier: Apache-2.0
#include "layout.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "checksum.hpp"
#include "error.hpp"
#include "round.hpp"
#include "sha256.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kLimit = std::uint64_t{1} << 46;  // bytes of one part

[[noreturn]] void bad(const std::string &plane, const std::string &why) {
    throw Error(SAC_E_LAYOUT, plane, "layout refused: " + why);
}

bool name_ok(const char *name, std::size_t room) {
    const std::size_t n = strnlen(name, room);
    if (n == 0 || n == room)
        return false;
    return std::all_of(name, name + n, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
               c == '-';
    });
}

// Bytes after a string's end would enter the hash: clear them.
template <std::size_t N> void pad(char (&s)[N]) {
    const std::size_t n = strnlen(s, N - 1);
    std::memset(s + n, 0, N - n);
}

std::uint32_t layer_count(const sac_plane &p) {
    std::uint32_t n = 0;
    for (const std::uint64_t w : p.layers)
        n += static_cast<std::uint32_t>(std::popcount(w));
    return n;
}

void check_plane(const sac_plane &p, const std::string &name, std::uint32_t page_tokens) {
    if (layer_count(p) == 0)
        bad(name, "plane '" + name + "' has no layer");
    if (p.kind > SAC_PLANE_STATE)
        bad(name, format("plane '%s' has unknown kind %u", name.c_str(), p.kind));
    if (p.heads == 0 || p.heads > 65535)
        bad(name,
            format("plane '%s' has %u heads; 1 to 65535 are allowed", name.c_str(), p.heads));
    if (p.row_bytes == 0 || p.row_bytes > (1u << 24))
        bad(name, format("plane '%s' has rows of %u bytes; 1 to 2^24 are allowed", name.c_str(),
                         p.row_bytes));
    if (p.row_pitch < p.row_bytes || p.row_pitch > (1u << 25))
        bad(name, format("plane '%s' has a row pitch of %u bytes for rows of %u", name.c_str(),
                         p.row_pitch, p.row_bytes));
    if (p.kind == SAC_PLANE_STATE
            ? p.tokens_per_row != 1
            : p.tokens_per_row == 0 || page_tokens % p.tokens_per_row != 0)
        bad(name, format("plane '%s' has %u tokens a row, which does not divide a page of %u "
                         "tokens (state planes: 1)",
                         name.c_str(), p.tokens_per_row, page_tokens));
    if ((p.kind == SAC_PLANE_WINDOW) != (p.window_tokens != 0))
        bad(name, "plane '" + name + "': window planes, and only they, have window_tokens");
}

// Planes of one group are resolved by one selection: their rows must correspond.
void check_group(const sac_plane &a, const sac_plane &b) {
    if (a.group != b.group)
        return;
    if (a.kind != b.kind || a.heads != b.heads || a.tokens_per_row != b.tokens_per_row ||
        a.window_tokens != b.window_tokens ||
        std::memcmp(a.layers, b.layers, sizeof a.layers) != 0)
        bad(b.name, format("planes '%s' and '%s' share group %u but differ in kind, heads, "
                           "tokens a row, window or layers",
                           a.name, b.name, a.group));
}

PlaneGeometry place(const sac_plane &p, std::uint32_t page_tokens) {
    PlaneGeometry g{};
    g.part = p.kind == SAC_PLANE_ROWS ? kBodyPart : kTailPart;
    g.rows = p.kind == SAC_PLANE_STATE ? 1 : page_tokens / p.tokens_per_row;
    g.layer_count = layer_count(p);
    g.head_stride = std::uint64_t{g.rows} * p.row_pitch;
    g.layer_stride = g.head_stride * p.heads;
    std::int16_t next = 0;
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
        g.ordinal[l] = p.layers[l / 64] >> (l % 64) & 1 ? next++ : std::int16_t{-1};
    return g;
}

// Layers for people, as "0-2,6".
std::string layer_ranges(const sac_plane &p) {
    const auto has = [&](std::uint32_t l) {
        return l < SAC_MAX_LAYERS && (p.layers[l / 64] >> (l % 64) & 1) != 0;
    };
    std::string out;
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l) {
        if (!has(l))
            continue;
        const std::uint32_t first = l;
        while (has(l + 1))
            ++l;
        out += format(l == first ? "%s%u" : "%s%u-%u", out.empty() ? "" : ",", first, l);
    }
    return out;
}

}  // namespace

Geometry::Geometry(const sac_layout &layout) : page_tokens(layout.page_tokens) {
    if (layout.struct_size != sizeof(sac_layout))
        throw Error(SAC_E_ARG, "layout",
                    format("layout refused: struct_size is %u, this library has %zu",
                           layout.struct_size, sizeof(sac_layout)));
    if (page_tokens == 0 || page_tokens > 65536)
        bad("layout", format("a page of %u tokens; 1 to 65536 are allowed", page_tokens));
    if (layout.plane_count == 0 || layout.plane_count > SAC_MAX_PLANES || !layout.planes)
        bad("layout",
            format("%u planes; 1 to %d are allowed", layout.plane_count, SAC_MAX_PLANES));
    planes.assign(layout.planes, layout.planes + layout.plane_count);
    for (std::size_t i = 0; i < planes.size(); ++i) {
        sac_plane &p = planes[i];
        const std::string name(p.name, strnlen(p.name, sizeof p.name));
        if (!name_ok(p.name, sizeof p.name))
            bad(name, format("plane %zu has no valid name: 1 to 31 of a-z 0-9 _ . -", i));
        pad(p.name), pad(p.dtype);
        if (p.row_pitch == 0)
            p.row_pitch = p.row_bytes;
        check_plane(p, name, page_tokens);
        for (std::size_t j = 0; j < i; ++j) {
            if (std::strcmp(planes[j].name, p.name) == 0)
                bad(name, "two planes are named '" + name + "'");
            check_group(planes[j], p);
        }
        PlaneGeometry g = place(p, page_tokens);
        std::uint64_t &part = part_bytes[g.part];
        g.offset = round_up(part, 64);
        if (g.layer_stride > kLimit || g.layer_stride * g.layer_count + g.offset > kLimit)
            bad(name, "a page of more than 2^46 bytes");
        part = g.layer_stride * g.layer_count + g.offset;
        g.first_pair = pairs[g.part];
        pairs[g.part] += g.layer_count;
        if (g.part == kTailPart) {
            const std::uint32_t last =
                p.kind == SAC_PLANE_STATE ? 1 : (p.window_tokens - 1) / page_tokens + 1;
            tail_pages = std::max(tail_pages, last);
        }
        at.push_back(g);
    }
    if (part_bytes[kBodyPart] == 0)
        bad("layout", "no plane of kind rows");
    for (std::uint64_t &b : part_bytes)
        b = round_up(b, b >= 65536 ? 4096 : 64);

    Sha256 sha;
    const char tag[] = "sac.layout";
    const std::uint32_t head[2] = {page_tokens, layout.plane_count};
    sha.update(tag, sizeof tag);
    sha.update(head, sizeof head);
    sha.update(planes.data(), planes.size() * sizeof(sac_plane));
    hash = sha.finish();
}

std::uint64_t Geometry::offset(std::uint32_t plane, std::uint32_t layer) const {
    if (plane >= planes.size())
        throw Error(SAC_E_RANGE, "plane",
                    format("there is no plane %u; the layout has %zu", plane, planes.size()));
    if (layer >= SAC_MAX_LAYERS || at[plane].ordinal[layer] < 0)
        throw Error(SAC_E_RANGE, planes[plane].name,
                    format("plane '%s' has no layer %u", planes[plane].name, layer));
    return at[plane].offset +
           static_cast<std::uint64_t>(at[plane].ordinal[layer]) * at[plane].layer_stride;
}

std::uint32_t Geometry::pair(std::uint32_t plane, std::uint32_t layer) const noexcept {
    return at[plane].first_pair + static_cast<std::uint32_t>(at[plane].ordinal[layer]);
}

std::uint32_t Geometry::crc(std::uint32_t part, const std::uint8_t *page) const noexcept {
    std::uint32_t crc = 0;
    for (std::size_t i = 0; i < planes.size(); ++i) {
        const PlaneGeometry &g = at[i];
        if (g.part != part)
            continue;
        const std::uint64_t rows = std::uint64_t{g.layer_count} * planes[i].heads * g.rows;
        if (planes[i].row_pitch == planes[i].row_bytes) {
            crc = crc32c(crc, page + g.offset, rows * planes[i].row_bytes);
            continue;
        }
        for (std::uint64_t r = 0; r < rows; ++r)
            crc = crc32c(crc, page + g.offset + r * planes[i].row_pitch, planes[i].row_bytes);
    }
    return crc;
}

std::string Geometry::difference(const Geometry &other) const {
    if (hash == other.hash)
        return {};
    std::string out;
    if (page_tokens != other.page_tokens)
        out += format("page_tokens %u and %u; ", page_tokens, other.page_tokens);
    const auto find = [](const Geometry &g, const char *name) {
        return std::find_if(g.planes.begin(), g.planes.end(),
                            [&](const sac_plane &p) { return std::strcmp(p.name, name) == 0; });
    };
    for (const sac_plane &p : planes) {
        const auto q = find(other, p.name);
        if (q == other.planes.end()) {
            out += format("plane '%s' only in the first; ", p.name);
            continue;
        }
        const auto field = [&](const char *what, std::uint32_t a, std::uint32_t b) {
            if (a != b)
                out += format("plane '%s': %s %u and %u; ", p.name, what, a, b);
        };
        field("kind", p.kind, q->kind), field("group", p.group, q->group);
        field("heads", p.heads, q->heads),
            field("tokens_per_row", p.tokens_per_row, q->tokens_per_row);
        field("row_bytes", p.row_bytes, q->row_bytes);
        // Without gaps between rows in either, row_bytes says it all.
        if (p.row_pitch != p.row_bytes || q->row_pitch != q->row_bytes)
            field("row_pitch", p.row_pitch, q->row_pitch);
        field("window_tokens", p.window_tokens, q->window_tokens);
        if (std::memcmp(p.layers, q->layers, sizeof p.layers) != 0)
            out += format("plane '%s': layers %s and %s; ", p.name, layer_ranges(p).c_str(),
                          layer_ranges(*q).c_str());
        if (std::strcmp(p.dtype, q->dtype) != 0)
            out += format("plane '%s': dtype '%s' and '%s'; ", p.name, p.dtype, q->dtype);
    }
    for (const sac_plane &q : other.planes)
        if (find(*this, q.name) == planes.end())
            out += format("plane '%s' only in the second; ", q.name);
    if (out.empty())
        out = "the order of the planes; ";
    out.resize(out.size() - 2);
    return out;
}

}  // namespace sac
