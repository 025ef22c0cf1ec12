# cmake -DNM=… -DOBJECTS="a.o;b.o" -P check_weak_symbols.cmake
#
# Fails when an object compiled for one instruction set defines a weak symbol: the linker could choose that copy for the whole program,
# and the program would die on a CPU that lacks the instructions.
set(num_checked 0)
foreach(object ${OBJECTS})
  if(NOT object MATCHES "(avx2|avx512|avx512vnni|neondot)[.]cpp[.]o(bj)?$")
    continue()
  endif()
  execute_process(COMMAND ${NM} --defined-only --demangle ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [WwVvu] [^\n]+" weak "${symbols}")
  if(weak)
    message(FATAL_ERROR "${object} defines weak symbols: ${weak}; move what they come from into an unnamed namespace")
  endif()
  math(EXPR num_checked "${num_checked} + 1")
endforeach()
if(num_checked EQUAL 0)
  message(FATAL_ERROR "no object of an instruction set's file among: ${OBJECTS}")
endif()
message(STATUS "${num_checked} objects without weak symbols")
