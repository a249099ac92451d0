// SPDX-License-Identifier: Apache-2.0
// Devices, contexts, modules, launches, memory, streams and events, on the fake driver.
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "args.h"
#include "check.hpp"
#include "gpu/memory.hpp"
#include "gpu/module.hpp"
#include "gpu/stream.hpp"
#include "gpu_kit.hpp"
#include "sac_gpu.h"

using namespace sac::gpu;

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

KernelSpec gather_spec() {
    KernelSpec spec{"gather.cu", {}, ""};
    spec.define("SAC_THREADS", 128).define("SAC_PAGE_UNITS", 4).define("SAC_BLOCK", 1);
    spec.define("SAC_ROW_BYTES_0", 16).define("SAC_UNIT_BYTES_0", 16);
    return spec.define("SAC_POOL_PITCH_0", 32)
        .define("SAC_SLOT_PITCH_0", 16)
        .define("SAC_ACCESS_0", 16);
}

}  // namespace

TEST(what_the_gpu_is) {
    gpu_kit::use_fake();
    sac_gpu *gpu = nullptr;
    CHECK_EQ(sac_gpu_open(0, &gpu), as_int(SAC_OK));
    sac_gpu_info i;
    CHECK_EQ(sac_gpu_get_info(gpu, &i), as_int(SAC_OK));
    CHECK_EQ(std::string(i.name), "Fake GPU 0");
    CHECK_EQ(std::string(i.pci), "ffff:00:00.0");
    CHECK_EQ(i.major * 10 + i.minor, 90);
    CHECK_EQ(i.numa_node, -1);
    CHECK_EQ(i.driver_version, 13000);
    CHECK_EQ(i.can_register, 1u);
    CHECK_EQ(i.memory_bytes, std::uint64_t{1} << 30);
    CHECK_EQ(i.free_bytes, std::uint64_t{1} << 30);
    CHECK_EQ(sac_gpu_close(gpu), as_int(SAC_OK));
}

TEST(one_context_a_gpu_given_back_with_the_last_user) {
    CHECK_EQ(gpu_kit::get("contexts"), 0);
    {
        const auto a = gpu_kit::device(), b = gpu_kit::device();
        CHECK(a == b);
        CHECK_EQ(gpu_kit::get("contexts"), 1);
    }
    CHECK_EQ(gpu_kit::get("contexts"), 0);
}

TEST(the_context_is_current_where_it_is_needed_only) {
    const auto device = gpu_kit::device();
    const auto &driver = device->driver();
    Context now = nullptr;
    CHECK_EQ(driver.context_current(&now), 0);
    CHECK(now == nullptr);
    {
        const Current a(*device);
        const Current again(*device);
        CHECK_EQ(driver.context_current(&now), 0);
        CHECK(now == device->context());
        std::thread([&] {
            CHECK_EQ(driver.context_current(&now), 0);
            CHECK(now == nullptr);
        }).join();
    }
    CHECK_EQ(driver.context_current(&now), 0);
    CHECK(now == nullptr);
}

TEST(a_failed_call_has_the_drivers_number_and_words) {
    const auto device = gpu_kit::device();
    try {
        device->driver().check(700, "a thing", "cannot do it", "Do this.");
        CHECK(false);
    } catch (const sac::Error &e) {
        CHECK_EQ(e.sys_errno, 700);
        CHECK_EQ(e.message, "a thing: cannot do it: CUDA_ERROR_ILLEGAL_ADDRESS, as the fake "
                            "driver was told. Do this.");
    }
    CHECK_EQ(device->driver().text(99999), "CUDA error 99999");
}

