// SPDX-License-Identifier: Apache-2.0
// The C interface of the GPU: devices, registration, compiling.
#include "sac_gpu.h"

#include <algorithm>
#include <cstring>

#include "abi.hpp"
#include "gpu/gpu_handles.hpp"
#include "gpu/nvrtc.hpp"

using namespace sac::abi;

namespace {

void fill(sac_gpu_info &out, const sac::gpu::Device &device) {
    const sac::gpu::DeviceInfo &i = device.info();
    out = {};
    out.ordinal = i.ordinal;
    out.major = i.major, out.minor = i.minor;
    out.numa_node = i.numa_node;
    out.multiprocessors = i.multiprocessors;
    out.driver_version = i.driver_version;
    out.can_register = i.can_register && i.same_address;
    out.can_register_read_only = i.can_register_read_only;
    out.memory_bytes = i.memory_bytes;
    copy_text(out.name, sizeof out.name, i.name);
    copy_text(out.pci, sizeof out.pci, i.pci);
    const sac::gpu::Current current(device);
    std::size_t free = 0, total = 0;
    device.driver().check(device.driver().memory_info(&free, &total), i.name,
                          "cannot ask how much memory is free");
    out.free_bytes = free;
}

}  // namespace

extern "C" {

int sac_gpu_open(int32_t ordinal, sac_gpu **out) {
    return guarded([&] {
        need(out, "out");
        *out = new sac_gpu{sac::gpu::Device::open(ordinal)};
    });
}

int sac_gpu_get_info(sac_gpu *gpu, sac_gpu_info *out) {
    return guarded([&] {
        need(gpu, "gpu"), need(out, "out");
        fill(*out, *gpu->it);
    });
}

int sac_gpu_close(sac_gpu *gpu) {
    return end(gpu, [](sac::gpu::Device &) {});
}

int sac_gpu_register(sac_gpu *gpu, sac_ns *ns, uint64_t chunk_bytes,
                     sac_gpu_registration **out) {
    return guarded([&] {
        need(gpu, "gpu"), need(ns, "ns"), need(out, "out");
        ns->it->check();
        const std::shared_ptr<sac::View> view = ns->it->view();
        *out = new sac_gpu_registration{
            sac::gpu::Registration::start(gpu->it, view->data(), chunk_bytes)};
    });
}

int sac_gpu_registration_wait(sac_gpu_registration *registration, uint64_t timeout_ms) {
    return guarded([&] {
        need(registration, "registration");
        registration->it->require(timeout_ms);
    });
}

int sac_gpu_registration_get_info(sac_gpu_registration *registration,
                                  sac_registration_info *out) {
    return guarded([&] {
        need(registration, "registration"), need(out, "out");
        const sac::gpu::Registration::Info i = registration->it->info();
        *out = {};
        out->state = static_cast<uint32_t>(i.state);
        out->chunks = i.chunks, out->chunks_done = i.chunks_done;
        out->result = i.result;
        out->bytes = i.bytes, out->bytes_done = i.bytes_done;
        out->bytes_foreign = i.bytes_foreign;
        copy_text(out->reason, sizeof out->reason, i.reason);
    });
}

int sac_gpu_unregister(sac_gpu_registration *registration) {
    return guarded([&] {
        need(registration, "registration");
        (void)registration->it->info();  // a forked child gets its error
        registration->it->unregister();
    });
}

int sac_gpu_registration_close(sac_gpu_registration *registration) {
    return end(registration, [](sac::gpu::Registration &) {});
}

int sac_gpu_set_nvrtc(const char *path) {
    return guarded([&] {
        need(path, "path");
        sac::gpu::Nvrtc::set_path(path);
    });
}

int sac_gpu_get_source(uint32_t i, sac_gpu_source *out) {
    return guarded([&] {
        need(out, "out");
        const auto all = sac::gpu::sources();
        if (i >= all.size())
            throw sac::Error(SAC_E_RANGE, "source",
                             sac::format("there are %zu kernel sources", all.size()));
        *out = {all[i].name.data(), all[i].text.data(), all[i].text.size()};
    });
}

int sac_gpu_compile(const char *source, const char *arch, const sac_gpu_macro *macros,
                    uint32_t count, sac_gpu_compiled *out, char *log, uint64_t log_room) {
    return guarded([&] {
        need(source, "source"), need(arch, "arch"), need(out, "out");
        if (count != 0)
            need(macros, "macros");
        sac::gpu::KernelSpec spec{source, {}, arch};
        for (uint32_t i = 0; i < count; ++i) {
            need(macros[i].name, "name of a macro"), need(macros[i].value, "value of a macro");
            spec.macros.emplace_back(macros[i].name, macros[i].value);
        }
        const sac::gpu::Compiled made = sac::gpu::compile(spec);
        *out = {};
        out->cubin_bytes = made.cubin.size();
        out->cached = made.cached;
        out->nvrtc = static_cast<uint32_t>(made.nvrtc);
        out->log_bytes = made.log.size();
        copy_text(out->arch, sizeof out->arch, made.arch);
        copy_text(out->not_kept, sizeof out->not_kept, made.not_kept);
        if (log && log_room != 0)
            copy_text(log, log_room, made.log);
    });
}

}  // extern "C"
