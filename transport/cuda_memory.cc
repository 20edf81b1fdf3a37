#include <algorithm>
#include <map>
#include <mutex>

#include "base/log.h"
#include "transport/cuda_block.h"
#include "transport/cuda_device.h"
#include "transport/fd_channel.h"
#include "transport/machine.h"
#include "transport/process_map.h"
#include "transport/symmetric_memory.h"

namespace fccl {
namespace {

// One per process and symmetric memory, shared by the ranks of the process: what one of them gives back stays mapped
// until the last has done so. The mutex also orders what the leader has filled in before what the others read.
struct Segment {
  std::mutex mutex;
  std::vector<std::shared_ptr<CudaBlock>> own;     // by rank; of this process's ranks
  std::vector<std::shared_ptr<CudaBlock>> mapped;  // of the others'
  std::map<int, std::vector<char*>> views;         // by GPU of this process: every rank's memory as seen there
};

class CudaMemory final : public SymmetricMemory {
 public:
  CudaMemory(std::shared_ptr<Segment> segment, std::vector<char*> peers, size_t bytes, const SymmetricMemory* ranks,
             std::string kind)
      : segment_(std::move(segment)), peers_(std::move(peers)), bytes_(bytes), ranks_(ranks), kind_(std::move(kind)) {}

  char* peer(int r) const override { return peers_[static_cast<size_t>(r)]; }
  size_t bytes() const override { return bytes_; }
  bool alive(int r) const override { return ranks_ == nullptr || ranks_->alive(r); }
  const char* kind() const override { return kind_.c_str(); }

 private:
  std::shared_ptr<Segment> segment_;
  std::vector<char*> peers_;
  size_t bytes_;
  const SymmetricMemory* ranks_;
  std::string kind_;
};

// What ranks tell each other of themselves.
struct Place {
  uint64_t bytes;
  int32_t device;  // as the rank's own process counts
  int32_t unused;
  CudaUuid uuid;
};

struct Group {
  ProcessMap processes;
  std::vector<Place> places;

