# tests/<folder>/*.cc is one program per folder, each of its test cases a test of CTest that carries the folder's name as
# its label. tests/support is linked into all of them.
find_package(Catch2 QUIET)
if(NOT Catch2_FOUND)
  message(FATAL_ERROR "Catch2 is missing (package catch2).")
endif()
# Version 2 finds its Catch.cmake through Catch2_DIR, version 3 adds the folder itself.
list(APPEND CMAKE_MODULE_PATH ${Catch2_DIR})
include(Catch)

# Most of the time of a build is Catch2's in the tests, which need no speed of their own.
set(fccl_test_optimization $<$<COMPILE_LANGUAGE:CXX>:-O1>)

# Sanitizers slow everything down.
set(fccl_timeout_factor 1)
if(FCCL_SANITIZE)
  set(fccl_timeout_factor 6)
endif()

file(GLOB fccl_support_sources CONFIGURE_DEPENDS tests/support/*.cc)
list(FILTER fccl_support_sources EXCLUDE REGEX "/(catch_main|main)\\.cc$")
add_library(fccl_test_support STATIC ${fccl_support_sources})
target_link_libraries(fccl_test_support PUBLIC fccl_static Catch2::Catch2)
target_compile_options(fccl_test_support PRIVATE ${fccl_test_optimization})
target_compile_definitions(fccl_test_support PUBLIC FCCL_SOURCE_DIR="${CMAKE_SOURCE_DIR}" FCCL_BINARY_DIR="${CMAKE_BINARY_DIR}")

# Tests that are part of the unit tests on HOST and of the GPU tests on a GPU.
file(GLOB fccl_suite_sources CONFIGURE_DEPENDS tests/suites/*.cc)

# A folder's own main.cc, else tests/support/main.cc, else catch_main.cc.
function(fccl_test_folder folder timeout)
  file(GLOB sources CONFIGURE_DEPENDS tests/${folder}/*.cc)
  if(folder MATCHES "unit|gpu")
    list(APPEND sources ${fccl_suite_sources})
  endif()
  if(FCCL_TEST_FILES)
    list(FILTER sources INCLUDE REGEX "${FCCL_TEST_FILES}")
  endif()
  if(NOT sources)
    return()
  endif()
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/tests/${folder}/main.cc)
    if(EXISTS ${CMAKE_SOURCE_DIR}/tests/support/main.cc)
      list(APPEND sources tests/support/main.cc)
    else()
      list(APPEND sources tests/support/catch_main.cc)
    endif()
  endif()
  set(program fccl-${folder}-tests)
  add_executable(${program} ${sources})
  target_link_libraries(${program} PRIVATE fccl_test_support)
  target_compile_options(${program} PRIVATE ${fccl_test_optimization})
  target_precompile_headers(${program} PRIVATE <fmt/format.h> <chrono> <memory> <string> <thread> <vector>
                                               ${CMAKE_SOURCE_DIR}/tests/support/catch.h)
  if(folder STREQUAL "gpu")
    file(GLOB device_sources CONFIGURE_DEPENDS tests/gpu/*.cu)
    target_sources(${program} PRIVATE ${device_sources})
  endif()
  fccl_discover_tests(${program} ${folder} ${timeout})
endfunction()

# Exit code 4 is a test that said FCCL_SKIP and did not fail: CTest reports it as skipped.
function(fccl_discover_tests program label timeout)
  math(EXPR timeout "${timeout} * ${fccl_timeout_factor}")
  set(properties TIMEOUT ${timeout} LABELS ${label} SKIP_RETURN_CODE 4)
  if(NOT label STREQUAL "unit")
    list(APPEND properties PROCESSORS 2)
  endif()
  # Tests of one GPU count its free memory, and wait for each other's kernels if they must share it.
  if(label STREQUAL "gpu")
    list(APPEND properties RESOURCE_LOCK gpu)
  endif()
  catch_discover_tests(${program} TEST_PREFIX "${label}/" PROPERTIES ${properties})
endfunction()

# fccl-perf. Its parts are linked into the unit tests as well.
file(GLOB sources CONFIGURE_DEPENDS tests/perf/*.cc)
list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
list(APPEND sources tools/words.cc)
if(fccl_have_cuda)
  list(FILTER sources EXCLUDE REGEX "/cuda_absent\\.cc$")
  list(APPEND sources tests/perf/cuda/cuda_perf.cc tests/perf/cuda/nccl.cc tests/perf/cuda/kernel_gate.cu)
endif()
if(sources)
  add_library(fccl_perf_parts STATIC ${sources})
  target_link_libraries(fccl_perf_parts PUBLIC fccl_static $<$<TARGET_EXISTS:fccl_mpi>:fccl_mpi>)
  target_compile_definitions(fccl_perf_parts INTERFACE FCCL_PERF_PARTS=1)
  if(FCCL_SANITIZE)
    target_compile_options(fccl_perf_parts PRIVATE -Wno-uninitialized)  # GCC's own headers of AVX-512
  endif()
  add_executable(fccl-perf tests/perf/main.cc)
  target_link_libraries(fccl-perf PRIVATE fccl_perf_parts)
  add_test(NAME "perf/no figure under the name of a strategy that cannot do the call"
           COMMAND fccl-perf --launch threads --ranks 2 --strategy ub -b 16K -e 16K)
  set_tests_properties("perf/no figure under the name of a strategy that cannot do the call" PROPERTIES LABELS unit
                       TIMEOUT 60 PASS_REGULAR_EXPRESSION "# plain float sum 16 KiB, ub: UB cannot serve this: UB needs"
                       FAIL_REGULAR_EXPRESSION "16384 +4096;Avg bus")
  add_executable(fccl-make-table tests/perf/make_table/main.cc)
  target_link_libraries(fccl-make-table PRIVATE fccl_perf_parts)
  if(fccl_have_cuda)
    # Launch shapes of the CUDA kernels, by which the planner was made.
    add_executable(fccl-kernel-shapes tests/perf/cuda/kernel_shapes.cc)
    target_link_libraries(fccl-kernel-shapes PRIVATE fccl_perf_parts)
  endif()
  # The commit, for the report; as of the last configuration.
  execute_process(COMMAND git describe --always --dirty WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE fccl_git
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(fccl_git)
    set_source_files_properties(tests/perf/main.cc PROPERTIES COMPILE_DEFINITIONS FCCL_GIT_DESCRIBE="${fccl_git}")
  endif()

  # What the template over Team costs: its kernels against hand-written loops.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    add_executable(fccl-team-overhead tests/perf/team_overhead/main.cc tests/perf/team_overhead/hand_written_avx512.cc)
    target_link_libraries(fccl-team-overhead PRIVATE fccl_perf_parts)
    set_source_files_properties(
      tests/perf/team_overhead/hand_written_avx512.cc
      PROPERTIES COMPILE_OPTIONS "${avx512};${fccl_kernel_optimization};-ffp-contract=off;-fno-math-errno")
  endif()
endif()

# Compiles kernels of its own, without vector registers as long as theirs.
set_source_files_properties(tests/unit/test_mutations.cc PROPERTIES COMPILE_OPTIONS "-ffp-contract=off;-Wno-psabi")
# A stand-in for NCCL as its own library, and one that is linked into an engine's and has no windows.
foreach(name nccl engine)
  set(suffix .so)
  if(name STREQUAL "nccl")
    set(suffix .so.2)
  endif()
  add_library(fake_${name} MODULE tests/fake_nccl/fake_nccl.cc)
  target_include_directories(fake_${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(fake_${name} PRIVATE Threads::Threads -Wl,-soname,lib${name}${suffix})
  set_target_properties(fake_${name} PROPERTIES PREFIX "" OUTPUT_NAME lib${name} SUFFIX ${suffix}
                                                LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_nccl)
endforeach()
target_compile_definitions(fake_engine PRIVATE FAKE_NCCL_WITHOUT_WINDOWS=1)
# The shim with FCCL communicators on HOST.
add_library(fake_shim MODULE tests/fake_nccl/host_comms.cc lib/shim/cuda_stream_events_absent.cc
                             $<TARGET_OBJECTS:fccl_shim> $<TARGET_OBJECTS:fccl_base>)
target_link_libraries(fake_shim PRIVATE fccl_internal fccl Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(fake_shim PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/fccl-nccl.map)
set_target_properties(fake_shim PROPERTIES PREFIX "" OUTPUT_NAME libfccl-nccl-host
                                           LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_nccl)
add_executable(fccl-which-nccl tests/fake_nccl/which_nccl.cc)
target_link_libraries(fccl-which-nccl PRIVATE fccl_static)

fccl_test_folder(unit 60)
if(TARGET fccl-unit-tests)
  add_dependencies(fccl-unit-tests fake_nccl fake_engine fake_shim fccl-which-nccl fccl_nccl)
endif()
if(TARGET fccl-unit-tests AND TARGET fccl_perf_parts)
  target_link_libraries(fccl-unit-tests PRIVATE fccl_perf_parts)
endif()
fccl_test_folder(multi 120)
if(TARGET fccl-multi-tests)
  # The calls that tests/support/failing_calls.cc lets fail.
  foreach(call accept4 bind connect eventfd fallocate fchmod fcntl fstat ftruncate gethostname getifaddrs getrandom
               getsockname getsockopt linkat listen madvise memfd_create mmap open opendir poll read recv recvmsg sendmsg
               setsockopt socket stat statvfs)
    target_link_options(fccl-multi-tests PRIVATE -Wl,--wrap=${call})
  endforeach()
endif()
fccl_test_folder(stress 240)
if(fccl_have_cuda)
  fccl_test_folder(gpu 120)
  if(TARGET fccl-gpu-tests)
    target_sources(fccl-gpu-tests PRIVATE lib/shim/cuda_stream_events.cc)
  endif()
endif()

# Programs in C that see what a user sees: fccl.h as C99, and libfccl.so.
file(GLOB sources CONFIGURE_DEPENDS tests/abi/*.c)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(fccl-abi-${name} ${source})
  target_compile_options(fccl-abi-${name} PRIVATE -Wall -Wextra -pedantic -Werror)
  target_link_libraries(fccl-abi-${name} PRIVATE fccl Threads::Threads)
  add_test(NAME "abi/${name}" COMMAND fccl-abi-${name})
  set_tests_properties("abi/${name}" PROPERTIES LABELS unit TIMEOUT 60)
endforeach()

# What libfccl.so exports and needs. A sanitizer adds libraries of its own.
add_test(NAME "abi/exported symbols" COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:fccl> -DTOOL=${CMAKE_NM}
                                              -P ${CMAKE_SOURCE_DIR}/cmake/CheckExports.cmake)
set_tests_properties("abi/exported symbols" PROPERTIES LABELS unit TIMEOUT 60)
if(NOT FCCL_SANITIZE)
  add_test(NAME "abi/needed libraries" COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:fccl> -DTOOL=${CMAKE_READELF}
                                                -P ${CMAKE_SOURCE_DIR}/cmake/CheckNeeded.cmake)
  set_tests_properties("abi/needed libraries" PROPERTIES LABELS unit TIMEOUT 60)
endif()

add_test(NAME "docs/program in the README" COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR}
                                                   -P ${CMAKE_SOURCE_DIR}/cmake/CheckReadme.cmake)
set_tests_properties("docs/program in the README" PROPERTIES LABELS unit TIMEOUT 60)

# Programs of tests/mpi run under mpirun. Open MPI itself is not clean under the sanitizers.
if(TARGET fccl_mpi AND NOT FCCL_SANITIZE)
  file(GLOB sources CONFIGURE_DEPENDS tests/mpi/*.cc)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(fccl-mpi-${name} ${source})
    target_link_libraries(fccl-mpi-${name} PRIVATE fccl_internal fccl fccl_mpi)
    add_test(NAME "mpi/${name}" COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe -np 4 $<TARGET_FILE:fccl-mpi-${name}>)
    set_tests_properties("mpi/${name}" PROPERTIES LABELS multi TIMEOUT 120 PROCESSORS 2
                         ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
  endforeach()
endif()
