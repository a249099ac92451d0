// SPDX-License-Identifier: Apache-2.0
// A view that the daemon gave, and which reservations in it this process knows of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "backing.hpp"
#include "format.hpp"
#include "view.hpp"

namespace sac {

// The reservations that were answered to this process, by slot.
class Grants {
public:
    void got(std::uint32_t slot, std::uint64_t token) {
        const std::lock_guard lock(mutex_);
        of_[slot] = {token, false};
    }
    // True the first time only: the caller takes the count back and tells the daemon. The
    // token stays known, or it would be taken for one whose answer was lost.
    bool give_up(std::uint32_t slot, std::uint64_t token) noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = of_.find(slot);
        if (it == of_.end() || it->second.token != token || it->second.given_up)
            return false;
        it->second.given_up = true;
        return true;
    }
    // The daemon has ended it.
    void ended(std::uint32_t slot, std::uint64_t token) noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = of_.find(slot);
        if (it != of_.end() && it->second.token == token)
            of_.erase(it);
    }
    bool known(std::uint32_t slot, std::uint64_t token) const noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = of_.find(slot);
        return it != of_.end() && it->second.token == token;
    }

private:
    struct Grant {
        std::uint64_t token;
        bool given_up;
    };
    mutable std::mutex mutex_;
    std::unordered_map<std::uint32_t, Grant> of_;
};

class RemoteView final : public View {
public:
    // life: of the client that has the table, as Connection counts them. gone is called when
    // nobody uses the view any more; it must not throw.
    RemoteView(std::shared_ptr<const Index> index, std::shared_ptr<PinTable> pins,
               std::shared_ptr<const Backing> backing, std::uint32_t table,
               std::uint64_t of_life, std::function<void()> gone)
        : View(std::move(index), std::move(pins), backing->data(), table,
               reinterpret_cast<const std::atomic<std::uint64_t> *>(backing->data().data() +
                                                                    fmt::kServedAt)),
          life(of_life), backing_(std::move(backing)), gone_(std::move(gone)) {}
    ~RemoteView() { gone_(); }

    const std::uint64_t life;
    Grants grants;

private:
    std::shared_ptr<const Backing> backing_;  // the daemon may have handed over another since
    std::function<void()> gone_;
};

}  // namespace sac
