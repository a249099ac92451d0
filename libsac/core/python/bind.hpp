// SPDX-License-Identifier: Apache-2.0
// The Python module's classes: sac.h's handles, shared so that a call in flight on another
// thread keeps its handle. The package's Python files are what users see.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "sac.h"

namespace sac_py {

namespace nb = nanobind;

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>;
using KeyArray = nb::ndarray<const std::uint8_t, nb::shape<-1, SAC_KEY_BYTES>, nb::c_contig,
                             nb::device::cpu>;
using TokenArray = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Raises the libsac error for a failed status; needs the GIL.
void check(int status);
// Raises the libsac error of that status.
[[noreturn]] void raise(sac_status status, const std::string &object,
                        const std::string &message);

// Runs a native call without the GIL, then checks it.
template <class Fn> void call(Fn &&fn) {
    int status = SAC_OK;
    {
        const nb::gil_scoped_release release;
        status = fn();
    }
    check(status);
}

// A handle that can be closed while another thread uses it: it ends with its last user.
template <class H> class Handle {
public:
    Handle(H *h, int (*end)(H *)) : held_(h, [end](H *p) { end(p); }) {}
    explicit Handle(std::shared_ptr<H> h) : held_(std::move(h)) {}

    std::shared_ptr<H> get(const char *what) const {
        if (!held_)
            raise(SAC_E_CLOSED, what, std::string("the ") + what + " was closed");
        return held_;
    }
    bool closed() const noexcept { return !held_; }
    void close() {
        std::shared_ptr<H> last;
        last.swap(held_);
        const nb::gil_scoped_release release;
        last.reset();
    }

private:
    std::shared_ptr<H> held_;
};

// A source of rows: address and byte strides of the leading dimensions; the rest is one row.
struct Source {
    const std::uint8_t *data;
    std::int64_t shape[3], stride[3];
};
// Takes an array whose first `lead` dimensions are leading and whose others make up one
// contiguous row of row_bytes.
Source source(nb::handle array, std::size_t lead, std::uint64_t row_bytes, const char *what);

// An owned (n, 32) array.
Bytes make_keys(std::unique_ptr<std::uint8_t[]> keys, std::uint64_t count);

sac_plane plane_of(sac_ns *ns, std::uint32_t plane);

void bind_pool(nb::module_ &m);
void bind_pages(nb::module_ &m);
void bind_gather(nb::module_ &m);
void bind_server(nb::module_ &m);
void bind_gpu(nb::module_ &m);
void bind_gpu_move(nb::module_ &m);
void bind_hot(nb::module_ &m);

using Pool = Handle<sac_pool>;
struct Namespace : Handle<sac_ns> {
    using Handle::Handle;
    // What never changes, asked for once: a daemon would be asked over its socket each time.
    std::uint32_t page_tokens() const { return known().page_tokens; }
    std::uint32_t plane_count() const { return known().planes; }
    sac_ns_info info() const;  // as it is now

private:
    struct Known {
        std::uint32_t page_tokens, planes;
    };
    Known known() const;
    mutable std::atomic<Known> known_{Known{0, 0}};
};
// Python's Prefix also keeps the sequence whose view it is.
struct Prefix {
    std::shared_ptr<const sac_prefix> held;
    std::shared_ptr<sac_ns> ns;

    std::shared_ptr<const sac_prefix> get() const {
        if (!held)
            raise(SAC_E_CLOSED, "prefix",
                  "the prefix was closed; its pages are not pinned any more");
        return held;
    }
};

}  // namespace sac_py
