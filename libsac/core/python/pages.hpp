// SPDX-License-Identifier: Apache-2.0
// The Python module's puts and sequences.
#pragma once

#include <utility>

#include "bind.hpp"

namespace sac_py {

struct Put : Handle<sac_put> {
    Put(sac_put *p, std::shared_ptr<sac_ns> n, std::uint32_t tokens)
        : Handle(p, sac_put_close), ns(std::move(n)), page_tokens(tokens) {}
    // Lets go of the namespace too: an object that is only still around locks no files. A
    // view keeps the handle, and with it its own pages only.
    void end() {
        if (!closed()) {
            const auto p = get("put");
            const nb::gil_scoped_release release;
            (void)sac_put_abort(p.get());  // fails in a forked child, which has nothing to give
        }
        close();
        ns.reset();
    }
    std::shared_ptr<sac_ns> ns;
    std::uint32_t page_tokens;
};

struct Sequence : Handle<sac_seq> {
    Sequence(sac_seq *s, std::shared_ptr<sac_ns> n)
        : Handle(s, sac_seq_close), ns(std::move(n)) {}
    // Lets go of the namespace too: an object that is only still around locks no files.
    void end() {
        close();
        ns.reset();
    }
    std::shared_ptr<sac_ns> ns;
};

}  // namespace sac_py