TEST(memory_of_the_gpu) {
    const auto device = gpu_kit::device();
    std::array<std::uint8_t, 64> in{}, out{};
    for (std::size_t i = 0; i < in.size(); ++i)
        in[i] = static_cast<std::uint8_t>(i);
    {
        DeviceBuffer a(device, 1024, "rows");
        CHECK_EQ(gpu_kit::get("allocated_bytes"), 1024);
        a.copy_in(960, in.data(), 64, 0);
        a.copy_out(out.data(), 960, 64, 0);
        CHECK(in == out);
        a.fill32(960, 0x01020304, 16, 0);
        a.fill8(963, 9, 61, 0);
        a.copy_out(out.data(), 960, 64, 0);
        CHECK_EQ(int{out[0]}, 4);
        CHECK_EQ(int{out[2]}, 2);
        CHECK_EQ(int{out[63]}, 9);
        CHECK_THROWS(SAC_E_RANGE, a.copy_in(961, in.data(), 64, 0));
        CHECK_THROWS(SAC_E_RANGE, a.copy_out(out.data(), 1025, 0, 0));
        CHECK_THROWS(SAC_E_RANGE, a.fill8(UINT64_MAX, 0, 2, 0));
        CHECK_THROWS(SAC_E_RANGE, a.fill32(0, 0, UINT64_MAX / 4 + 2, 0));
        DeviceBuffer b = std::move(a);
        CHECK(!a && b);
        b = DeviceBuffer(device, 512, "less");
        CHECK_EQ(gpu_kit::get("allocated_bytes"), 512);
    }
    CHECK_EQ(gpu_kit::get("allocated_bytes"), 0);
    try {
        const DeviceBuffer much(device, std::uint64_t{1} << 33, "the hot buffer's rows");
        CHECK(false);
    } catch (const sac::Error &e) {
        CHECK_EQ(e.status, SAC_E_GPU);
        CHECK(gpu_kit::says(e.message, "the hot buffer's rows"));
        CHECK(gpu_kit::says(e.message, "8589934592 bytes: 1073741824 of 1073741824 are free"));
    }
}

TEST(pinned_memory) {
    const auto device = gpu_kit::device();
    const long before = gpu_kit::get("registered_bytes");
    {
        PinnedBuffer a(device, 3 << 20, 0, "staging");
        CHECK_EQ(gpu_kit::get("registered_bytes"), before + (3 << 20));
        CHECK_EQ(a.address(), reinterpret_cast<std::uintptr_t>(a.data()));
        CHECK_EQ(int{a.data()[(3 << 20) - 1]}, 0);
        a.data()[5] = 1;
        PinnedBuffer b = std::move(a);
        CHECK(!a);
        CHECK_EQ(int{b.data()[5]}, 1);
        const int code = kit::in_child([&] { const PinnedBuffer mine = std::move(b); });
        CHECK_EQ(code, 0);
        CHECK_EQ(int{b.data()[5]}, 1);
    }
    CHECK_EQ(gpu_kit::get("registered_bytes"), before);
    const gpu_kit::Turned refuse("refuse_after", 0);
    CHECK_THROWS(SAC_E_GPU, PinnedBuffer(device, 4096, -1, "staging"));
}

TEST(events_and_streams) {
    const auto device = gpu_kit::device();
    {
        const Stream stream(device, -1);
        const Event begin(device, true);
        Event end(device, true);
        CHECK(end.done());
        begin.record(stream.number());
        {
            const gpu_kit::Turned held("hold_events", 1);
            end.record(stream.number());
            CHECK(!end.done());
            CHECK(begin.done());
            end.make_wait(0);
            std::thread release([] {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                gpu_kit::set("hold_events", 0);
            });
            end.synchronize();
            release.join();
            CHECK(end.done());
        }
        CHECK(end.milliseconds_since(begin) > 0);
        const Event moved = std::move(end);
        CHECK(!end && moved);
        CHECK(!capturing(*device, stream.number()));
        const gpu_kit::Turned capture("capturing", 1);
        CHECK(capturing(*device, stream.number()));
        synchronize(*device, 0);
    }
    CHECK_EQ(gpu_kit::get("streams"), 0);
    CHECK_EQ(gpu_kit::get("events"), 0);
}

