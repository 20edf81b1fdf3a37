#include <algorithm>
#include <span>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/window_forms.h"

namespace fccl::cuda {
namespace {

__global__ void armKernel(uint4* words, uint64_t count) {
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    words[i] = make_uint4(kSentinel, kSentinel, kSentinel, kSentinel);
  }
}

template <class D>
const void* findTyped(const Form& form) {
  if (form.local) return findLocalKernel<D>(form);
  if (form.sharded) return findShardedKernel<D>(form);
  if (form.protocol == Protocol::kLowPrecision) return findLowPrecisionKernel<D>(form);
  if (form.cluster) return findClusterKernel<D>(form);
  if (form.norm && form.protocol == Protocol::kOneshot) return findRowKernel<D>(form);
  return findPlainKernel<D>(form);
}

cudaError_t enqueue(const Launch& launch, const CudaWorld& world, const RowArgs& rows, const Windows* windows,
                    cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = static_cast<size_t>(launch.sharedBytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[3];
  config.attrs = attributes;
  if (launch.cluster != 0) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
  }
  if (launch.programmatic) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.remoteDomain) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeMemSyncDomain;
    attribute.val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  }
  // As many as the kernel takes: only those for user buffers take the third.
  void* arguments[] = {const_cast<CudaWorld*>(&world), const_cast<RowArgs*>(&rows), const_cast<Windows*>(windows)};
  return cudaLaunchKernelExC(&config, launch.kernel, arguments);
}

// All ranks take as many of their own rows at a time.
cudaError_t launchSharded(const Launch& launch, const CudaWorld& world, const RowArgs& rows, cudaStream_t stream) {
  RowArgs part = rows;
  const int64_t most = ownRows(rows.rows, world.ranks, 0).count;
  const int64_t step = (launch.rowsPerLaunch + world.ranks - 1) / world.ranks;
  for (; part.ownFirst < most; part.ownFirst += step) {
    part.ownCount = std::min(step, most - part.ownFirst);
    if (const cudaError_t error = enqueue(launch, world, part, nullptr, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

const char* advanced(const void* p, int64_t bytes) {
  return p == nullptr ? nullptr : static_cast<const char*>(p) + bytes;
}
template <class T>
void advance(T*& p, int64_t bytes) {
  p = reinterpret_cast<T*>(const_cast<char*>(advanced(p, bytes)));
}

// Rows [first, first + count) of a call with norm; without, columns.
RowArgs partOf(const RowArgs& all, int64_t first, int64_t count, int64_t bytesPerElement) {
  RowArgs part = all;
  const bool norm = all.weight != nullptr;
  const int64_t elements = norm ? first * all.cols : first;
  for (void** p : {const_cast<void**>(&part.input), const_cast<void**>(&part.residual), &part.reducedOut,
                   &part.residualOut, &part.normOut}) {
    advance(*p, elements * bytesPerElement);
  }
  advance(part.quantOut, all.quant == QuantKind::kNvfp4 ? elements / 2 : elements);
  if (norm) {
    part.rows = count;
    part.firstRow = first;
  } else {
    part.cols = count;
  }
  return part;
}

}  // namespace

const void* findKernel(fcclDataType_t dtype, const Form& form) {
  switch (dtype) {
    case fcclBfloat16: return findTyped<Bf16>(form);
    case fcclFloat16: return findTyped<Fp16>(form);
    case fcclFloat32: return findTyped<Fp32>(form);
    default: return nullptr;
  }
}

const void* findWindowKernel(fcclDataType_t dtype, const Form& form) {
  switch (dtype) {
    case fcclBfloat16: return findTypedWindowKernel<Bf16>(form);
    case fcclFloat16: return findTypedWindowKernel<Fp16>(form);
    case fcclFloat32: return findTypedWindowKernel<Fp32>(form);
    default: return nullptr;
  }
}

// Makes one kernel ready, and lets it have what shared memory it may need.
static cudaError_t loadKernel(const void* kernel, const Form& form, int sharedPerBlock, bool sharedDevice) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess && sharedDevice) {
    error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  if (error != cudaSuccess || !form.staged() || attributes.ptxVersion < 90) return error;
  return cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
      std::min(stageBytes(form, form.maxThreads()), sharedPerBlock - static_cast<int>(attributes.sharedSizeBytes)));
}

cudaError_t load(bool sharedDevice) {
  int device = 0;
  int sharedPerBlock = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&sharedPerBlock, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error != cudaSuccess) return error;
  for (const fcclDataType_t dtype : {fcclBfloat16, fcclFloat16, fcclFloat32}) {
    for (const Form& form : kWindowForms) {
      error = loadKernel(findWindowKernel(dtype, form), Form(), sharedPerBlock, sharedDevice);
      if (error != cudaSuccess) return error;
    }
    for (const std::span<const Form> forms : {std::span<const Form>(kClusterForms),
                                              {kRowForms},
                                              {kPlainForms},
                                              {kShardedForms},
                                              {kLocalForms},
                                              {kLowPrecisionForms}}) {
      for (const Form& form : forms) {
        error = loadKernel(findKernel(dtype, form), form, sharedPerBlock, sharedDevice);
        if (error != cudaSuccess) return error;
      }
    }
  }
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, armKernel);
}

cudaError_t arm(char* memory, uint64_t bytes, cudaStream_t stream) {
  armKernel<<<256, 256, 0, stream>>>(reinterpret_cast<uint4*>(memory), bytes / 16);
  return cudaGetLastError();
}

cudaError_t launch(const Launch& launch, fcclDataType_t dtype, const CudaWorld& world, const RowArgs& rows,
                   cudaStream_t stream, const Windows* windows) {
  RowArgs all = rows;
  if (all.weight == nullptr) {
    all.cols *= all.rows;
    all.rows = 1;
  }
  all.allRows = all.rows;
  if (all.residualSharded) return launchSharded(launch, world, all, stream);
  const int64_t total = all.weight != nullptr ? all.rows : all.cols;
  if (total <= launch.rowsPerLaunch) return enqueue(launch, world, all, windows, stream);
  for (int64_t first = 0; first < total; first += launch.rowsPerLaunch) {
    const RowArgs part =
        partOf(all, first, std::min(launch.rowsPerLaunch, total - first), static_cast<int64_t>(elementBytes(dtype)));
    if (const cudaError_t error = enqueue(launch, world, part, windows, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launchEpilogue(const Launch& launch, fcclDataType_t dtype, const CudaWorld& world, const RowArgs& rows,
                           int64_t first, int64_t count, const void* sums, cudaStream_t stream) {
  RowArgs all = rows;
  all.allRows = all.rows;
  const auto bytes = static_cast<int64_t>(elementBytes(dtype));
  for (int64_t done = 0; done < count; done += launch.rowsPerLaunch) {
    RowArgs part = partOf(all, first + done, std::min(launch.rowsPerLaunch, count - done), bytes);
    part.input = advanced(sums, done * all.cols * bytes);
    if (const cudaError_t error = enqueue(launch, world, part, nullptr, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fccl::cuda
