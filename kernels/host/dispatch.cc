#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/host/host_kernels.h"
#include "kernels/host/kernel_tables.h"

namespace fccl::host {
namespace {

using FloatLookup = Kernel (*)(Protocol protocol, Wire wire, bool norm, int ranks);

FloatLookup floatLookup(Simd simd, fcclDataType_t dtype) {
  const int type = dtype == fcclFloat32 ? 0 : dtype == fcclBfloat16 ? 1 : 2;
#if defined(__x86_64__)
  static constexpr FloatLookup kTable[3][3] = {{fp32KernelGeneric, bf16KernelGeneric, fp16KernelGeneric},
                                               {fp32KernelAvx2, bf16KernelAvx2, fp16KernelAvx2},
                                               {fp32KernelAvx512, bf16KernelAvx512, fp16KernelAvx512}};
  return kTable[static_cast<int>(simd)][type];
#else
  (void)simd;
  static constexpr FloatLookup kTable[3] = {fp32KernelGeneric, bf16KernelGeneric, fp16KernelGeneric};
  return kTable[type];
#endif
}

Kernel lowPrecisionKernel(Simd simd, fcclDataType_t dtype, bool norm) {
#if defined(__x86_64__)
  if (simd == Simd::kAvx512) return lowPrecisionKernelAvx512(dtype, norm);
  if (simd == Simd::kAvx2) return lowPrecisionKernelAvx2(dtype, norm);
#else
  (void)simd;
#endif
  return lowPrecisionKernelGeneric(dtype, norm);
}

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows this name. That the system keeps the registers comes with avx2.
bool hasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

bool simdAvailable(Simd simd) {
#if defined(__x86_64__)
  switch (simd) {
    case Simd::kGeneric: return true;
    case Simd::kAvx2: return __builtin_cpu_supports("avx2") && hasF16c();
    case Simd::kAvx512:
      return simdAvailable(Simd::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return simd == Simd::kGeneric;
#endif
}

Simd bestSimd() {
  if (simdAvailable(Simd::kAvx512)) return Simd::kAvx512;
  return simdAvailable(Simd::kAvx2) ? Simd::kAvx2 : Simd::kGeneric;
}

const char* simdName(Simd simd) {
  switch (simd) {
    case Simd::kGeneric: return "generic";
    case Simd::kAvx2: return "avx2";
    case Simd::kAvx512: return "avx512";
  }
  return "?";
}

Kernel findKernel(Simd simd, Protocol protocol, Wire wire, fcclDataType_t dtype, fcclRedOp_t op, bool norm, int ranks) {
  const bool smallFloat = dtype == fcclFloat32 || dtype == fcclFloat16 || dtype == fcclBfloat16;
  if (protocol == Protocol::kLowPrecision) {
    return smallFloat && op == fcclSum && wire == Wire::kFlags ? lowPrecisionKernel(simd, dtype, norm) : nullptr;
  }
  if (smallFloat && op == fcclSum) return floatLookup(simd, dtype)(protocol, wire, norm, ranks);
  if (norm || wire == Wire::kLamport) return nullptr;
  return reduceKernel(protocol);
}

size_t dtypeBytes(fcclDataType_t dtype) {
  switch (dtype) {
    case fcclInt8:
    case fcclUint8: return 1;
    case fcclFloat16:
    case fcclBfloat16: return 2;
    case fcclInt32:
    case fcclUint32:
    case fcclFloat32: return 4;
    case fcclInt64:
    case fcclUint64:
    case fcclFloat64: return 8;
  }
  return 0;
}

const char* dtypeName(fcclDataType_t dtype) {
  switch (dtype) {
    case fcclInt8: return "int8";
    case fcclUint8: return "uint8";
    case fcclInt32: return "int32";
    case fcclUint32: return "uint32";
    case fcclInt64: return "int64";
    case fcclUint64: return "uint64";
    case fcclFloat16: return "fp16";
    case fcclFloat32: return "fp32";
    case fcclFloat64: return "fp64";
    case fcclBfloat16: return "bf16";
  }
  return "unknown";
}

}  // namespace fccl::host
