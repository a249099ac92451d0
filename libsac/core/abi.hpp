// SPDX-License-Identifier: Apache-2.0
// What the files of the C interface share: arguments looked at, exceptions turned into a
// status and sac_last_error().
#pragma once

#include <new>
#include <string>

#include "error.hpp"
#include "handles.hpp"

namespace sac::abi {

// Fills this thread's sac_last_error(); returns status.
int fail(sac_status status, const std::string &object, const std::string &message,
         int sys_errno, std::uint64_t offset) noexcept;

// Cuts text to the room there is, zero included.
void copy_text(char *to, std::size_t room, const std::string &text) noexcept;

template <class Fn> int guarded(Fn &&fn) noexcept {
    try {
        fn();
        return SAC_OK;
    } catch (const Error &e) {
        return fail(e.status, e.object, e.message, e.sys_errno, e.offset);
    } catch (const std::bad_alloc &) {
        return fail(SAC_E_NO_MEMORY, "memory", "the process is out of memory", 0, 0);
    } catch (const std::exception &e) {
        return fail(SAC_E_SYSTEM, "libsac", e.what(), 0, 0);
    }
}

inline void need(const void *p, const char *what) {
    if (!p)
        throw Error(SAC_E_ARG, what, std::string(what) + " is NULL");
}

template <class T> void need_struct(const T *p, const char *what) {
    need(p, what);
    if (p->struct_size != sizeof(T))
        throw Error(
            SAC_E_ARG, what,
            format("%s: struct_size is %u, this library has %zu; header and library are "
                   "of different versions",
                   what, p->struct_size, sizeof(T)));
}

// Ends whatever is behind a handle; the handle is gone even if that fails.
template <class H, class Fn> int end(H *handle, Fn &&fn) noexcept {
    if (!handle)
        return SAC_OK;
    const int status = guarded([&] { fn(*handle->it); });
    delete handle;
    return status;
}

}  // namespace sac::abi
