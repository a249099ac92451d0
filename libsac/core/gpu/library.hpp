// SPDX-License-Identifier: Apache-2.0
// A shared library that is looked for under several names and never unloaded.
#pragma once

#include <string>
#include <vector>

namespace sac::gpu {

class Library {
public:
    // Opens the first that is there. Where none is, name() is "" and failures() says why not.
    explicit Library(const std::vector<std::string> &names);

    const std::string &name() const noexcept { return name_; }
    const std::string &failures() const noexcept { return failures_; }
    // Null where the library does not have it.
    void *symbol(const char *name) const noexcept;
    // Opens a library that lies in the same folder, where it is there: this one looks for it
    // by its name alone. symbol: any of this library's.
    void open_beside(const char *symbol, const std::string &name) const;

private:
    void *handle_ = nullptr;
    std::string name_, failures_;
};

}  // namespace sac::gpu
