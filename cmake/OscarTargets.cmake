# One folder under src/ is one static library; its link list is the arrow of the layer diagram (docs/architecture.md).

add_library(oscar_flags INTERFACE)
target_compile_options(oscar_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror -ffp-contract=off
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)  # GCC 12 sees overlaps in "text" + std::string that are not there (GCC bug 105651)
if(OSCAR_SANITIZE)
  # -O1 and lines alone compile in half the time of -O2 -g; what the sanitizers report is the same.
  target_compile_options(oscar_flags INTERFACE -fsanitize=${OSCAR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
  target_link_options(oscar_flags INTERFACE -fsanitize=${OSCAR_SANITIZE})
endif()
if(OSCAR_WITH_FUZZ)
  # Coverage feedback in the libraries; only the fuzzers themselves link libFuzzer's main.
  target_compile_options(oscar_flags INTERFACE -fsanitize=fuzzer-no-link)
  add_custom_target(fuzzers)
endif()

# oscar_library(NAME SOURCES… [LINK targets…])
function(oscar_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(oscar_${name} STATIC ${ARG_SOURCES})
  target_include_directories(oscar_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(oscar_${name} PUBLIC ${ARG_LINK} PRIVATE oscar_flags ${ARG_PRIVATE_LINK})
endfunction()

# oscar_test(NAME SOURCES… [LINK targets…]): a GoogleTest program, run as one CTest test. What it tests is in libraries; its own code at -O1
# compiles in two thirds of the time.
function(oscar_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} oscar_flags GTest::gtest GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  if(CMAKE_CROSSCOMPILING)
    # Emulation is slow: four parts, which ctest -j runs side by side.
    foreach(part RANGE 3)
      add_test(NAME ${name}_${part} COMMAND ${name})
      set_property(TEST ${name}_${part} PROPERTY ENVIRONMENT GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=${part})
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
endfunction()

# oscar_thread_test(NAME): the CTest test NAME works with several threads: label "threads". The preset "tsan" builds and runs those, by
# the target thread_tests.
add_custom_target(thread_tests)
function(oscar_thread_test name)
  if(NOT CMAKE_CROSSCOMPILING)  # where a test is several
    set_property(TEST ${name} APPEND PROPERTY LABELS threads)
  endif()
  add_dependencies(thread_tests ${name})
endfunction()

# oscar_model_test(NAME): the CTest test NAME runs a real model, $OSCAR_TEST_MODEL: label "model". Where a model was given, skipping
# for want of one is a failure.
function(oscar_model_test name)
  set_property(TEST ${name} APPEND PROPERTY LABELS model)
  if(OSCAR_TEST_MODEL)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "OSCAR_TEST_MODEL=${OSCAR_TEST_MODEL}")
    set_property(TEST ${name} APPEND PROPERTY FAIL_REGULAR_EXPRESSION "no model: set OSCAR_TEST_MODEL")
  endif()
endfunction()

# oscar_preload_sanitizer(NAME): the CTest test NAME starts stock programs that load our plugin. An instrumented plugin needs its
# sanitizer's runtime to come first. Leaks are those of Python and of the stock programs too, so that they are not looked for.
function(oscar_preload_sanitizer name)
  if(NOT OSCAR_SANITIZE MATCHES "address")
    return()
  endif()
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    message(STATUS "${name} is not run: ${CMAKE_CXX_COMPILER_ID} links its sanitizer into programs, and llama-server is a stock one")
    set_property(TEST ${name} PROPERTY DISABLED ON)
    return()
  endif()
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${runtime}")
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} has no libasan.so, which ${name} starts llama-server with")
  endif()
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "LD_PRELOAD=${runtime}" "ASAN_OPTIONS=strict_string_checks=1:detect_leaks=0")
endfunction()

# oscar_fuzzer(NAME SOURCES… [LINK targets…]): a libFuzzer program; the target `fuzzers` builds all of them.
function(oscar_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} oscar_flags)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
endfunction()
