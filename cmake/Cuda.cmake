# CUDA targets, where CudaChoice.cmake has found all that they take. Spilled registers are errors, unless OSCAR_CUDA_ALLOW_SPILLS.
enable_language(CUDA)
find_package(CUDAToolkit ${OSCAR_CUDA_OLDEST} REQUIRED)
# CMake 3.25 does not know how newer nvcc spells C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()

# oscar_cuda_library(NAME ARCHITECTURES … SOURCES … [LINK …])
function(oscar_cuda_library name)
  cmake_parse_arguments(ARG "" "" "ARCHITECTURES;SOURCES;LINK" ${ARGN})
  add_library(oscar_${name} STATIC ${ARG_SOURCES})
  set_target_properties(oscar_${name} PROPERTIES CUDA_ARCHITECTURES "${ARG_ARCHITECTURES}")
  target_include_directories(oscar_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/.. )
  target_compile_options(oscar_${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr $<$<NOT:$<BOOL:${OSCAR_CUDA_ALLOW_SPILLS}>>:-Xptxas=-warn-spills,-Werror>>)
  target_link_libraries(oscar_${name} PUBLIC ${ARG_LINK})
endfunction()