  int rank() const { return processes.rank(); }
  const Place& mine() const { return places[static_cast<size_t>(rank())]; }
  bool local(int r) const { return processes.sameProcess(r, rank()); }
  // The GPUs that this process's ranks are on, each once.
  std::vector<int> localDevices() const {
    std::vector<int> devices;
    for (int r = 0; r < processes.ranks(); ++r) {
      if (local(r)) devices.push_back(places[static_cast<size_t>(r)].device);
    }
    std::ranges::sort(devices);
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    return devices;
  }
};

// Whether this process's GPUs can use the memory of all others, as far as it sees those; what it does not see, the
// attempt to map will show.
Status checkPeerAccess(const Group& group) {
  FCCL_TRY_ASSIGN(const int visible, cudaDeviceCount());
  std::map<CudaUuid, int> devices;
  for (int device = 0; device < visible; ++device) {
    FCCL_TRY_ASSIGN(const CudaUuid uuid, cudaUuid(device));
    devices.emplace(uuid, device);
  }
  for (int r = 0; r < group.processes.ranks(); ++r) {
    const CudaUuid& uuid = group.places[static_cast<size_t>(r)].uuid;
    const auto found = devices.find(uuid);
    if (found == devices.end() || found->second == group.mine().device) continue;
    int can = 0;
    FCCL_CUDA(cudaDeviceCanAccessPeer(&can, group.mine().device, found->second));
    if (can == 0) {
      return failure(
          fcclSystemError,
          "the GPU of rank {} ({}) cannot reach the memory of rank {}'s ({}): no NVLink between them, and no "
          "peer-to-peer access over PCIe (switched off by the driver, IOMMU or ACS, or another root complex; "
          "see nvidia-smi topo -p2p r); use other GPUs, or a HOST communicator",
          group.rank(), describeUuid(group.mine().uuid), r, describeUuid(uuid));
    }
  }
  return {};
}

Result<Group> meet(Bootstrap& bootstrap, size_t bytes, int device) {
  Group group;
  FCCL_TRY_ASSIGN(group.processes, ProcessMap::exchange(bootstrap));
  const Result<CudaUuid> uuid = cudaUuid(device);
  FCCL_TRY(settle(bootstrap, uuid.status()).status);
  FCCL_TRY_ASSIGN(group.places, bootstrap.exchange(Place{bytes, device, 0, uuid.value()}));
  for (size_t r = 1; r < group.places.size(); ++r) {
    if (group.places[r].bytes == group.places[0].bytes) continue;
    return failure(fcclInvalidUsage, "size is {} on rank 0 and {} on rank {}; expected the same on all ranks",
                   group.places[0].bytes, group.places[r].bytes, r);
  }
  FCCL_TRY(settle(bootstrap, checkPeerAccess(group)).status);
  return group;
}

// What a rank tells of its block to the ranks of other processes.
struct Published {
  CudaTicket ticket;
  uint64_t offset;
};

// On the leader: every rank's memory, as each GPU of this process sees it.
Status mapAll(const Group& group, const std::vector<Published>& published, const PassedDescriptors& descriptors,
              Segment* segment) {
  const std::lock_guard lock(segment->mutex);
  const std::vector<int> devices = group.localDevices();
  for (int r = 0; r < group.processes.ranks(); ++r) {
    const auto at = static_cast<size_t>(r);
    const uint64_t offset = published[at].offset;
    if (group.local(r)) {
      FCCL_TRY(segment->own[at]->admit(devices));
      for (const int device : devices) segment->views[device].push_back(segment->own[at]->data() + offset);
      continue;
    }
    const CudaTicket& ticket = published[at].ticket;
    const int descriptor = ticket.hasDescriptor != 0 ? descriptors[at][0].get() : -1;
    std::shared_ptr<CudaBlock> block;
    for (const int device : devices) {
      // A block with a descriptor is mapped once for all GPUs, an opened one belongs to the GPU that opened it.
      if (block == nullptr || ticket.hasDescriptor == 0) {
        FCCL_TRY_ASSIGN(block, importBlock(ticket, descriptor, device));
        FCCL_TRY(block->admit(devices));
        segment->mapped.push_back(block);
      }
      segment->views[device].push_back(block->data() + offset);
    }
  }
  return {};
}

// Gives every rank the view of all ranks' memory: [offset, ...) of the block of each.
Verdict mapEverywhere(Bootstrap& bootstrap, const Group& group, std::shared_ptr<CudaBlock> block, uint64_t offset,
                      const Deadline& deadline, std::shared_ptr<Segment>* segment) {
  const ProcessMap& processes = group.processes;
  if (processes.isLeader()) {
    *segment = std::make_shared<Segment>();
    (*segment)->own.resize(static_cast<size_t>(processes.ranks()));
  }
  Result<std::shared_ptr<void>> shared = shareInProcess(bootstrap, processes, *segment);
  if (!shared.ok()) return {shared.status(), true};
  *segment = std::static_pointer_cast<Segment>(shared.value());
  Published mine{};
  mine.offset = offset;
  Fd descriptor;
  Status status = processes.oneProcess() ? Status() : block->publish(&mine.ticket, &descriptor);
  {
    const std::lock_guard lock((*segment)->mutex);
    (*segment)->own[static_cast<size_t>(processes.rank())] = std::move(block);
  }
  if (Verdict verdict = settle(bootstrap, status); !verdict.ok()) return verdict;
  const Result<std::vector<Published>> published = bootstrap.exchange(mine);
  if (!published.ok()) return {published.status(), true};

  PassedDescriptors descriptors;
  const bool anyDescriptor =
      std::ranges::any_of(published.value(), [](const Published& each) { return each.ticket.hasDescriptor != 0; });
  if (anyDescriptor) {
    const int number = descriptor.get();
    Verdict passed = passDescriptors(bootstrap, processes, {&number, descriptor.valid() ? size_t{1} : size_t{0}},
                                     deadline, &descriptors);
    if (!passed.ok()) return passed;
  }
  if (processes.isLeader()) status = mapAll(group, published.value(), descriptors, segment->get());
  return settle(bootstrap, status);
}

std::unique_ptr<SymmetricMemory> memoryOf(const Group& group, std::shared_ptr<Segment> segment, size_t bytes,
                                          const CudaMemoryOptions& options, bool vmm) {
  std::vector<char*> peers;
  {
    const std::lock_guard lock(segment->mutex);
    peers = segment->views[options.device];
  }
  std::string kind = fmt::format("{} on {}{}", vmm ? "vmm" : "ipc", describeUuid(group.mine().uuid),
                                 group.processes.oneProcess() ? ", threads" : "");
  FCCL_INFO("rank {} of {}: {} of GPU memory per rank: {}", group.rank(), group.processes.ranks(), describeBytes(bytes),
            kind);
  return std::make_unique<CudaMemory>(std::move(segment), std::move(peers), bytes, options.ranks, std::move(kind));
}

Status makeBlock(bool vmm, size_t bytes, const CudaMemoryOptions& options, std::shared_ptr<CudaBlock>* block) {
  FCCL_TRY_ASSIGN(*block, vmm ? makeVmmBlock(options.device, bytes) : makePlainBlock(options.device, bytes));
  return options.prepare ? options.prepare((*block)->data()) : Status();
}

// The blocks of this process that fcclMemAlloc has handed out, by their start.
class BlockTable {
 public:
  static BlockTable& instance() {
    // Never destroyed: the driver may have ended before.
    static auto* table = new BlockTable;
    return *table;
  }
  void insert(std::shared_ptr<CudaBlock> block) {
    const std::lock_guard lock(mutex_);
    const auto start = reinterpret_cast<uintptr_t>(block->data());
    blocks_.emplace(start, std::move(block));
  }
  std::shared_ptr<CudaBlock> remove(const void* ptr) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(ptr));
    if (found == blocks_.end()) return nullptr;
    std::shared_ptr<CudaBlock> block = std::move(found->second);
    blocks_.erase(found);
    return block;
  }
  // The block that `ptr` points into.
  std::shared_ptr<CudaBlock> find(const void* ptr) {
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(ptr);
    auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return nullptr;
    const std::shared_ptr<CudaBlock>& block = (--next)->second;
    return address - next->first < block->bytes() ? block : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<CudaBlock>> blocks_;
};

const char* kindOfMemory(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    (void)cudaGetLastError();
    return "no memory that CUDA knows";
  }
  switch (attributes.type) {
    case cudaMemoryTypeHost: return "pinned host memory";
    case cudaMemoryTypeDevice: return "other GPU memory";
    case cudaMemoryTypeManaged: return "managed memory";
    default: return "host memory";
  }
}