TEST(a_kernel_runs) {
    const gpu_kit::Folder cache;
    setenv("XDG_CACHE_HOME", cache.path.c_str(), 1);
    const auto device = gpu_kit::device();
    {
        const auto module = device->module(gather_spec());
        CHECK(device->module(gather_spec()) == module);
        CHECK(device->module(gather_spec().define("X", 1)) != module);
        const Function gather = module->function("sac_gather");
        CHECK_EQ(gather.info().local_bytes, 0);
        CHECK_EQ(gather.info().registers, 64);
        CHECK(gather.blocks_at_once(1024, 0) >= 1);
        CHECK_THROWS(SAC_E_NOT_FOUND, module->function("sac_resolve"));
        CHECK_THROWS(SAC_E_GPU, gather.allow_shared(1 << 20));
        gather.allow_shared(100 << 10);

        // Two pages of four rows of 16 bytes, 32 apart; the second page is dead.
        PinnedBuffer pool(device, 4096, -1, "pool");
        for (int i = 0; i < 4096; ++i)
            pool.data()[i] = static_cast<std::uint8_t>(i / 32);
        std::array<std::uint64_t, 2> pages = {pool.address(), 0};
        HotRequest request{};
        request.pages = reinterpret_cast<std::uintptr_t>(pages.data());
        request.units = 8, request.flags = HOT_BOUND;
        std::array<std::int32_t, 4> units = {3, -1, 4, 8};
        std::array<std::uint32_t, 2> errors{};
        std::array<std::array<std::uint8_t, 16>, 4> out{};
        HotGather args{};
        args.units = reinterpret_cast<std::uintptr_t>(units.data());
        args.table = reinterpret_cast<std::uintptr_t>(&request);
        args.errors = reinterpret_cast<std::uintptr_t>(errors.data());
        args.out = reinterpret_cast<std::uintptr_t>(out.data());
        args.out_pitch = 16, args.count = 4, args.table_size = 1;
        const long launches = gpu_kit::get("launches");
        gather.launch_with({.threads = 128, .shared_bytes = 64 << 10, .overlap = true}, args);
        CHECK_EQ(gpu_kit::get("launches"), launches + 1);
        CHECK_EQ(int{out[0][15]}, 3);
        CHECK_EQ(int{out[1][0]}, 0);
        CHECK_EQ(errors[0], std::uint32_t{HOT_E_PAGE | HOT_E_RANGE});
        CHECK_THROWS(SAC_E_GPU, gather.launch_with({.threads = 2048}, args));
        CHECK_THROWS(
            SAC_E_GPU,
            gather.launch_with(
                {.threads = 32, .shared_bytes = 200 << 10, .cluster = 2, .overlap = true},
                args));
    }
    CHECK_EQ(gpu_kit::get("modules"), 0);
}

TEST(a_forked_child_gets_an_error) {
    const auto device = gpu_kit::device();
    const DeviceBuffer buffer(device, 64, "rows");
    const Event event(device);
    sac_gpu *gpu = nullptr;
    CHECK_EQ(sac_gpu_open(0, &gpu), as_int(SAC_OK));
    CHECK_EQ(kit::in_child([&] {
                 CHECK_THROWS(SAC_E_FORKED, Driver::get());
                 CHECK_THROWS(SAC_E_FORKED, Device::open(0));
                 CHECK_THROWS(SAC_E_FORKED, Current(*device));
                 CHECK_THROWS(SAC_E_FORKED, buffer.fill8(0, 0, 64, 0));
                 CHECK_THROWS(SAC_E_FORKED, event.record(0));
                 CHECK_THROWS(SAC_E_FORKED, device->module(gather_spec()));
                 sac_gpu_info info;
                 CHECK_EQ(sac_gpu_get_info(gpu, &info), as_int(SAC_E_FORKED));
                 CHECK_EQ(sac_gpu_close(gpu), as_int(SAC_OK));
             }),
             0);
    sac_gpu_info info;
    CHECK_EQ(sac_gpu_get_info(gpu, &info), as_int(SAC_OK));
    CHECK_EQ(sac_gpu_close(gpu), as_int(SAC_OK));
}
