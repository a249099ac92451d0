# SPDX-License-Identifier: Apache-2.0
# tests/native: every test_*.cpp is a program that exits 0; every fuzz_*.cpp a libFuzzer
# target. They link the core itself, so they can test what sac.h does not show.
set(native "${CMAKE_CURRENT_SOURCE_DIR}/tests/native")

if(SAC_TESTS)
    enable_testing()
    # Processes that tests start and kill.
    file(GLOB children CONFIGURE_DEPENDS ${native}/*_child.cpp)
    set(child_definitions "")
    set(child_targets "")
    foreach(source ${children})
        get_filename_component(name ${source} NAME_WE)
        add_executable(${name} ${source})
        target_link_libraries(${name} PRIVATE sac_objects sac_abi)
        string(TOUPPER ${name} upper)
        list(APPEND child_definitions "SAC_${upper}=\"$<TARGET_FILE:${name}>\"")
        list(APPEND child_targets ${name})
    endforeach()

    # A CUDA driver and NVRTC that run on the CPU: for SAC_LIBCUDA and SAC_NVRTC.
    file(GLOB fake CONFIGURE_DEPENDS ${native}/fake_cuda/*.cpp)
    add_library(fake_cuda SHARED ${fake})
    target_include_directories(fake_cuda PRIVATE ${native}/fake_cuda libsac/core
                               libsac/hotbuffer/kernels)
    target_link_libraries(fake_cuda PRIVATE sac_flags Threads::Threads)
    list(APPEND child_definitions "SAC_FAKE_CUDA=\"$<TARGET_FILE:fake_cuda>\"")
    list(APPEND child_targets fake_cuda)

    file(GLOB tests CONFIGURE_DEPENDS ${native}/test_*.cpp)
    foreach(source ${tests})
        get_filename_component(name ${source} NAME_WE)
        add_executable(${name} ${source})
        target_include_directories(${name} PRIVATE ${native})
        target_compile_definitions(${name} PRIVATE ${child_definitions})
        target_link_libraries(${name} PRIVATE sac_objects sac_abi)
        if(child_targets)
            add_dependencies(${name} ${child_targets})
        endif()
        add_test(NAME ${name} COMMAND ${name})
        # Far above what they take: TSan on a busy machine is 30 times slower.
        set_tests_properties(${name} PROPERTIES TIMEOUT 900)
    endforeach()
endif()

if(SAC_FUZZ)
    file(GLOB targets CONFIGURE_DEPENDS ${native}/fuzz/fuzz_*.cpp)
    foreach(source ${targets})
        get_filename_component(name ${source} NAME_WE)
        add_executable(${name} ${source})
        target_include_directories(${name} PRIVATE ${native})
        target_link_libraries(${name} PRIVATE sac_objects sac_abi)
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    endforeach()
endif()
