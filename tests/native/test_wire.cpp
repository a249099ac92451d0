// SPDX-License-Identifier: Apache-2.0
// Payloads put together and taken apart.
#include "check.hpp"
#include "wire.hpp"

namespace {

namespace wire = sac::wire;

TEST(what_is_written_is_read) {
    wire::Writer w;
    w.add(std::uint32_t{7}).add(std::uint64_t{9}).add("abc", 3);
    const auto bytes = w.take();
    wire::Reader r(bytes.data(), bytes.size(), "test");
    CHECK_EQ(r.get<std::uint32_t>(), 7u);
    CHECK_EQ(r.get<std::uint64_t>(), 9u);
    CHECK_THROWS(SAC_E_ARG, r.done());
    CHECK(std::memcmp(r.take(3), "abc", 3) == 0);
    r.done();
    CHECK_THROWS(SAC_E_ARG, r.get<std::uint8_t>());
}

TEST(counts_are_checked_before_they_are_multiplied) {
    const std::uint8_t bytes[64] = {};
    for (const std::uint64_t count :
         {std::uint64_t{9}, UINT64_MAX, UINT64_MAX / 8 + 1, std::uint64_t{1} << 61}) {
        wire::Reader r(bytes, sizeof bytes, "test");
        CHECK_THROWS(SAC_E_ARG, r.get<std::uint64_t>(count));
        CHECK_EQ(r.left(), sizeof bytes);
    }
    wire::Reader r(bytes, sizeof bytes, "test");
    CHECK_EQ(r.get<std::uint64_t>(std::uint64_t{8}).size(), 8u);
    CHECK(r.get<std::uint64_t>(std::uint64_t{0}).empty());
    wire::Reader none(nullptr, 0, "test");
    CHECK(none.get<std::uint32_t>(std::uint64_t{0}).empty());
    none.done();
}

TEST(names_end_with_a_zero) {
    char field[8];
    wire::set_name(field, sizeof field, "1234567", "name");
    CHECK_EQ(wire::name(field, sizeof field, "name"), std::string("1234567"));
    CHECK_THROWS(SAC_E_ARG, wire::set_name(field, sizeof field, "12345678", "name"));
    CHECK_THROWS(SAC_E_ARG,
                 wire::set_name(field, sizeof field, std::string("a\0b", 3), "name"));
    wire::set_name(field, sizeof field, "", "name");
    CHECK_EQ(wire::name(field, sizeof field, "name"), std::string());
    std::memset(field, 'x', sizeof field);
    CHECK_THROWS(SAC_E_ARG, wire::name(field, sizeof field, "name"));
}

TEST(errors_travel) {
    const auto bytes = wire::error_payload(28, 4096, "/a/file", "it is full");
    try {
        wire::throw_reply(SAC_E_NO_SPACE, bytes.data(), bytes.size());
    } catch (const sac::Error &e) {
        CHECK_EQ(e.status, SAC_E_NO_SPACE);
        CHECK_EQ(e.sys_errno, 28);
        CHECK_EQ(e.offset, 4096u);
        CHECK_EQ(e.object, std::string("/a/file"));
        CHECK_EQ(e.message, std::string("it is full"));
    }
    CHECK_THROWS(SAC_E_SYSTEM, wire::throw_reply(12345, bytes.data(), bytes.size()));
    CHECK_THROWS(SAC_E_SYSTEM, wire::throw_reply(0, bytes.data(), bytes.size()));
    for (std::size_t n = 0; n < bytes.size(); ++n)
        CHECK_THROWS(SAC_E_ARG, wire::throw_reply(SAC_E_BUSY, bytes.data(), n));
    // Longer than a field can say: cut off.
    const std::string much(100000, 'x');
    const auto cut = wire::error_payload(0, 0, much, much);
    CHECK_THROWS(SAC_E_BUSY, wire::throw_reply(SAC_E_BUSY, cut.data(), cut.size()));
}

TEST(operations_have_names) {
    CHECK_EQ(std::string(wire::op_name(wire::kCommit)), std::string("COMMIT"));
    CHECK_EQ(std::string(wire::op_name(3)), std::string("?"));
}

}  // namespace
