# SPDX-License-Identifier: Apache-2.0
# Sets cpu_sources. The vector sources are written once over GCC vectors and compiled once per instruction set, as one object
# library each; GEMM engines are intrinsics, one source an instruction set.
set(cpu_vector_sources
    activation_stage.cpp
    attention/attention.cpp
    attention/attention_gradient.cpp
    elementwise.cpp
    elementwise/dropout.cpp
    elementwise/fake_quantize_tokens.cpp
    embedding.cpp
    fake_quantize.cpp
    gate_rows.cpp
    head/head_stage.cpp
    int8/coding.cpp
    join_heads.cpp
    loss.cpp
    moe.cpp
    norm/layer_norm.cpp
    norm/norm.cpp
    norm/norm_statistics.cpp
    optimizer/optimizer.cpp
    pack.cpp
    rope.cpp
    router.cpp
    sparse/csr.cpp
    sparse/pack_sparse.cpp)
# Those that gain from instructions of AVX512-BF16.
set(cpu_vector_sources_avx512_bf16 attention/attention.cpp attention/attention_gradient.cpp elementwise.cpp activation_stage.cpp)
set(cpu_sources
    cpu/attention/attention_buffers.cpp
    cpu/attention/attention_lists.cpp
    cpu/attention/attention_shape.cpp
    cpu/call.cpp
    cpu/copies.cpp
    cpu/gemm.cpp
    cpu/gemm_amx_bf16.cpp
    cpu/gemm_avx2.cpp
    cpu/gemm_avx512.cpp
    cpu/gemm_avx512_bf16.cpp
    cpu/gemm_portable.cpp
    cpu/head/head_call.cpp
    cpu/head/head_float.cpp
    cpu/head/head_int8.cpp
    cpu/head/head_loss.cpp
    cpu/head/head_tiling.cpp
    cpu/int8/avx2.cpp
    cpu/int8/avx512_vnni.cpp
    cpu/int8/avx_vnni.cpp
    cpu/int8/int8_operand.cpp
    cpu/int8/operands.cpp
    cpu/int8/portable.cpp
    cpu/linear.cpp
    cpu/linear_activation.cpp
    cpu/linear_many.cpp
    cpu/optimizer/rows.cpp
    cpu/route_sort.cpp
    cpu/scalars.cpp
    cpu/sparse/sparse_call.cpp
    cpu/sparse/sparse_rows.cpp
    cpu/table.cpp
    cpu/widened/widened_rows.cpp
    cpu/workspace.cpp)

set(cpu_variants portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND cpu_variants avx2 avx512 avx512_bf16)
  set(cpu_flags_avx2 -mavx2 -mfma -mf16c)
  # -Wno-maybe-uninitialized, -Wno-uninitialized: g++ 12 reports its own AVX-512 headers (GCC bug 105593).
  set(cpu_flags_avx512
      -mavx2
      -mfma
      -mf16c
      -mavx512f
      -mavx512bw
      -mavx512dq
      -mavx512vl
      -mprefer-vector-width=512
      -Wno-maybe-uninitialized
      -Wno-uninitialized)
  set(cpu_flags_avx512_bf16 ${cpu_flags_avx512} -mavx512bf16)
  set(cpu_flags_amx_bf16 ${cpu_flags_avx512_bf16} -mamx-tile -mamx-bf16)
  set_source_files_properties(cpu/gemm_amx_bf16.cpp PROPERTIES COMPILE_OPTIONS "${cpu_flags_amx_bf16}")
  set_source_files_properties(cpu/gemm_avx2.cpp PROPERTIES COMPILE_OPTIONS "${cpu_flags_avx2}")
  set_source_files_properties(cpu/gemm_avx512.cpp PROPERTIES COMPILE_OPTIONS "${cpu_flags_avx512}")
  set_source_files_properties(cpu/gemm_avx512_bf16.cpp PROPERTIES COMPILE_OPTIONS "${cpu_flags_avx512_bf16}")
  set_source_files_properties(cpu/int8/avx2.cpp PROPERTIES COMPILE_OPTIONS "${cpu_flags_avx2}")
  set_source_files_properties(cpu/int8/avx_vnni.cpp PROPERTIES COMPILE_OPTIONS "${cpu_flags_avx2};-mavxvnni")
  set_source_files_properties(cpu/int8/avx512_vnni.cpp PROPERTIES COMPILE_OPTIONS "${cpu_flags_avx512};-mavx512vnni")
  set_source_files_properties(cpu/head/head_loss.cpp cpu/linear_activation.cpp cpu/table.cpp PROPERTIES COMPILE_DEFINITIONS ANABATIC_CPU_X86)
endif()
foreach(variant IN LISTS cpu_variants)
  set(variant_sources ${cpu_vector_sources})
  if(DEFINED cpu_vector_sources_${variant})
    set(variant_sources ${cpu_vector_sources_${variant}})
  endif()
  list(TRANSFORM variant_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
  add_library(anabatic_kernels_cpu_${variant} OBJECT ${variant_sources})
  target_link_libraries(anabatic_kernels_cpu_${variant} PRIVATE anabatic_device)
  anabatic_fit_for_sharing(anabatic_kernels_cpu_${variant})
  target_compile_options(anabatic_kernels_cpu_${variant} PRIVATE $<$<CONFIG:Release>:-O3> -fno-math-errno ${cpu_flags_${variant}})
  # One source for all: what is undefined in it shows in the portable variant, at a third of the compilation.
  if(ANABATIC_SANITIZE MATCHES "undefined" AND NOT variant STREQUAL "portable")
    target_compile_options(anabatic_kernels_cpu_${variant} PRIVATE -fno-sanitize=undefined)
  endif()
  # Kernels are long functions of many accesses. Beyond this number g++ checks them by calls: attention_gradient.cpp
  # compiles in 6.5 s of CPU time in place of 17.5.
  if(ANABATIC_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(anabatic_kernels_cpu_${variant} PRIVATE --param=asan-instrumentation-with-call-threshold=100)
  endif()
  list(APPEND cpu_sources $<TARGET_OBJECTS:anabatic_kernels_cpu_${variant}>)
endforeach()
