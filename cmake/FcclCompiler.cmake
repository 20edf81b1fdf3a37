# Language levels, warnings and sanitizers; sets fccl_kernel_optimization.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT FCCL_SANITIZE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Kernels are optimised in every build: what a debug build and the sanitizers test is then the code that is shipped.
set(fccl_kernel_optimization -O3)
if(FCCL_SANITIZE STREQUAL "address")
  # Not enum: callers in C may pass any number, and the library checks them. Not vptr: it needs free descriptors, which a test
  # takes away.
  set(fccl_sanitizer_flags -fsanitize=address,undefined -fno-sanitize=enum,vptr -fno-sanitize-recover=all
                           -fno-omit-frame-pointer)
elseif(FCCL_SANITIZE STREQUAL "thread")
  set(fccl_sanitizer_flags -fsanitize=thread -fno-omit-frame-pointer)
elseif(FCCL_SANITIZE)
  message(FATAL_ERROR "FCCL_SANITIZE is '${FCCL_SANITIZE}'; it can be address or thread.")
endif()
if(FCCL_SANITIZE)
  set(fccl_kernel_optimization -O2)
  # GCC takes what the sanitizers insert for reads of variables that are not set.
  foreach(flag -O1 -g1 -Wno-maybe-uninitialized ${fccl_sanitizer_flags})
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:${flag}>)
  endforeach()
  add_link_options(${fccl_sanitizer_flags})
endif()

# Everything of ours gets these through the target fccl_internal. A designated initializer that leaves fields at their
# defaults is how options are written here, so -Wextra's warning about missing fields is off.
add_library(fccl_internal INTERFACE)
target_compile_options(
  fccl_internal INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wno-missing-field-initializers>
                          $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<BOOL:${FCCL_WERROR}>>:-Werror>)
# GCC 12 and 13 see copies past the end inside std::string and fmt's headers that are not there.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
  target_compile_options(fccl_internal INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
endif()
target_include_directories(fccl_internal INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
