#include "transport/cuda_block.h"

#include <fcntl.h>

#include <vector>

#include "base/log.h"
#include "transport/machine.h"

namespace fccl {
namespace {

// What the driver shares is whole pages of this size; a smaller cudaMalloc block would be shared with its neighbours.
constexpr size_t kPage = size_t{2} << 20;

Status roundUp(size_t bytes, size_t unit, size_t* rounded) {
  if (!__builtin_add_overflow(bytes, unit - 1, rounded)) {
    *rounded = *rounded / unit * unit;
    return {};
  }
  return failure(fcclInvalidArgument, "{} bytes of GPU memory are more than an address can count", bytes);
}

Status noMemory(int device, size_t bytes, const Status& why) {
  size_t free = 0;
  size_t total = 0;
  const CurrentDevice current(device);
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) (void)cudaGetLastError();
  return failure(
      why.code(),
      "GPU {} has {} of {} free, and {} are needed; make FCCL_CUDA_WORKSPACE_BYTES or the window smaller, or "
      "free other memory: {}",
      device, describeBytes(free), describeBytes(total), describeBytes(bytes), why.message());
}

// Physical memory of the driver under a range of addresses of its own.
class VmmBlock final : public CudaBlock {
 public:
  explicit VmmBlock(const CudaDriver& driver) : driver_(driver) {}
  ~VmmBlock() override {
    // Results are of no use here: nothing could be done about a failure.
    if (mapped_) driver_.memUnmap(address_, bytes_);
    if (address_ != 0) driver_.memAddressFree(address_, bytes_);
    if (held_) driver_.memRelease(handle_);
  }

