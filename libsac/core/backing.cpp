// SPDX-License-Identifier: Apache-2.0
#include "backing.hpp"

#include "error.hpp"

namespace sac {

Backing::Backing(std::unique_ptr<Mapping> data)
    : data_(std::move(data)), epoch_(fork_epoch()) {}

Backing::~Backing() = default;

void Backing::check_usable() const {
    if (forked())
        throw Error(
            SAC_E_FORKED, "pool",
            "this pool was opened by the parent process; a forked child must open it anew");
    if (closed())
        throw Error(SAC_E_CLOSED, "pool", "the pool was closed");
}

}  // namespace sac
