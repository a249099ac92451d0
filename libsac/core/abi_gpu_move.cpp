// SPDX-License-Identifier: Apache-2.0
// The C interface of the GPU: puts and gathers.
#include "sac_gpu.h"

#include "abi.hpp"
#include "gpu/gpu_handles.hpp"
#include "gpu/path_handles.hpp"

using namespace sac::abi;

extern "C" {

int sac_gpu_mover_open(sac_gpu *gpu, sac_ns *ns, const sac_gpu_mover_options *options,
                       sac_gpu_mover **out) {
    return guarded([&] {
        need(gpu, "gpu"), need(ns, "ns"), need(out, "out");
        sac_gpu_mover_options defaults{};
        defaults.struct_size = sizeof defaults;
        if (options)
            need_struct(options, "options");
        *out = new sac_gpu_mover{
            std::make_shared<sac::gpu::Mover>(gpu->it, ns->it, options ? *options : defaults)};
    });
}

int sac_gpu_mover_get_info(sac_gpu_mover *mover, sac_gpu_mover_info *out) {
    return guarded([&] {
        need(mover, "mover"), need(out, "out");
        mover->it->info(*out);
    });
}

int sac_gpu_mover_close(sac_gpu_mover *mover) {
    return end(mover, [](sac::gpu::Mover &m) { m.drain(); });
}

int sac_gpu_put(sac_gpu_mover *mover, sac_put *put, const sac_gpu_rows *rows, uint64_t count,
                uintptr_t stream) {
    return guarded([&] {
        need(mover, "mover"), need(put, "put");
        if (count != 0)
            need(rows, "rows");
        for (uint64_t i = 0; i < count; ++i)
            mover->it->put(*put->it, rows[i], stream);
    });
}

int sac_gpu_put_quiet(sac_put *put, uint32_t *quiet) {
    return guarded([&] {
        need(put, "put"), need(quiet, "quiet");
        *quiet = put->it->quiet();
    });
}

int sac_gpu_put_sequence(sac_gpu_mover *mover, sac_seq *seq, const sac_gpu_rows *rows,
                         uint64_t count, uintptr_t stream) {
    return guarded([&] {
        need(mover, "mover"), need(seq, "seq");
        if (count != 0)
            need(rows, "rows");
        for (uint64_t i = 0; i < count; ++i)
            mover->it->put(seq->it, rows[i], stream);
    });
}

int sac_gpu_gather(sac_gpu_mover *mover, const sac_gpu_gather_req *req, uintptr_t stream,
                   uint64_t *number) {
    return guarded([&] {
        need(mover, "mover"), need(req, "req");
        const std::uint64_t n = mover->it->gather(*req, stream);
        if (number)
            *number = n;
    });
}

int sac_gpu_mover_faults(sac_gpu_mover *mover, sac_gpu_fault *out, uint64_t *count) {
    return guarded([&] {
        need(mover, "mover"), need(count, "count");
        if (*count != 0)
            need(out, "out");
        *count = mover->it->faults().take(out, *count);
    });
}

}  // extern "C"
