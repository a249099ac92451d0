// SPDX-License-Identifier: Apache-2.0
#include "library.hpp"

#include <dlfcn.h>
#include <sys/stat.h>

namespace sac::gpu {

Library::Library(const std::vector<std::string> &names) {
    const auto failed = [this](const std::string &why) {
        failures_ += (failures_.empty() ? "" : "; ") + why;
    };
    for (const std::string &name : names) {
        struct stat is;
        // Opening a pipe would wait for whoever writes to it.
        if (name.find('/') != std::string::npos && stat(name.c_str(), &is) == 0 &&
            !S_ISREG(is.st_mode)) {
            failed(name + ": is no file");
            continue;
        }
        // Its symbols are not put before anybody's: an engine may have a library of its own.
        handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_) {
            name_ = name;
            return;
        }
        const char *const why = dlerror();
        failed(why ? why : name);
    }
}

void *Library::symbol(const char *name) const noexcept {
    return handle_ ? dlsym(handle_, name) : nullptr;
}

void Library::open_beside(const char *own, const std::string &name) const {
    Dl_info info;
    void *const at = symbol(own);
    if (!at || dladdr(at, &info) == 0 || !info.dli_fname)
        return;
    const std::string path = info.dli_fname;
    const std::size_t slash = path.rfind('/');
    if (slash != std::string::npos)
        (void)dlopen((path.substr(0, slash + 1) + name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace sac::gpu