Result<std::shared_ptr<CudaBlock>> blockOf(const void* buffer, size_t bytes, int device) {
  std::shared_ptr<CudaBlock> block = BlockTable::instance().find(buffer);
  if (block == nullptr) {
    return failure(fcclInvalidArgument,
                   "buff is {}, which is {}; expected GPU memory of fcclMemAlloc (fcclMemAllocOn with fcclDeviceCuda)",
                   buffer, kindOfMemory(buffer));
  }
  if (block->device() != device) {
    return failure(fcclInvalidArgument, "buff is {} on GPU {}, and this rank of the communicator is on GPU {}", buffer,
                   block->device(), device);
  }
  const auto offset = static_cast<size_t>(static_cast<const char*>(buffer) - block->data());
  if (bytes > block->bytes() - offset) {
    return failure(fcclInvalidArgument,
                   "buff {} with size {} reaches past its fcclMemAlloc block, which has {} bytes from there", buffer,
                   bytes, block->bytes() - offset);
  }
  return block;
}

}  // namespace

Result<std::unique_ptr<SymmetricMemory>> createCudaMemory(Bootstrap& bootstrap, size_t bytesPerRank,
                                                          const CudaMemoryOptions& options) {
  const Deadline deadline(options.timeout);
  const OutsideCapture outside;
  const CurrentDevice current(options.device);
  FCCL_TRY_ASSIGN(const Group group, meet(bootstrap, bytesPerRank, options.device));
  std::string reasons;
  for (const bool vmm : {true, false}) {
    if (options.way == (vmm ? CudaMemoryWay::kIpc : CudaMemoryWay::kVmm)) continue;
    const char* name = vmm ? "virtual memory management" : "cudaMalloc and cudaIpc";
    std::shared_ptr<CudaBlock> block;
    std::shared_ptr<Segment> segment;
    Verdict verdict = settle(bootstrap, makeBlock(vmm, bytesPerRank, options, &block));
    if (verdict.ok()) verdict = mapEverywhere(bootstrap, group, std::move(block), 0, deadline, &segment);
    if (verdict.ok()) return memoryOf(group, std::move(segment), bytesPerRank, options, vmm);
    reasons += fmt::format("{}by {}: {}", reasons.empty() ? "" : "; ", name, verdict.status.message());
    if (verdict.broken || !vmm || options.way == CudaMemoryWay::kVmm) {
      return failure(verdict.status.code(), "GPU memory that all ranks share could not be had, {}", reasons);
    }
    FCCL_INFO("GPU memory {}; trying cudaMalloc and cudaIpc", reasons);
  }
  return failure(fcclInternalError, "no way to share GPU memory was tried");
}

