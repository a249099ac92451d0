// SPDX-License-Identifier: Apache-2.0
// What is behind the handles of sac.h.
#pragma once

#include <memory>

#include "pool.hpp"
#include "prefix.hpp"
#include "put.hpp"
#include "sequence.hpp"

struct sac_pool {
    std::shared_ptr<sac::Pool> it;
};
struct sac_ns {
    std::shared_ptr<sac::Namespace> it;
};
struct sac_put {
    std::shared_ptr<sac::Put> it;
};
struct sac_prefix {
    std::shared_ptr<sac::Prefix> it;
};
struct sac_seq {
    std::shared_ptr<sac::Sequence> it;
    sac_prefix view;
};
