# SPDX-License-Identifier: Apache-2.0
# libsac._core: the Python module, over sac.h only.
set(components Interpreter Development.Module)
find_package(Python 3.11 REQUIRED COMPONENTS ${components})
if(NOT nanobind_ROOT AND NOT nanobind_DIR)
    execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_package(nanobind CONFIG REQUIRED)

file(GLOB python_sources CONFIGURE_DEPENDS libsac/core/python/*.cpp)
nanobind_add_module(_core NB_STATIC NB_SUPPRESS_WARNINGS NOMINSIZE PROTECT_STACK
                    ${python_sources})
target_link_libraries(_core PRIVATE sac_flags sac)
set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
install(TARGETS _core LIBRARY DESTINATION libsac)
