// SPDX-License-Identifier: Apache-2.0
// The C interface: puts and sequences.
#include <algorithm>

#include "abi.hpp"

using namespace sac::abi;

extern "C" {

int sac_put_begin(sac_ns *ns, const uint8_t *keys, uint64_t count,
                  const sac_put_options *options, sac_put **out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        if (count != 0)
            need(keys, "keys");
        sac_put_options defaults{};
        defaults.struct_size = sizeof defaults;
        defaults.first_tail = UINT64_MAX;
        if (options)
            need_struct(options, "options");
        *out = new sac_put{
            std::make_shared<sac::Put>(ns->it, keys, count, options ? *options : defaults)};
    });
}

int sac_put_missing(sac_put *put, uint32_t part, uint64_t *indices, uint64_t *count) {
    return guarded([&] {
        need(put, "put"), need(count, "count");
        if (part > sac::kTailPart)
            throw sac::Error(SAC_E_ARG, "part", "part must be 0 or 1");
        const auto all = put->it->missing(part);
        if (indices)
            std::copy_n(all.begin(), std::min<std::uint64_t>(all.size(), *count), indices);
        *count = all.size();
    });
}

int sac_put_write(sac_put *put, const sac_scatter_req *reqs, uint64_t count, uint32_t threads) {
    return guarded([&] {
        need(put, "put");
        if (count != 0)
            need(reqs, "reqs");
        put->it->write({reqs, count}, threads);
    });
}

int sac_put_view(sac_put *put, uint64_t missing, uint32_t plane, uint32_t layer, void **rows,
                 uint64_t *bytes) {
    return guarded([&] {
        need(put, "put"), need(rows, "rows"), need(bytes, "bytes");
        *rows = put->it->view(missing, plane, layer, *bytes);
    });
}

int sac_put_commit(sac_put *put, uint64_t *committed) {
    return guarded([&] {
        need(put, "put");
        const std::uint64_t n = put->it->commit();
        if (committed)
            *committed = n;
    });
}

int sac_put_abort(sac_put *put) {
    return guarded([&] {
        need(put, "put");
        put->it->abort();
    });
}

int sac_put_close(sac_put *put) {
    return end(put, [](sac::Put &p) { p.close(); });
}

int sac_seq_open(sac_ns *ns, const uint32_t *tokens, uint64_t count, const void *salt,
                 uint64_t salt_bytes, sac_seq **out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        if (count != 0)
            need(tokens, "tokens");
        auto seq = std::make_shared<sac::Sequence>(ns->it, tokens, count, salt, salt_bytes);
        *out = new sac_seq{seq, {seq}};
    });
}

int sac_seq_extend(sac_seq *seq, const uint32_t *tokens, uint64_t count, uint64_t timeout_ms) {
    return guarded([&] {
        need(seq, "seq");
        if (count != 0)
            need(tokens, "tokens");
        seq->it->extend(tokens, count, timeout_ms);
    });
}

int sac_seq_write(sac_seq *seq, const sac_scatter_req *reqs, uint64_t count, uint32_t threads) {
    return guarded([&] {
        need(seq, "seq");
        if (count != 0)
            need(reqs, "reqs");
        seq->it->write({reqs, count}, threads);
    });
}

int sac_seq_flush(sac_seq *seq, uint64_t *committed) {
    return guarded([&] {
        need(seq, "seq");
        const std::uint64_t n = seq->it->flush();
        if (committed)
            *committed = n;
    });
}

const sac_prefix *sac_seq_view(sac_seq *seq) { return seq ? &seq->view : nullptr; }

int sac_seq_close(sac_seq *seq) {
    return end(seq, [](sac::Sequence &s) { s.close(); });
}

}  // extern "C"
