// SPDX-License-Identifier: Apache-2.0
// Hot buffers as a C engine has them: sac_hot_* of sac_gpu.h on the fake driver.
#include <functional>
#include <string>

#include "check.hpp"
#include "hot_kit.hpp"

using namespace hot_kit;

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

struct World {
    GpuHandle gpu = move_kit::gpu();
    kit::PoolHandle pool = kit::pool(64 * kit::kMiB);
    kit::NsHandle ns = kit::space(pool, "ns", kit::plain(kRows, kBytes));
    std::vector<std::uint8_t> keys = kit::keys(0, 8);
    kit::PrefixHandle prefix;
    World() {
        kit::put(ns, keys);
        prefix = kit::pin(ns, keys);
    }
};

// The status is the one wanted, and the message has each of these words in it.
void refused(sac_status status, int got, std::initializer_list<const char *> words) {
    CHECK_EQ(got, as_int(status));
    const std::string message = sac_last_error()->message;
    for (const char *const word : words)
        if (!gpu_kit::says(message, word))
            check::fail(__FILE__, __LINE__, '\'' + message + "' has no '" + word + '\'');
}

}  // namespace

TEST(a_request_from_bind_to_release) {
    World w;
    const long before = gpu_kit::get("allocated_bytes");
    HotHandle hot = hot_kit::hot(w.gpu, w.ns, Options(2, 32, 16));
    sac_hot_info info;
    MUST(sac_hot_get_info(hot.get(), &info));
    CHECK_EQ(info.requests, 2u);
    CHECK_EQ(info.slots, 32u);
    CHECK_EQ(info.top_k, 16u);
    CHECK_EQ(info.block, 1u);
    CHECK_EQ(info.max_tokens, 1024u);
    CHECK_EQ(info.memory_bytes, info.rows_bytes + info.state_bytes + info.table_bytes);
    CHECK_EQ(gpu_kit::get("allocated_bytes") - before, static_cast<long>(info.memory_bytes));
    sac_hot_plane plane;
    MUST(sac_hot_get_plane(hot.get(), 0, 0, &plane));
    CHECK_EQ(plane.lanes, 2u);
    CHECK_EQ(plane.row_bytes, kBytes);

    MUST(sac_hot_bind(hot.get(), 1, w.prefix.get(), 0, 0));
    const Ints units{5, -1, 100, 5, 127, 128, -2};
    const Ints at = resolve(hot, {1}, units);
    for (const std::size_t i : {0u, 2u, 3u, 4u}) {
        CHECK(at[i] >= 32 && at[i] < 64);  // lane 1
        CHECK(there(hot, w.keys, units[i], at[i]));
    }
    CHECK_EQ(at[0], at[3]);
    CHECK(at[1] == -1 && at[5] == -1 && at[6] == -1);
    sac_hot_stats s = stats(hot);
    CHECK_EQ(s.misses, 3u);
    CHECK_EQ(s.hits, 0u);
    CHECK_EQ(s.kept, 3u);
    CHECK_EQ(s.bytes, std::uint64_t{3} * kBytes);
    CHECK(errors(hot, 2) == (std::vector<std::uint32_t>{0, SAC_HOT_E_RANGE, 0}));
    resolve(hot, {1}, {5, 100});
    CHECK_EQ(stats(hot).hits, 2u);

    MUST(sac_hot_release(hot.get(), 1, 0));
    CHECK_EQ(resolve(hot, {1}, {5})[0], -1);
    CHECK_EQ(resolve(hot, {2}, {5})[0], -1);
    CHECK(errors(hot, 2) == (std::vector<std::uint32_t>{0, SAC_HOT_E_RANGE | SAC_HOT_E_UNBOUND,
                                                        SAC_HOT_E_UNBOUND}));
    refused(SAC_E_ARG, sac_hot_release(hot.get(), 1, 0), {"request 1 is not bound"});
    hot.reset();
    CHECK_EQ(gpu_kit::get("allocated_bytes"), before);
}

