# One folder under src/ is one static library; its link list is the arrow of the layer diagram (docs/architecture.md).

add_library(oscar_flags INTERFACE)
target_compile_options(oscar_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror -ffp-contract=off)
if(OSCAR_SANITIZE)
  target_compile_options(oscar_flags INTERFACE -fsanitize=${OSCAR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(oscar_flags INTERFACE -fsanitize=${OSCAR_SANITIZE})
endif()

# oscar_library(NAME SOURCES… [LINK targets…])
function(oscar_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(oscar_${name} STATIC ${ARG_SOURCES})
  target_include_directories(oscar_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(oscar_${name} PUBLIC ${ARG_LINK} PRIVATE oscar_flags ${ARG_PRIVATE_LINK})
endfunction()

# oscar_test(NAME SOURCES… [LINK targets…]): a GoogleTest program, run as one CTest test.
function(oscar_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} oscar_flags GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
endfunction()
