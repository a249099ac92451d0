# SPDX-License-Identifier: Apache-2.0
# The CUDA sources of libsac/hotbuffer/kernels, as bytes in the library: it compiles them at run
# time. Run as a script (-DOUT= -DSOURCES=) it writes the C++ file.
if(CMAKE_SCRIPT_MODE_FILE)
    set(texts "")
    set(entries "")
    set(n 0)
    foreach(source IN LISTS SOURCES)
        get_filename_component(name "${source}" NAME)
        file(READ "${source}" hex HEX)
        string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
        string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
        string(APPEND texts "constexpr char k${n}[] = {\n${bytes}0};\n")
        string(APPEND entries "    Source{\"${name}\", {k${n}, sizeof k${n} - 1}},\n")
        math(EXPR n "${n} + 1")
    endforeach()
    file(WRITE "${OUT}.new" "// Written by cmake/kernels.cmake.
#include \"gpu/sources.hpp\"

#include <array>

namespace sac::gpu {
namespace {
${texts}
constexpr std::array<Source, ${n}> kSources = {
${entries}};
}  // namespace

std::span<const Source> sources() noexcept { return kSources; }

}  // namespace sac::gpu
")
    file(RENAME "${OUT}.new" "${OUT}")
    return()
endif()

file(GLOB kernel_sources CONFIGURE_DEPENDS
     ${CMAKE_CURRENT_SOURCE_DIR}/libsac/hotbuffer/kernels/*.cu
     ${CMAKE_CURRENT_SOURCE_DIR}/libsac/hotbuffer/kernels/*.cuh
     ${CMAKE_CURRENT_SOURCE_DIR}/libsac/hotbuffer/kernels/*.h)
list(SORT kernel_sources)
set(kernel_sources_cpp ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources.cpp)
add_custom_command(
    OUTPUT ${kernel_sources_cpp}
    COMMAND ${CMAKE_COMMAND} "-DOUT=${kernel_sources_cpp}" "-DSOURCES=${kernel_sources}"
            -P ${CMAKE_CURRENT_LIST_DIR}/kernels.cmake
    DEPENDS ${kernel_sources} ${CMAKE_CURRENT_LIST_DIR}/kernels.cmake
    COMMENT "Embedding the kernels' sources" VERBATIM)
