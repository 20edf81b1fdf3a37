// Which rows, or packs of a call without norm, are whose, and where they stand in the slots.
#pragma once

#include "kernels/cuda/row_base.cuh"
#include "kernels/cuda/slots.cuh"

namespace fccl::cuda {

template <class D, uint32_t formCode>
class RowParts : public RowBase<D, formCode> {
  using Base = RowBase<D, formCode>;

 protected:
  using Base::a_, Base::rows_, Base::cols_, Base::rowBytes_, Base::team_, Base::teams_, Base::strided, Base::chunkCols;

 public:
  using Base::form, Base::kElements, Base::kBytes;
  using typename Base::Memory;
  static constexpr int kReduceChannel = 0;
  static constexpr int kGatherChannel = 1;
  static constexpr bool kTwoshot = form.protocol != Protocol::kOneshot;  // LOWPRECISION shares out the same way
  static constexpr int kSlots = form.sources == 0 ? kMaxRanks : form.sources + 1;
  using KernelWorld = World<kSlots>;

  FCCL_TEAM_FN int rank() const { return world_.rank; }
  FCCL_TEAM_FN int ranks() const { return world_.ranks; }

  // ---- What is this team's
  FCCL_TEAM_FN int chunks(const RowArgs&) const {
    return form.norm ? strided(rows_) : strided((cols_ + chunkCols() - 1) / chunkCols());
  }
  FCCL_TEAM_FN RowChunk chunk(const RowArgs&, int i) const {
    const int number = team_ + i * teams_;
    if constexpr (form.norm) return {number, 1, 0, cols_};
    const int col0 = number * chunkCols();
    return {0, 1, col0, min(chunkCols(), cols_ - col0)};
  }
  FCCL_TEAM_FN int sharedChunks(const RowArgs&) const {
    const int each = ownRows();
    return form.norm ? strided(each) : strided((each + chunkCols() - 1) / chunkCols());
  }
  // With norm an owner has rows, without it has packs of the one row.
  FCCL_TEAM_FN RowChunk part(const RowArgs&, int i, int owner) const {
    const int number = team_ + i * teams_;
    if constexpr (form.norm) {
      const int row = firstRowOf(owner) + number;
      return {row, row < endRowOf(owner) ? 1 : 0, 0, cols_};
    } else {
      const int begin = owner * ownRows() + number * chunkCols();
      const int end = min(min((owner + 1) * ownRows(), begin + chunkCols()), cols_);
      return {0, begin < end ? 1 : 0, begin, end - begin};
    }
  }

 protected:
  FCCL_TEAM_FN RowParts(const KernelWorld& world, const RowArgs& a, Memory& memory) : Base(a, memory), world_(world) {}

  // TWOSHOT: the most rows of an owner; without norm its columns, whole packs.
  FCCL_TEAM_FN int ownRows() const {
    if constexpr (form.sharded) return static_cast<int>(a_.ownCount);
    const int units = form.norm ? rows_ : (cols_ + kElements - 1) / kElements;
    return (units + world_.ranks - 1) / world_.ranks * (form.norm ? 1 : kElements);
  }
  // Of this launch.
  FCCL_TEAM_FN int firstRowOf(int owner) const {
    const int first = owner * (rows_ / world_.ranks) + min(owner, rows_ % world_.ranks);
    return form.sharded ? first + static_cast<int>(a_.ownFirst) : first;
  }
  FCCL_TEAM_FN int endRowOf(int owner) const {
    return (owner + 1) * (rows_ / world_.ranks) + min(owner + 1, rows_ % world_.ranks);
  }

  FCCL_TEAM_FN uint32_t slotStride() const { return (rowBytes_ + 15) / 16 * 16; }
  // Of this rank's memory or, the same everywhere, of a peer's. ONESHOT: [source][row]; TWOSHOT: [source][row of the
  // owner], then gathered rows; with a sharded residual those by owner: [source][row of the source].
  FCCL_TEAM_FN uint32_t slotOffset(int source, int channel, int row, int owner = -1) const {
    const uint32_t stride = slotStride();
    if constexpr (!kTwoshot) return epochOffset_ + static_cast<uint32_t>(source * rows_ + row) * stride;
    const int each = ownRows();
    const bool gathers = channel == kGatherChannel;
    const int to = owner < 0 ? world_.rank : owner;
    if (!form.norm) {  // offsets of packs stay those of the whole row
      const auto share = static_cast<uint32_t>(each * kBytes);
      if (gathers) return epochOffset_ + share * static_cast<uint32_t>(world_.ranks);
      return epochOffset_ + static_cast<uint32_t>(source) * share - static_cast<uint32_t>(to) * share;
    }
    int index = source * each + row - firstRowOf(to);
    if (gathers) index = each * world_.ranks + (form.sharded ? source * each + row - firstRowOf(source) : row);
    return epochOffset_ + static_cast<uint32_t>(index) * stride;
  }

  const KernelWorld& world_;
  uint32_t epochOffset_ = 0;
};

}  // namespace fccl::cuda
