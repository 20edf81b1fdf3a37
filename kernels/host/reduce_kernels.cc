// Any operator and data type, wire kFlags: the protocol texts over blocks of bytes, the arithmetic through one function
// pointer. Sums of fp32, fp16 and bf16 have kernels of their own.
#include <cstring>

#include "kernels/host/kernel_tables.h"
#include "kernels/host/outputs.h"
#include "kernels/host/reduce_functions.h"
#include "kernels/host/team_base.h"
#include "kernels/oneshot.h"
#include "kernels/twoshot.h"
#include "kernels/user_buffer.h"

namespace fccl::host {
namespace {

// A pack is a block of columns; its contents are only pointed to until the outputs reduce them.
struct Block {
  int64_t col;
  int64_t cols;
};
struct Sources {
  const char* const* in;
};

class ReduceTeam : public TeamBase {
 public:
  using Raw = const char*;
  static constexpr bool kGathersSums = false;

  ReduceTeam(World& world, const Call& call)
      : TeamBase(world, call, dtypeBytes(call.dtype), world.stagedSequence),
        reduce_(findReduceFunction(call.dtype, call.op)) {}

  int ranks() const { return world_.ranks; }

  struct RowState {
    explicit RowState(ReduceTeam&) {}
    template <class K>
    void keepOwn(K, Raw) {}
    template <class K>
    Raw own(K, const char* row, Block) const {
      return row;
    }
  };

  template <class F>
  static void forEachPack(int64_t col0, int64_t cols, F&& f) {
    constexpr int64_t kBlock = 4096;
    for (int64_t c = 0; c < cols; c += kBlock) f(0, Block{col0 + c, smaller(kBlock, cols - c)});
  }
  template <class K>
  static Raw input(K, const char* row, Block) {
    return row;
  }
  static Sources round(Sources s) { return s; }

  class Send {
   public:
    void startRow(const Chunk& chunk, int64_t r) {
      to_ = slot_ + r * team_.cutter_.rowStride() - team_.bytes(chunk.col0);
    }
    void startRowFor(int owner, const Chunk& part, int64_t r) {
      to_ = slot_ + owner * team_.cutter_.ownerBytes() + r * team_.cutter_.rowStride() - team_.bytes(part.col0);
    }
    void put(Block p, Raw row) {
      std::memcpy(to_ + team_.bytes(p.col), row + team_.bytes(p.col), static_cast<size_t>(team_.bytes(p.cols)));
    }
    void putFor(int, Block p, Raw row) { put(p, row); }

   private:
    friend class ReduceTeam;
    Send(ReduceTeam& team, int channel, int64_t i)
        : team_(team),
          channel_(channel),
          index_(i),
          slot_(team.ownMemory() + team.world_.layout.stagingOffset(channel, team.slotNumber(channel, i))) {}
    ReduceTeam& team_;
    int channel_;
    int64_t index_;
    char* slot_;
    char* to_ = nullptr;
  };
  Send beginSend(int channel, int64_t i) {
    step("beginSend");
    return Send(*this, channel, i);
  }
  void endSend(Send& send) {
    step("endSend");
    sent_[send.channel_]++;
    publish(send.channel_, send.index_);
  }

  class From {
   public:
    void startRow(const Chunk& chunk, int64_t r) {
      offset_ = base_ + r * team_.cutter_.rowStride() - team_.bytes(chunk.col0);
    }
    template <class K>
    Sources sum(K, Block p, Raw own) {
      for (int r = 0; r < team_.ranks(); r++) {
        sources_[r] = (r == team_.rank() ? own : slots_[r] + offset_) + team_.bytes(p.col);
      }
      return Sources{sources_};
    }
    char* slot(int r) const { return slots_[r]; }

