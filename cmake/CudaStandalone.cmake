# The few parts of the project that src/cuda needs, when it is configured on its own.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(Threads REQUIRED)
set(OSCAR_GTEST_SOURCE "" CACHE PATH "GoogleTest's source; empty: find_package")
enable_testing()
if(OSCAR_GTEST_SOURCE)
  add_subdirectory("${OSCAR_GTEST_SOURCE}" googletest EXCLUDE_FROM_ALL)
else()
  find_package(GTest 1.12 REQUIRED)
endif()

set(repo_dir "${CMAKE_CURRENT_LIST_DIR}/..")
get_filename_component(CMAKE_SOURCE_DIR "${repo_dir}" ABSOLUTE)  # where OscarTargets finds headers
set(OSCAR_CUDA_DEFAULT on)
include("${CMAKE_CURRENT_LIST_DIR}/CudaChoice.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/OscarTargets.cmake")
add_library(oscar_format STATIC "${repo_dir}/src/format/plane_layout.cpp"
  "${repo_dir}/src/base/cpu_features.cpp")
target_include_directories(oscar_format PUBLIC "${repo_dir}/src")
target_link_libraries(oscar_format PRIVATE oscar_flags)
add_subdirectory("${repo_dir}/src/kernels" kernels EXCLUDE_FROM_ALL)  # its own tests need more of the project
