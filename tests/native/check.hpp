// SPDX-License-Identifier: Apache-2.0
// A test file includes this once: it holds main(). One executable a file.
//   TEST(name) { CHECK(a < b); CHECK_EQ(f(), 3); CHECK_THROWS(SAC_E_ARG, g()); }
// A failed check ends its test; the others still run. Arguments: names of the tests to run
// (all, without any). Exit code 1 when a test failed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "error.hpp"

namespace check {

struct Failure {
    std::string text;
};

struct Test {
    const char *name;
    void (*run)();
};

inline std::vector<Test> &tests() {
    static std::vector<Test> all;
    return all;
}

struct Registration {
    Registration(const char *name, void (*run)()) { tests().push_back({name, run}); }
};

[[noreturn]] inline void fail(const char *file, int line, const std::string &what) {
    throw Failure{std::string(file) + ':' + std::to_string(line) + ": " + what};
}

template <typename T> std::string show(const T &value) {
    std::ostringstream out;
    if constexpr (std::is_enum_v<T>) {
        out << static_cast<std::underlying_type_t<T>>(value);
    } else if constexpr (sizeof(T) == 1 && std::is_integral_v<T>) {
        out << static_cast<int>(value);  // a byte, not a character
    } else if constexpr (requires { out << value; }) {
        out << value;
    } else {
        out << "(a value of " << sizeof(T) << " bytes)";
    }
    return out.str();
}

template <typename A, typename B>
void equal(const char *file, int line, const char *text, const A &a, const B &b) {
    if (!(a == b)) {
        fail(file, line, std::string(text) + ": " + show(a) + " is not " + show(b));
    }
}

template <typename F>
void throws(const char *file, int line, const char *text, sac_status status, F &&run) {
    try {
        run();
    } catch (const sac::Error &error) {
        if (error.status != status) {
            fail(file, line,
                 std::string(text) + ": status " + show(error.status) + ", not " +
                     show(status) + " (" + error.message + ")");
        }
        return;
    }
    fail(file, line, std::string(text) + ": nothing was thrown");
}

// Starts this program again with one more environment variable; its exit code, or -1.
// Nothing is allocated between fork and exec: see in_child.hpp.
inline int run_again_with(const char *variable, const char *value) {
    std::printf("with %s=%s: ", variable, value);
    std::fflush(stdout);
    setenv(variable, value, 1);
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "again", static_cast<char *>(nullptr));
        _exit(127);
    }
    unsetenv(variable);
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : -1;
}

inline int run_all(int argc, char **argv) {
    int passed = 0, failed = 0;
    for (const Test &test : tests()) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; ++i) {
            wanted = wanted || std::strcmp(argv[i], test.name) == 0;
        }
        if (!wanted) {
            continue;
        }
        std::string why;
        try {
            test.run();
        } catch (const Failure &failure) {
            why = failure.text;
        } catch (const std::exception &error) {
            why = std::string("exception: ") + error.what();
        } catch (...) {
            why = "exception of an unknown type";
        }
        if (why.empty()) {
            ++passed;
        } else {
            ++failed;
            std::printf("FAILED %s\n  %s\n", test.name, why.c_str());
        }
        std::fflush(stdout);
    }
    std::printf(failed > 0 ? "%d passed, %d failed\n" : "%d passed\n", passed, failed);
    return failed > 0 || passed == 0 ? 1 : 0;
}

}  // namespace check

#define TEST(name)                                                                             \
    static void test_##name();                                                                 \
    static const check::Registration registration_##name{#name, test_##name};                  \
    static void test_##name()

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            check::fail(__FILE__, __LINE__, #condition);                                       \
        }                                                                                      \
    } while (false)

#define CHECK_EQ(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

#define CHECK_THROWS(status, ...)                                                              \
    check::throws(__FILE__, __LINE__, #__VA_ARGS__, (status), [&] { (void)(__VA_ARGS__); })

int main(int argc, char **argv) { return check::run_all(argc, argv); }