   private:
    friend class ReduceTeam;
    explicit From(ReduceTeam& team) : team_(team) {}
    ReduceTeam& team_;
    int64_t base_ = 0;
    int64_t offset_ = 0;
    char* slots_[kMaxRanks];
    const char* sources_[kMaxRanks];
  };
  From open(int channel, int64_t i) {
    step("open");
    From from(*this);
    for (int r = 0; r < ranks(); r++) {
      if (r == rank()) continue;
      if (!arrived(r, channel, i)) return from;
      from.slots_[r] = memoryOf(r) + world_.layout.stagingOffset(channel, slotNumber(channel, i));
    }
    if (channel == kReduceChannel && cutter_.shared()) from.base_ = rank() * cutter_.ownerBytes();
    return from;
  }
  void close(From&) { step("close"); }

  // To `to`, and from there to further places.
  class Outputs {
   public:
    void sum(Block p, Sources s) {
      char* to = row_ + team_.bytes(p.col);
      team_.reduce_(to, s.in, team_.ranks(), p.cols);
      if (staged_ != nullptr) std::memcpy(staged_ + team_.bytes(p.col), to, static_cast<size_t>(team_.bytes(p.cols)));
      for (int r = 0; deltas_ != nullptr && r < team_.ranks(); r++) {
        if (r != team_.rank()) std::memcpy(to + deltas_[r], to, static_cast<size_t>(team_.bytes(p.cols)));
      }
    }

   private:
    friend class ReduceTeam;
    Outputs(const ReduceTeam& team, char* row, char* staged, const ptrdiff_t* deltas)
        : team_(team), row_(row), staged_(staged), deltas_(deltas) {}
    const ReduceTeam& team_;
    char* row_;
    char* staged_;
    const ptrdiff_t* deltas_;
  };
  Outputs userOutputs(const RowArgs& a, int64_t row) const { return {*this, outputRow(a, row), nullptr, nullptr}; }
  Outputs gatherOutputs(const RowArgs& a, Send& out, const Chunk& part, int64_t r) const {
    return {*this, outputRow(a, part.row0 + r), cutter_.gathered(out.slot_, part, r).reduced, nullptr};
  }
  void copyGathered(const RowArgs& a, From& from, int owner, const Chunk& part, int64_t r) const {
    copyRow(a, part, r, static_cast<size_t>(elementBytes_), cutter_.gathered(from.slot(owner), part, r));
  }

  void end(const RowArgs&) { advance(); }

  class WindowRow {
   public:
    explicit WindowRow(const ReduceTeam& team, const char* row) : team_(team), row_(row) {}
    template <class K>
    Sources sum(K, Block p) {
      for (int r = 0; r < team_.ranks(); r++) sources_[r] = row_ + team_.call_.windows.input[r] + team_.bytes(p.col);
      return Sources{sources_};
    }

   private:
    const ReduceTeam& team_;
    const char* row_;
    const char* sources_[kMaxRanks];
  };
  WindowRow windowRow(const Span& span) const { return WindowRow(*this, rowOf(call_.rows.input, span.row)); }
  Outputs windowOutputs(const RowArgs& a) const { return {*this, outputRow(a, 0), nullptr, call_.windows.reducedOut}; }

 private:
  int64_t bytes(int64_t elements) const { return elements * elementBytes_; }
  char* outputRow(const RowArgs& a, int64_t row) const { return rowStart(a.reducedOut, row, bytes(a.cols)); }

  ReduceFunction reduce_;
};

template <void (*protocol)(ReduceTeam&, const RowArgs&)>
void runReduce(World& world, const Call& call) {
  ReduceTeam team(world, call);
  protocol(team, call.rows);
}

using PlainRows = RuntimePattern<false>;

}  // namespace

Kernel reduceKernel(Protocol protocol) {
  switch (protocol) {
    case Protocol::kOneshot: return runReduce<oneshot<PlainRows, ReduceTeam>>;
    case Protocol::kTwoshot: return runReduce<twoshot<PlainRows, ReduceTeam>>;
    case Protocol::kWindowOneshot: return runReduce<userBufferOneshot<PlainRows, ReduceTeam>>;
    case Protocol::kWindowTwoshot: return runReduce<userBufferTwoshot<PlainRows, ReduceTeam>>;
    case Protocol::kLowPrecision: break;
  }
  return nullptr;
}

}  // namespace fccl::host