TEST(what_open_refuses_and_says) {
    World w;
    const auto wrong = [&](const std::function<void(Options &)> &make,
                           std::initializer_list<const char *> words,
                           sac_status status = SAC_E_ARG) {
        Options o(2, 64, 32);
        make(o);
        sac_hot *out = nullptr;
        refused(status, sac_hot_open(w.gpu.get(), w.ns.get(), &o, &out), words);
        CHECK(out == nullptr);
        if (status != SAC_E_GPU)  // seen without a GPU, in the same words
            refused(status, sac_hot_check(w.ns.get(), &o), words);
    };
    wrong([](Options &o) { o.slots = 20000; }, {"slots is 20000", "8192"});
    wrong([](Options &o) { o.slots = 8193; }, {"slots is 8193", "8192", "larger blocks"});
    wrong([](Options &o) { o.slots = 0; }, {"slots is 0"});
    wrong([](Options &o) { o.top_k = 65; }, {"top_k is 65", "64 slots", "smaller top_k"});
    wrong([](Options &o) { o.top_k = 0; }, {"top_k is 0"});
    wrong([](Options &o) { o.requests = 0; }, {"requests is 0"});
    wrong([](Options &o) { o.requests = 65536; }, {"requests is 65536", "65535"});
    wrong([](Options &o) { o.block = 129; }, {"block is 129", "128"});
    wrong([](Options &o) { o.block = 3; }, {"block is 3", "16 rows", "divisor"});
    wrong([](Options &o) { o.policy = 5; }, {"policy 5"});
    wrong([](Options &o) { o.max_tokens = std::uint64_t{1} << 31; },
          {"max_tokens is 2147483648"});
    wrong([](Options &o) { o.flags = 4; }, {"flags 0x4"});
    wrong([](Options &o) { o.struct_size = 8; }, {"struct_size is 8"});
    wrong([](Options &o) { o.group_count = 1; }, {"options.groups is NULL"});
    wrong([](Options &o) { o.share_count = 1; }, {"options.share is NULL"});
    wrong([](Options &o) { o.requests = 60000, o.slots = 8192; }, {"no room for"}, SAC_E_GPU);
    const std::uint32_t group = 9;
    wrong([&](Options &o) { o.groups = &group, o.group_count = 1; }, {"no group 9"},
          SAC_E_NOT_FOUND);
    const sac_hot_share share{1, 0};
    wrong([&](Options &o) { o.share = &share, o.share_count = 1; }, {"layer 1"});
    // The largest that goes, too.
    Options most(1, 8192, 16);
    most.max_tokens = 128;
    MUST(sac_hot_check(w.ns.get(), &most));
    CHECK(hot_kit::hot(w.gpu, w.ns, most) != nullptr);
}

TEST(what_a_step_refuses_and_says) {
    World w;
    const HotHandle hot = hot_kit::hot(w.gpu, w.ns, Options(2, 64, 4));
    MUST(sac_hot_bind(hot.get(), 0, w.prefix.get(), SAC_HOT_NO_BYPASS, 0));
    const Ints one{0}, some{1, 2}, out(2);
    const auto wrong = [&](const std::function<void(sac_hot_call &)> &make,
                           std::initializer_list<const char *> words,
                           sac_status status = SAC_E_ARG) {
        sac_hot_call c = call(one, some, out);
        make(c);
        refused(status, sac_hot_resolve(hot.get(), &c), words);
    };
    wrong([](sac_hot_call &c) { c.struct_size = 0; }, {"struct_size"});
    wrong([](sac_hot_call &c) { c.flags = 2; }, {"flags 0x2"});
    wrong([](sac_hot_call &c) { c.group = 1; }, {"group 1"}, SAC_E_RANGE);
    wrong([](sac_hot_call &c) { c.layer = 1; }, {"no layer 1"}, SAC_E_RANGE);
    wrong([](sac_hot_call &c) { c.layer = UINT32_MAX; }, {"no layer"}, SAC_E_RANGE);
    wrong([](sac_hot_call &c) { c.batch = 3; }, {"batch of 3", "2 requests"});
    wrong([](sac_hot_call &c) { c.top_k = 5; }, {"selection of 5", "top_k 4"});
    wrong([](sac_hot_call &c) { c.blocks = 65536; }, {"65536 thread blocks", "65535"});
    wrong([](sac_hot_call &c) { c.requests = 0; }, {"requests are NULL"});
    wrong([](sac_hot_call &c) { c.selection = 0; }, {"selection is NULL"});
    wrong([](sac_hot_call &c) { c.out = 0; }, {"out is NULL"});
    wrong([&](sac_hot_call &c) { c.scores = c.out; }, {"lru_score only"});
    sac_hot_call c = call(one, some, out);
    refused(SAC_E_ARG, sac_hot_replay(hot.get(), &c), {"follows no other"});
    c.batch = 0;
    MUST(sac_hot_resolve(hot.get(), &c));  // nothing to do
    c = call(one, some, out);
    c.blocks = 65535;
    MUST(sac_hot_resolve(hot.get(), &c));
    CHECK_EQ(stats(hot).misses, 2u);

    refused(SAC_E_RANGE, sac_hot_bind(hot.get(), 2, w.prefix.get(), 0, 0), {"requests 0 to 1"});
    refused(SAC_E_BUSY, sac_hot_bind(hot.get(), 0, w.prefix.get(), 0, 0), {"release it"});
    refused(SAC_E_ARG, sac_hot_bind(hot.get(), 1, w.prefix.get(), 2, 0), {"flags 0x2"});
    refused(SAC_E_ARG, sac_hot_bind(hot.get(), 1, nullptr, 0, 0), {"prefix is NULL"});
    const std::uint32_t bad[] = {0, 1};
    refused(SAC_E_ARG, sac_hot_extend(hot.get(), bad, 2, 0), {"request 1 is not bound"});
    refused(SAC_E_ARG, sac_hot_extend(hot.get(), nullptr, 2, 0), {"NULL"});
    refused(SAC_E_ARG, sac_hot_truncate(hot.get(), 0, 5, 0), {"is a prefix"});
    refused(SAC_E_ARG, sac_hot_written(hot.get(), bad, 1, 0), {"is a prefix"});
    refused(SAC_E_RANGE, sac_hot_truncate(hot.get(), 7, 5, 0), {"request 7"});
    sac_hot_plane plane;
    refused(SAC_E_RANGE, sac_hot_get_plane(hot.get(), 1, 0, &plane), {"plane 1"});
    refused(SAC_E_RANGE, sac_hot_get_plane(hot.get(), 0, 5, &plane), {"no layer 5"});
    {
        const gpu_kit::Turned capturing("capturing", 1);
        refused(SAC_E_ARG, sac_hot_release(hot.get(), 0, 0), {"captured", "between replays"});
        refused(SAC_E_ARG, sac_hot_refresh(hot.get(), 0, nullptr), {"captured"});
    }
    CHECK(there(hot, w.keys, 1, resolve(hot, {0}, {1})[0]));
}

