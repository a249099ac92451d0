// SPDX-License-Identifier: Apache-2.0
// The CRC instruction takes 3 cycles but a new one can start every cycle, so the hardware
// path runs three streams side by side over three equal pieces of the input and joins
// their results: crc(A B) = crc(A) * x^(8 |B|) + crc(B), modulo the polynomial.
#include "checksum.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace sac {

namespace {

constexpr std::uint32_t kPoly = 0x82f63b78;  // 0x1edc6f41 with its bits reflected

constexpr std::uint32_t times_x(std::uint32_t v) noexcept {
    return (v >> 1) ^ ((v & 1) != 0 ? kPoly : 0);
}

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// kTables[k][b]: the CRC of byte b followed by k zero bytes.
constexpr Tables make_tables() noexcept {
    Tables t{};
    for (std::uint32_t b = 0; b < 256; ++b) {
        std::uint32_t v = b;
        for (int bit = 0; bit < 8; ++bit) {
            v = times_x(v);
        }
        t[0][b] = v;
    }
    for (std::size_t k = 1; k < 8; ++k) {
        for (std::size_t b = 0; b < 256; ++b) {
            t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xff];
        }
    }
    return t;
}

constexpr Tables kTables = make_tables();

// All of these work on the inverted register, crc32c() inverts before and after.
std::uint32_t by_table(std::uint32_t crc, const std::uint8_t *p, std::size_t n) noexcept {
    if constexpr (std::endian::native == std::endian::little) {
        for (; n >= 8; p += 8, n -= 8) {
            std::uint64_t word;
            std::memcpy(&word, p, 8);
            word ^= crc;
            crc = 0;
            for (std::size_t k = 0; k < 8; ++k) {
                crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
            }
        }
    }
    for (; n > 0; ++p, --n) {
        crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
    }
    return crc;
}

[[maybe_unused]] inline std::uint64_t load64(const std::uint8_t *p) noexcept {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
}

#if defined(__x86_64__)

// Words (8 bytes) of one of the three streams at most; longer inputs go round again.
constexpr std::size_t kStreamWords = 256;
// Below this a single stream is quicker than three and their joining.
constexpr std::size_t kThreeStreamBytes = 96;

// kShift[w]: x^(64 w - 33) mod P. A carry-less product with it, put through the CRC
// instruction (which multiplies by x^32; reflection of the product adds one x more),
// moves a CRC past w words.
constexpr auto kShift = [] {
    std::array<std::uint32_t, 2 * kStreamWords + 1> t{};
    std::uint32_t v = 1;  // x^31, for w = 1
    for (std::size_t w = 1; w < t.size(); ++w) {
        t[w] = v;
        for (int bit = 0; bit < 64; ++bit) {
            v = times_x(v);
        }
    }
    return t;
}();

[[gnu::target("sse4.2,pclmul")]] inline std::uint64_t moved(std::uint64_t crc,
                                                            std::size_t words) noexcept {
    const __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                             _mm_cvtsi64_si128(static_cast<long long>(kShift[words])), 0);
    return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

[[gnu::target("sse4.2,pclmul")]] std::uint32_t
by_sse42(std::uint32_t crc, const std::uint8_t *p, std::size_t n) noexcept {
    std::uint64_t a = crc;
    while (n >= kThreeStreamBytes) {
        const std::size_t third = n / 24;
        const std::size_t words = third < kStreamWords ? third : kStreamWords;
        const std::uint8_t *q = p + 8 * words, *r = q + 8 * words;
        std::uint64_t b = 0, c = 0;
        for (std::size_t i = 0; i < 8 * words; i += 8) {
            a = _mm_crc32_u64(a, load64(p + i));
            b = _mm_crc32_u64(b, load64(q + i));
            c = _mm_crc32_u64(c, load64(r + i));
        }
        a = moved(a, 2 * words) ^ moved(b, words) ^ c;
        p += 24 * words;
        n -= 24 * words;
    }
    for (; n >= 8; p += 8, n -= 8) {
        a = _mm_crc32_u64(a, load64(p));
    }
    auto v = static_cast<std::uint32_t>(a);
    if ((n & 4) != 0) {
        std::uint32_t word;
        std::memcpy(&word, p, 4);
        v = _mm_crc32_u32(v, word);
        p += 4;
    }
    if ((n & 2) != 0) {
        std::uint16_t word;
        std::memcpy(&word, p, 2);
        v = _mm_crc32_u16(v, word);
        p += 2;
    }
    return (n & 1) != 0 ? _mm_crc32_u8(v, *p) : v;
}

#elif defined(__aarch64__) && defined(__linux__)

// One stream: the instruction is in every ARMv8.1 core, the compiler's baseline is 8.0.
std::uint32_t by_arm(std::uint32_t crc, const std::uint8_t *p, std::size_t n) noexcept {
    for (; n >= 8; p += 8, n -= 8) {
        asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(load64(p)));
    }
    for (; n > 0; ++p, --n) {
        const std::uint32_t byte = *p;
        asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    }
    return crc;
}

#endif

using Update = std::uint32_t (*)(std::uint32_t, const std::uint8_t *, std::size_t) noexcept;

std::uint32_t choose(std::uint32_t crc, const std::uint8_t *p, std::size_t n) noexcept;

// Starts as choose(), which replaces itself; so it works in static constructors too.
constinit std::atomic<Update> update{choose};

std::uint32_t choose(std::uint32_t crc, const std::uint8_t *p, std::size_t n) noexcept {
    Update best = by_table;
    const char *isa = std::getenv("SAC_ISA");  // as for copy_rows()
    [[maybe_unused]] const bool plain = isa != nullptr && std::strcmp(isa, "generic") == 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!plain && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        best = by_sse42;
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (!plain && (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) {
        best = by_arm;
    }
#endif
    update.store(best, std::memory_order_relaxed);
    return best(crc, p, n);
}

}  // namespace

std::uint32_t crc32c(std::uint32_t crc, const void *data, std::size_t bytes) noexcept {
    if (bytes == 0) {
        return crc;
    }
    const auto *p = static_cast<const std::uint8_t *>(data);
    return ~update.load(std::memory_order_relaxed)(~crc, p, bytes);
}

}  // namespace sac
