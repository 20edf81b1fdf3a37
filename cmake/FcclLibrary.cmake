# One object library per folder, in the order of their dependencies, then libfccl.so and, for tests that see internals,
# fccl_static, both of the same objects.
set(fccl_objects "")

function(fccl_layer name)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER sources EXCLUDE REGEX "_avx(2|512)\\.cc$")
  endif()
  # cuda_*.cc is for builds with the CUDA toolkit, cuda_*absent.cc stands in for them without.
  if(fccl_have_cuda)
    list(FILTER sources EXCLUDE REGEX "/cuda_([a-z]+_)?absent\\.cc$")
  elseif(NOT name STREQUAL "tuner")
    list(FILTER sources EXCLUDE REGEX "/cuda_[a-z_]+\\.cc$")
    file(GLOB stand_ins CONFIGURE_DEPENDS ${name}/cuda_*absent.cc)
    list(APPEND sources ${stand_ins})
  endif()
  if(sources)
    add_library(fccl_${name} OBJECT ${sources})
    target_link_libraries(fccl_${name} PRIVATE fccl_internal PkgConfig::hwloc Threads::Threads)
    if(fccl_have_cuda)
      target_include_directories(fccl_${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    endif()
    # Parsing fmt and the standard library is most of the time of these files. Not for the kernels, whose files differ in
    # their flags.
    if(NOT name STREQUAL "kernels_host")
      target_precompile_headers(fccl_${name} PRIVATE <fmt/format.h> <chrono> <memory> <mutex> <string> <vector>)
    endif()
    set(fccl_objects ${fccl_objects} fccl_${name} PARENT_SCOPE)
  endif()
endfunction()

fccl_layer(base base/*.cc)
fccl_layer(kernels_host kernels/*.cc kernels/host/*.cc)
fccl_layer(transport transport/*.cc)
fccl_layer(tuner tuner/*.cc)
fccl_layer(lib lib/*.cc)

# The static tables of the tuner are data; what is compiled is made of them.
file(GLOB fccl_tables CONFIGURE_DEPENDS tuner/tables/*.csv)
list(JOIN fccl_tables "," fccl_table_list)
set(fccl_tables_source ${CMAKE_BINARY_DIR}/generated/static_tables.cc)
add_custom_command(
  OUTPUT ${fccl_tables_source}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${fccl_tables_source} -DTABLES=${fccl_table_list}
          -P ${CMAKE_SOURCE_DIR}/cmake/GenerateTables.cmake
  DEPENDS ${fccl_tables} ${CMAKE_SOURCE_DIR}/cmake/GenerateTables.cmake
  VERBATIM)
target_sources(fccl_tuner PRIVATE ${fccl_tables_source})

if(TARGET fccl_kernels_host)
  # Contraction is off so that every instruction set gives the same bits; a fused multiply-add is written where it is meant.
  # KEEP -fno-unswitch-loops: facts of the call are tested inside the inner loops, where they are predicted and free;
  # unswitching would compile a copy of each loop for every combination of them, five minutes a file instead of ten seconds.
  target_compile_options(fccl_kernels_host PRIVATE ${fccl_kernel_optimization} -ffp-contract=off -fno-math-errno
                                                   -fno-unswitch-loops)
  set(avx2 -mavx2 -mfma -mf16c)
  # GCC 12 takes the undefined vectors in its own AVX-512 intrinsics for variables that are not set.
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mprefer-vector-width=512 -Wno-uninitialized
             -Wno-maybe-uninitialized)
  get_target_property(sources fccl_kernels_host SOURCES)
  foreach(source ${sources})
    if(source MATCHES "_generic\\.cc$")
      # 64-byte vectors never cross the border of a file here, so GCC's notes on how they are passed do not matter.
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-O2;-Wno-psabi")
    elseif(source MATCHES "_(avx2|avx512)\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${${CMAKE_MATCH_1}}")
    endif()
  endforeach()
endif()

if(fccl_have_cuda)
  file(GLOB sources CONFIGURE_DEPENDS kernels/cuda/*.cu kernels/cuda/*.cc)
  if(sources)
    add_library(fccl_kernels_cuda OBJECT ${sources})
    target_link_libraries(fccl_kernels_cuda PRIVATE fccl_internal)
    target_include_directories(fccl_kernels_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    list(APPEND fccl_objects fccl_kernels_cuda)
  endif()
endif()

set(fccl_all_objects "")
foreach(layer ${fccl_objects})
  list(APPEND fccl_all_objects $<TARGET_OBJECTS:${layer}>)
endforeach()

add_library(fccl_static STATIC ${fccl_all_objects})
target_link_libraries(fccl_static PUBLIC fccl_internal PkgConfig::hwloc Threads::Threads ${CMAKE_DL_LIBS})
if(fccl_have_cuda)
  target_link_libraries(fccl_static PUBLIC CUDA::cudart_static)
endif()

add_library(fccl SHARED ${fccl_all_objects})
add_library(fccl::fccl ALIAS fccl)
set(fccl_version_script ${CMAKE_SOURCE_DIR}/cmake/fccl.map)
target_include_directories(fccl PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                                       $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(fccl PRIVATE $<BUILD_INTERFACE:fccl_fmt> $<BUILD_INTERFACE:PkgConfig::hwloc>
                                   $<BUILD_INTERFACE:Threads::Threads> ${CMAKE_DL_LIBS})
if(fccl_have_cuda)
  # It loads libcuda.so.1 itself, when it is first asked.
  target_link_libraries(fccl PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
endif()
target_link_options(fccl PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${fccl_version_script})
if(NOT FCCL_SANITIZE)
  target_link_options(fccl PRIVATE -Wl,--no-undefined)
endif()

# libfccl-nccl.so, for LD_PRELOAD: NCCL's functions, served by libfccl.so where that is faster (lib/shim).
file(GLOB sources CONFIGURE_DEPENDS lib/shim/*.cc)
list(FILTER sources EXCLUDE REGEX "/cuda_[a-z_]+\\.cc$")
add_library(fccl_shim OBJECT ${sources})
target_link_libraries(fccl_shim PRIVATE fccl_internal)
add_library(fccl_nccl SHARED lib/shim/cuda_stream_events$<$<NOT:$<BOOL:${fccl_have_cuda}>>:_absent>.cc
                             $<TARGET_OBJECTS:fccl_shim> $<TARGET_OBJECTS:fccl_base>)
target_link_libraries(fccl_nccl PRIVATE fccl_internal fccl Threads::Threads ${CMAKE_DL_LIBS})
if(fccl_have_cuda)
  target_link_libraries(fccl_nccl PRIVATE CUDA::cudart_static)
endif()
target_link_options(fccl_nccl PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/fccl-nccl.map)
set_target_properties(fccl_nccl PROPERTIES OUTPUT_NAME fccl-nccl INSTALL_RPATH "$ORIGIN")

set_target_properties(fccl PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINKER_LANGUAGE CXX
                                      LINK_DEPENDS ${fccl_version_script})