TEST(appended_rows_reach_page_and_slot) {
    World w;
    const HotHandle hot = hot_kit::hot(w.gpu, w.ns, Options(1, 64, 4));
    sac_seq *raw = nullptr;
    MUST(sac_seq_open(w.ns.get(), nullptr, 0, "s", 1, &raw));
    const kit::SeqHandle seq(raw);
    std::vector<std::uint32_t> tokens(40, 3);
    MUST(sac_seq_extend(seq.get(), tokens.data(), 3, 0));
    const sac_prefix *const view = sac_seq_view(seq.get());
    MUST(sac_hot_bind(hot.get(), 0, view, 0, 0));

    const Ints one{0}, first{1};
    std::vector<std::uint8_t> rows(2 * kBytes, 9);
    sac_hot_rows source{0, 0, address(rows), 0, kBytes, 0};
    sac_hot_call c = call(one);
    const auto append = [&](std::uint32_t count, std::uint32_t planes = 1) {
        return sac_hot_append(hot.get(), &c, address(first), count, &source, planes);
    };
    refused(SAC_E_ARG, append(17), {"17 new rows", "16", "several"});
    refused(SAC_E_ARG, append(2, 0), {"plane 'kv' are missing"});
    refused(SAC_E_ARG, append(2, 5), {"5 planes", "4 at most"});
    source.plane = 1;
    refused(SAC_E_ARG, append(2), {"are missing"});
    source.plane = 0, source.rows = 0;
    refused(SAC_E_ARG, append(2), {"NULL"});
    source.rows = address(rows) + 1;
    refused(SAC_E_ARG, append(2), {"multiples of 16"});
    source.rows = address(rows);
    c.batch = 2;
    refused(SAC_E_ARG, append(2), {"batch of 2"});
    c.batch = 1;
    MUST(append(2));  // rows 1 and 2
    const Ints at = resolve(hot, {0}, {1, 2});
    sac_hot_plane plane;
    MUST(sac_hot_get_plane(hot.get(), 0, 0, &plane));
    for (const std::int32_t slot : at) {
        CHECK(slot >= 0);
        const auto *const row = reinterpret_cast<const std::uint8_t *>(
            plane.rows + static_cast<std::uint64_t>(slot) * plane.slot_pitch);
        CHECK(row[0] == 9 && row[kBytes - 1] == 9);
    }
    CHECK_EQ(stats(hot).appended, 2u);
    // The sequence hears of it by written(), and its page is whole with row 0.
    const std::uint32_t request = 0;
    MUST(sac_hot_written(hot.get(), &request, 1, 0));
    refused(SAC_E_RANGE, sac_hot_truncate(hot.get(), 0, 4, 0), {"cannot be cut to 4"});
    MUST(sac_hot_truncate(hot.get(), 0, 2, 0));
    CHECK_EQ(resolve(hot, {0}, {2})[0], -1);
    CHECK(errors(hot, 1) == (std::vector<std::uint32_t>{SAC_HOT_E_RANGE, 0}));
}

