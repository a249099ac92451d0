// SPDX-License-Identifier: Apache-2.0
#include "roster_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <string_view>

#include "error.hpp"
#include "format.hpp"

namespace sac {
namespace {

constexpr char kMagic[8] = {'S', 'A', 'C', 'R', 'O', 'S', 'T', 0};
constexpr std::uint32_t kVersion = 1;

// A client's file, whole.
struct Record {
    char magic[8];
    std::uint32_t version, evicted;
    std::uint8_t id[16], boot[16];
    std::uint32_t pid, uid, gid, reserved;
    std::uint64_t start_time, since_ms;
    char name[64];
    std::uint8_t reserved2[28];
    std::uint32_t crc;
};
static_assert(sizeof(Record) == 176);

int nibble(char c) noexcept {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool unhex(std::string_view text, Id &out) noexcept {
    if (text.size() != 2 * out.size())
        return false;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out[i] = static_cast<std::uint8_t>(high << 4 | low);
    }
    return true;
}

bool unhex(std::string_view text, std::uint64_t &out) noexcept {
    if (text.size() != 16)
        return false;
    out = 0;
    for (const char c : text) {
        if (nibble(c) < 0)
            return false;
        out = out << 4 | static_cast<std::uint64_t>(nibble(c));
    }
    return true;
}

}  // namespace

std::string hex(const Id &id) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (const std::uint8_t byte : id)
        out += kDigits[byte >> 4], out += kDigits[byte & 15];
    return out;
}

std::string table_file(const Roster::Table &t) {
    return format("%s.%08" PRIx32 ".%s.%s.%016" PRIx64 ".%c", hex(t.client).c_str(), t.number,
                  hex(t.pool).c_str(), hex(t.space).c_str(), t.capacity,
                  t.writable ? 'w' : 'r');
}

bool parse_table(const std::string &name, Roster::Table &out) {
    std::uint64_t number = 0;
    const std::string_view v = name;
    // 32 + 8 + 32 + 32 + 16 + 1 characters and the dots between them.
    if (v.size() != 126 || !unhex(v.substr(0, 32), out.client) ||
        !unhex("00000000" + std::string(v.substr(33, 8)), number) ||
        !unhex(v.substr(42, 32), out.pool) || !unhex(v.substr(75, 32), out.space) ||
        !unhex(v.substr(108, 16), out.capacity))
        return false;
    out.number = static_cast<std::uint32_t>(number);
    out.writable = v[125] == 'w';
    return table_file(out) == name;
}

void write_client(int directory, const std::string &name, const Id &boot,
                  const Roster::Client &client, const std::string &path) {
    Record r{};
    std::memcpy(r.magic, kMagic, sizeof kMagic);
    r.version = kVersion, r.evicted = client.evicted ? 1 : 0;
    std::memcpy(r.id, client.id.data(), sizeof r.id);
    std::memcpy(r.boot, boot.data(), sizeof r.boot);
    r.pid = client.process.pid, r.start_time = client.process.start_time;
    r.uid = client.uid, r.gid = client.gid, r.since_ms = client.since_ms;
    std::memcpy(r.name, client.name.data(), std::min(client.name.size(), sizeof r.name - 1));
    r.crc = fmt::block_crc(r);
    const int fd = ::openat(directory, name.c_str(),
                            O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        throw_errno(path, "cannot make the client's record");
    const ssize_t n = ::write(fd, &r, sizeof r);
    const int number = n < 0 ? errno : ENOSPC;
    ::close(fd);
    if (n != static_cast<ssize_t>(sizeof r)) {
        ::unlinkat(directory, name.c_str(), 0);
        errno = number;
        throw_errno(path, "cannot write the client's record");
    }
}

bool read_client(int directory, const std::string &name, const Id &boot, Roster::Client &out) {
    const int fd = ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    Record r{};
    const ssize_t n = fd < 0 ? -1 : ::read(fd, &r, sizeof r);
    if (fd >= 0)
        ::close(fd);
    if (n != sizeof r || std::memcmp(r.magic, kMagic, sizeof kMagic) != 0 ||
        r.version != kVersion || r.crc != fmt::block_crc(r) ||
        std::memcmp(r.boot, boot.data(), boot.size()) != 0)
        return false;
    std::memcpy(out.id.data(), r.id, sizeof r.id);
    out.process = {r.pid, r.start_time};
    out.uid = r.uid, out.gid = r.gid, out.evicted = r.evicted != 0, out.since_ms = r.since_ms;
    out.name.assign(r.name, strnlen(r.name, sizeof r.name));
    return hex(out.id) == name;
}

}  // namespace sac
