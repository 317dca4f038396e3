# Compiler settings for every target of the project, and the optional CUDA language.

include(CheckLanguage)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Sets VCATTN_NVCC_PROBLEM to what keeps the CUDA parts from being built, empty if nothing does.
function(vcattn_check_nvcc)
  set(minimum 12.5)  # the first with everything that the sources use: C++20 on the device, sm_90a
  set(problem "")
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(problem "no working nvcc was found")
  else()
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE text)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${text}")
    if(NOT found OR CMAKE_MATCH_1 VERSION_LESS minimum)
      set(problem "nvcc ${minimum} or later is needed, ${CMAKE_CUDA_COMPILER} is ${CMAKE_MATCH_1}")
    endif()
  endif()
  set(VCATTN_NVCC_PROBLEM "${problem}" PARENT_SCOPE)
endfunction()

set(VCATTN_HAVE_CUDA OFF)
if(NOT VCATTN_CUDA STREQUAL "OFF")
  vcattn_check_nvcc()
  if(NOT VCATTN_NVCC_PROBLEM)
    # wgmma and setmaxnreg exist for the architecture-specific target only.
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know the flag
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(VCATTN_HAVE_CUDA ON)
  elseif(VCATTN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "VCATTN_CUDA=ON: ${VCATTN_NVCC_PROBLEM}; install the CUDA toolkit, or configure with -DVCATTN_CUDA=AUTO")
  else()
    message(STATUS "vcattn: without CUDA: ${VCATTN_NVCC_PROBLEM}")
  endif()
endif()
if(VCATTN_HAVE_CUDA)
  message(STATUS "vcattn: nvcc found, the kernels for sm_90a are built")
endif()

add_library(vcattn_compile_options INTERFACE)
# Contraction is off: where a fused multiply-add belongs, the code says so. CPU and GPU agree to the bit because of it.
target_compile_options(vcattn_compile_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -ffp-contract=off>
  # GCC 12 sees overlapping copies in plain std::string concatenation (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
  $<$<AND:$<BOOL:${VCATTN_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -Xcompiler=-Wall,-Wextra>
  $<$<AND:$<BOOL:${VCATTN_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:--Werror=all-warnings>)
if(VCATTN_SANITIZE)
  target_compile_options(vcattn_compile_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(vcattn_compile_options INTERFACE -fsanitize=address,undefined)
endif()

# One layer of the library: a static library that sees only the layers it names.
function(vcattn_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(vcattn_${name} STATIC ${ARG_SOURCES})
  target_include_directories(vcattn_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(vcattn_${name} PUBLIC ${ARG_LINK} PRIVATE vcattn_compile_options)
endfunction()

# Appends to OUT a CUDA translation unit that is SOURCE after the given definitions ("NAME value" each).
function(vcattn_cuda_instance OUT NAME SOURCE)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.cu)
  list(TRANSFORM ARGN PREPEND "#define ")
  list(JOIN ARGN "\n" definitions)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT "${definitions}\n#include \"${SOURCE}\"\n")
  set(${OUT} ${${OUT}} ${generated} PARENT_SCOPE)
endfunction()

# Compiles SOURCE once per instruction set and appends the results to OUT. Inside, VCATTN_ISA is the name of the set (baseline, avx2, avx512):
# everything the source defines must live in a namespace of that name, and it must not instantiate templates that other sources share.
function(vcattn_isa_sources OUT SOURCE)
  set(names baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND names avx2 avx512)
  endif()
  set(flags_baseline "")
  set(flags_avx2 -march=x86-64-v3)
  # GCC 12 warns about its own AVX-512 intrinsics (_mm256_undefined_pd).
  set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512 -Wno-maybe-uninitialized -Wno-uninitialized)
  get_filename_component(stem ${SOURCE} NAME_WE)
  set(result ${${OUT}})
  foreach(name IN LISTS names)
    set(generated ${CMAKE_CURRENT_BINARY_DIR}/${stem}_${name}.cpp)
    file(CONFIGURE OUTPUT ${generated} CONTENT "#define VCATTN_ISA ${name}\n#include \"${SOURCE}\"\n" @ONLY)
    set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS "${flags_${name}}")
    list(APPEND result ${generated})
  endforeach()
  set(${OUT} ${result} PARENT_SCOPE)
endfunction()
