// SPDX-License-Identifier: Apache-2.0
// The C interface: pools that a daemon serves.
#include "abi.hpp"

using namespace sac::abi;

extern "C" {

int sac_pool_connect(const sac_connect_options *options, sac_pool **out) {
    return guarded([&] {
        need_struct(options, "options");
        need(out, "out"), need(options->socket, "socket");
        *out = new sac_pool{sac::Pool::connect(*options)};
    });
}

}  // extern "C"
