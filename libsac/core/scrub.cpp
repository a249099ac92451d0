// SPDX-License-Identifier: Apache-2.0
#include "scrub.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "error.hpp"
#include "mapping.hpp"
#include "open_fds.hpp"
#include "threads.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kPart = std::uint64_t{2} << 20, kPiece = std::uint64_t{64} << 20;

// Whether a file has nothing there but a hole, which is zeros and is to stay a hole.
bool hole(const Extent &e, std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (e.device())
        return false;
    const auto end = static_cast<off_t>(offset + bytes);
    const off_t data = ::lseek(e.fd.get(), static_cast<off_t>(offset), SEEK_DATA);
    if (data >= 0)
        return data >= end;
    // Nothing behind it, or it was cut short: then the touch says so.
    struct stat st;
    return errno == ENXIO && ::fstat(e.fd.get(), &st) == 0 && st.st_size >= end;
}

// Calls fn(offset, bytes) for the parts of [0, bytes).
template <class Fn> void in_parts(std::uint64_t bytes, Fn &&fn) noexcept {
    parallel_for(copy_threads(0, bytes), (bytes + kPart - 1) / kPart,
                 [&](std::size_t i) { fn(i * kPart, std::min(kPart, bytes - i * kPart)); });
}

}  // namespace

void stream_zeros(std::uint8_t *to, std::size_t bytes) noexcept {
#if defined(__x86_64__)
    const std::size_t head =
        std::min<std::size_t>(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
    std::memset(to, 0, head);
    to += head, bytes -= head;
    const __m128i zero = _mm_setzero_si128();
    for (; bytes >= 64; to += 64, bytes -= 64)
        for (std::size_t i = 0; i < 64; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i *>(to + i), zero);
    std::memset(to, 0, bytes);
    _mm_sfence();
#else
    std::memset(to, 0, bytes);
#endif
}

void zero_all(std::uint8_t *to, std::size_t bytes) noexcept {
    in_parts(bytes, [&](std::uint64_t at, std::uint64_t n) { stream_zeros(to + at, n); });
}

void scrub(const sac_extent_fd &given, std::uint64_t offset, std::uint64_t bytes,
           const std::function<bool(std::uint64_t)> &go_on) {
    std::vector<Extent> one;
    one.push_back(take_extent(given));
    const std::uint64_t size = one.front().bytes;
    const std::string name = one.front().name;
    if (offset > size || bytes > size - offset)
        throw Error(SAC_E_RANGE, name,
                    format("%s has %" PRIu64 " bytes; %" PRIu64 " from %" PRIu64
                           " on are not all there",
                           name.c_str(), size, bytes, offset));
    const Mapping mapping(std::move(one));
    const Extent &e = mapping.extents().front();
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t at = offset + done, n = std::min(kPiece, bytes - done);
        in_parts(n, [&](std::uint64_t in, std::uint64_t count) {
            if (!hole(e, at + in, count))
                stream_zeros(mapping.data() + at + in, count);
        });
        // What died took zeros that are this process' own.
        mapping.check_alive(at, n);
        done += n;
        if (!go_on(done) && done < bytes)
            throw Error(SAC_E_INCOMPLETE, name,
                        format("%s: stopped after %" PRIu64 " of %" PRIu64
                               " bytes were cleared; begin again to clear the rest",
                               name.c_str(), done, bytes));
    }
}

}  // namespace sac