  Status create(int device, size_t bytes) {
    device_ = device;
    FCCL_TRY(demandSupport());
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    size_t unit = 0;
    FCCL_CUDA(driver_.memGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    FCCL_TRY(roundUp(bytes, unit, &bytes_));
    if (const CUresult code = driver_.memCreate(&handle_, bytes_, &properties, 0); code != CUDA_SUCCESS) {
      const Status why = cudaFailure(code, "cuMemCreate", __FILE_NAME__, __LINE__);
      return code == CUDA_ERROR_OUT_OF_MEMORY ? noMemory(device, bytes_, why) : why;
    }
    held_ = true;
    return map();
  }

  Status import(int descriptor, size_t bytes, int device) {
    device_ = device;
    bytes_ = bytes;
    FCCL_CUDA(driver_.memImportFromShareableHandle(&handle_, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    held_ = true;
    return map();
  }

  bool hasDescriptor() const override { return true; }

  Status admit(std::span<const int> devices) override {
    std::vector<CUmemAccessDesc> access;
    for (const int device : devices) {
      CUmemAccessDesc& each = access.emplace_back();
      each.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      each.location.id = device;
      each.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    FCCL_CUDA(driver_.memSetAccess(address_, bytes_, access.data(), access.size()));
    return {};
  }

  Status publish(CudaTicket* ticket, Fd* descriptor) const override {
    ticket->bytes = bytes_;
    ticket->hasDescriptor = 1;
    int number = -1;
    FCCL_CUDA(driver_.memExportToShareableHandle(&number, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    *descriptor = Fd(number);
    FCCL_SYS(::fcntl(number, F_SETFD, FD_CLOEXEC));
    return {};
  }

 private:
  Status demandSupport() const {
    int vmm = 0;
    int descriptors = 0;
    FCCL_CUDA(driver_.deviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device_));
    FCCL_CUDA(driver_.deviceGetAttribute(&descriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                         device_));
    if (vmm != 0 && descriptors != 0) return {};
    return failure(fcclSystemError, "GPU {} has {}", device_,
                   vmm == 0 ? "no virtual memory management" : "no memory that a file descriptor can stand for");
  }

  Status map() {
    FCCL_CUDA(driver_.memAddressReserve(&address_, bytes_, 0, 0, 0));
    FCCL_CUDA(driver_.memMap(address_, bytes_, 0, handle_, 0));
    mapped_ = true;
    data_ = reinterpret_cast<char*>(address_);
    return admit({&device_, 1});
  }

  const CudaDriver& driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool held_ = false;
  bool mapped_ = false;
};

class PlainBlock final : public CudaBlock {
 public:
  ~PlainBlock() override {
    const CurrentDevice current(device_);
    if (data_ != nullptr) cudaFree(data_);
  }

  Status create(int device, size_t bytes) {
    device_ = device;
    FCCL_TRY(roundUp(bytes, kPage, &bytes_));
    const CurrentDevice current(device);
    FCCL_CUDA(current.code());
    void* made = nullptr;
    if (const cudaError_t code = cudaMalloc(&made, bytes_); code != cudaSuccess) {
      const Status why = cudaFailure(code, "cudaMalloc", __FILE_NAME__, __LINE__);
      return code == cudaErrorMemoryAllocation ? noMemory(device, bytes_, why) : why;
    }
    data_ = static_cast<char*>(made);
    return {};
  }

  bool hasDescriptor() const override { return false; }

  Status admit(std::span<const int> devices) override {
    for (const int device : devices) {
      if (device == device_) continue;
      const CurrentDevice current(device);
      FCCL_CUDA(current.code());
      const cudaError_t code = cudaDeviceEnablePeerAccess(device_, 0);
      if (code == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        continue;
      }
      FCCL_CUDA(code);
    }
    return {};
  }

  Status publish(CudaTicket* ticket, Fd*) const override {
    const CurrentDevice current(device_);
    FCCL_CUDA(current.code());
    ticket->bytes = bytes_;
    FCCL_CUDA(cudaIpcGetMemHandle(&ticket->handle, data_));
    return {};
  }
};

// A block of another process, opened for one GPU.
class OpenedBlock final : public CudaBlock {
 public:
  ~OpenedBlock() override {
    const CurrentDevice current(device_);
    if (data_ != nullptr) cudaIpcCloseMemHandle(data_);
  }

  Status open(const CudaTicket& ticket, int device) {
    device_ = device;
    bytes_ = ticket.bytes;
    const CurrentDevice current(device);
    FCCL_CUDA(current.code());
    void* mapped = nullptr;
    const cudaError_t opened = cudaIpcOpenMemHandle(&mapped, ticket.handle, cudaIpcMemLazyEnablePeerAccess);
    if (opened == cudaErrorDeviceUninitialized) {
      (void)cudaGetLastError();
      return failure(fcclUnhandledCudaError,
                     "cudaIpcOpenMemHandle takes this process for the one that made the memory (\"invalid device "
                     "context\"), as it does where both have one number, each in a process namespace of its own; "
                     "FCCL_CUDA_MEMORY=auto and vmm do without it.");
    }
    if (opened != cudaSuccess) return cudaFailure(opened, "cudaIpcOpenMemHandle", __FILE_NAME__, __LINE__);
    data_ = static_cast<char*>(mapped);
    return {};
  }

  bool hasDescriptor() const override { return false; }
  Status admit(std::span<const int>) override { return {}; }
  Status publish(CudaTicket*, Fd*) const override {
    return failure(fcclInternalError, "a block of another process cannot be shared on");
  }
};

}  // namespace

Result<std::shared_ptr<CudaBlock>> makeVmmBlock(int device, size_t bytes) {
  FCCL_TRY_ASSIGN(const CudaDriver* driver, CudaDriver::get());
  auto block = std::make_shared<VmmBlock>(*driver);
  FCCL_TRY(block->create(device, bytes));
  return std::shared_ptr<CudaBlock>(std::move(block));
}

Result<std::shared_ptr<CudaBlock>> makePlainBlock(int device, size_t bytes) {
  auto block = std::make_shared<PlainBlock>();
  FCCL_TRY(block->create(device, bytes));
  return std::shared_ptr<CudaBlock>(std::move(block));
}

Result<std::shared_ptr<CudaBlock>> importBlock(const CudaTicket& ticket, int descriptor, int device) {
  if (ticket.hasDescriptor == 0) {
    auto block = std::make_shared<OpenedBlock>();
    FCCL_TRY(block->open(ticket, device));
    return std::shared_ptr<CudaBlock>(std::move(block));
  }
  FCCL_TRY_ASSIGN(const CudaDriver* driver, CudaDriver::get());
  auto block = std::make_shared<VmmBlock>(*driver);
  FCCL_TRY(block->import(descriptor, ticket.bytes, device));
  return std::shared_ptr<CudaBlock>(std::move(block));
}

}  // namespace fccl