TEST(closed_handles_and_none) {
    World w;
    sac_hot *const none = nullptr;
    sac_hot_info info;
    sac_hot_plane plane;
    sac_hot_stats s;
    const std::uint32_t zero = 0;
    const Ints one{0};
    const sac_hot_call c = call(one, one, one);
    for (const int got :
         {sac_hot_get_info(none, &info), sac_hot_get_plane(none, 0, 0, &plane),
          sac_hot_bind(none, 0, w.prefix.get(), 0, 0), sac_hot_extend(none, &zero, 1, 0),
          sac_hot_truncate(none, 0, 0, 0), sac_hot_written(none, &zero, 1, 0),
          sac_hot_release(none, 0, 0), sac_hot_refresh(none, 0, nullptr),
          sac_hot_resolve(none, &c), sac_hot_prefetch(none, &c), sac_hot_replay(none, &c),
          sac_hot_append(none, &c, 0, 1, nullptr, 0), sac_hot_get_stats(none, &s, nullptr)})
        CHECK_EQ(got, as_int(SAC_E_ARG));
    MUST(sac_hot_close(none));
    Options o(1, 8, 4);
    sac_hot *out = nullptr;
    for (const int got : {sac_hot_open(nullptr, w.ns.get(), &o, &out),
                          sac_hot_open(w.gpu.get(), nullptr, &o, &out),
                          sac_hot_open(w.gpu.get(), w.ns.get(), nullptr, &out),
                          sac_hot_open(w.gpu.get(), w.ns.get(), &o, nullptr),
                          sac_hot_check(nullptr, &o), sac_hot_check(w.ns.get(), nullptr)})
        CHECK_EQ(got, as_int(SAC_E_ARG));
    MUST(sac_pool_close(w.pool.release()));
    refused(SAC_E_CLOSED, sac_hot_check(w.ns.get(), &o), {"closed"});
    refused(SAC_E_CLOSED, sac_hot_open(w.gpu.get(), w.ns.get(), &o, &out), {"closed"});
}

// Whatever is closed first, nothing is left: neither pins nor memory.
TEST(handles_may_go_in_any_order) {
    const long before = gpu_kit::get("allocated_bytes");
    const long registered = gpu_kit::get("registered_bytes");
    for (int order = 0; order < 6; ++order) {
        World w;
        HotHandle hot = hot_kit::hot(w.gpu, w.ns, Options(2, 64, 4));
        MUST(sac_hot_bind(hot.get(), 0, w.prefix.get(), 0, 0));
        const std::array<std::function<void()>, 3> ends{[&] { w.prefix.reset(); },
                                                        [&] { w.ns.reset(), w.pool.reset(); },
                                                        [&] { w.gpu.reset(); }};
        const std::size_t first = static_cast<std::size_t>(order) / 2;
        ends[first]();
        CHECK(there(hot, w.keys, 77, resolve(hot, {0}, {77})[0]));
        ends[(first + 1 + static_cast<std::size_t>(order) % 2) % 3]();
        CHECK(there(hot, w.keys, 3, resolve(hot, {0}, {3})[0]));
        ends[(first + 2 - static_cast<std::size_t>(order) % 2) % 3]();
        CHECK(there(hot, w.keys, 9, resolve(hot, {0}, {9})[0]));
    }
    CHECK_EQ(gpu_kit::get("allocated_bytes"), before);
    CHECK_EQ(gpu_kit::get("registered_bytes"), registered);
}

TEST(a_forked_child_gets_errors) {
    World w;
    HotHandle hot = hot_kit::hot(w.gpu, w.ns, Options(1, 64, 4));
    MUST(sac_hot_bind(hot.get(), 0, w.prefix.get(), 0, 0));
    CHECK_EQ(kit::in_child([&] {
                 const Ints one{0}, out{0};
                 const sac_hot_call c = call(one, one, out);
                 sac_hot_stats s;
                 CHECK_EQ(sac_hot_resolve(hot.get(), &c), as_int(SAC_E_FORKED));
                 CHECK_EQ(sac_hot_get_stats(hot.get(), &s, nullptr), as_int(SAC_E_FORKED));
                 CHECK_EQ(sac_hot_release(hot.get(), 0, 0), as_int(SAC_E_FORKED));
                 CHECK_EQ(sac_hot_refresh(hot.get(), 0, nullptr), as_int(SAC_E_FORKED));
                 hot.reset();  // does no harm
             }),
             0);
    CHECK(there(hot, w.keys, 3, resolve(hot, {0}, {3})[0]));
}