Result<void*> allocateCudaWindowMemory(size_t bytes) {
  if (bytes == 0) return failure(fcclInvalidArgument, "size is 0; expected at least 1 byte");
  const OutsideCapture outside;
  FCCL_TRY_ASSIGN(const int device, usableCudaDevice(-1));
  FCCL_CUDA(cudaFree(nullptr));  // starts CUDA on this GPU where nothing has yet
  Result<std::shared_ptr<CudaBlock>> made = makeVmmBlock(device, bytes);
  if (!made.ok()) {
    FCCL_INFO("window memory by cudaMalloc, since {}", made.status().message());
    made = makePlainBlock(device, bytes);
  }
  FCCL_TRY(made.status());
  const std::shared_ptr<CudaBlock>& block = made.value();
  FCCL_TRY_ASSIGN(const PrivateStream stream, PrivateStream::make());
  FCCL_CUDA(cudaMemsetAsync(block->data(), 0, block->bytes(), stream.get()));
  FCCL_CUDA(cudaStreamSynchronize(stream.get()));
  void* const data = block->data();
  BlockTable::instance().insert(block);
  return data;
}

bool freeCudaWindowMemory(void* ptr) {
  const OutsideCapture outside;
  return BlockTable::instance().remove(ptr) != nullptr;
}

Result<std::unique_ptr<SymmetricMemory>> mapCudaWindow(Bootstrap& bootstrap, void* buffer, size_t bytes,
                                                       const CudaMemoryOptions& options) {
  const Deadline deadline(options.timeout);
  const OutsideCapture outside;
  const CurrentDevice current(options.device);
  FCCL_TRY_ASSIGN(const Group group, meet(bootstrap, bytes, options.device));
  const Result<std::shared_ptr<CudaBlock>> block = blockOf(buffer, bytes, options.device);
  FCCL_TRY(settle(bootstrap, block.status()).status);
  const auto offset = static_cast<uint64_t>(static_cast<char*>(buffer) - block.value()->data());
  std::shared_ptr<Segment> segment;
  FCCL_TRY(mapEverywhere(bootstrap, group, block.value(), offset, deadline, &segment).status);
  return memoryOf(group, std::move(segment), bytes, options, block.value()->hasDescriptor());
}

}  // namespace fccl
