// SPDX-License-Identifier: Apache-2.0
// What a user of a pool can ask for, whether this process owns it or a daemon serves it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "namespace.hpp"

namespace sac {

class Pool {
public:
    // Opens or creates one of this process. Throws Error.
    static std::shared_ptr<Pool> embedded(const sac_pool_options &options);
    static std::shared_ptr<Pool> from_fds(const sac_open_options &options);
    static std::shared_ptr<Pool> connect(const sac_connect_options &options);

    Pool() = default;
    virtual ~Pool() = default;
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    virtual void info(sac_pool_info &out) = 0;
    virtual std::vector<std::string> names() = 0;
    virtual std::shared_ptr<Namespace> open_namespace(const std::string &name,
                                                      const sac_ns_options &options) = 0;
    virtual void drop(const std::string &name) = 0;
    virtual void resize(const std::string &name, std::uint64_t max_bytes) = 0;
    virtual void extend(const sac_extent_fd &extent) = 0;
    virtual void close() = 0;
};

}  // namespace sac
