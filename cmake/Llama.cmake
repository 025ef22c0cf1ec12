# The pinned llama.cpp, built outside the tree by scripts/lib.sh.
if(NOT EXISTS "${OSCAR_LLAMA_SOURCE}/include/llama.h")
  message(FATAL_ERROR "OSCAR_LLAMA_SOURCE='${OSCAR_LLAMA_SOURCE}' holds no include/llama.h; eval \"$(scripts/setup)\" sets it, -DOSCAR_WITH_LLAMA=OFF does without")
endif()
if(NOT EXISTS "${OSCAR_LLAMA_BUILD}/bin/libllama.so")
  message(FATAL_ERROR "OSCAR_LLAMA_BUILD='${OSCAR_LLAMA_BUILD}' holds no bin/libllama.so; eval \"$(scripts/setup)\" sets it, -DOSCAR_WITH_LLAMA=OFF does without")
endif()
foreach(lib llama ggml ggml-base)
  add_library(${lib}_shared SHARED IMPORTED)
  set_target_properties(${lib}_shared PROPERTIES
    IMPORTED_LOCATION "${OSCAR_LLAMA_BUILD}/bin/lib${lib}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${OSCAR_LLAMA_SOURCE}/include;${OSCAR_LLAMA_SOURCE}/ggml/include")
endforeach()
set(OSCAR_GGML_INTERNAL_INCLUDE "${OSCAR_LLAMA_SOURCE}/ggml/src")
