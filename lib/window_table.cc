#include "lib/window_table.h"

#include <algorithm>

namespace fccl {

const fcclWindow* WindowTable::find(fcclWindow_t window) const {
  const auto it = std::find_if(windows_.begin(), windows_.end(), [&](const auto& w) { return w.get() == window; });
  return it == windows_.end() ? nullptr : it->get();
}

fcclWindow_t WindowTable::add(std::unique_ptr<SymmetricMemory> memory, void* start, size_t bytes, int rank, int ranks) {
  auto window = std::make_unique<fcclWindow>();
  window->number = next_++;
  window->start = static_cast<char*>(start);
  window->bytes = bytes;
  for (int r = 0; r < ranks; r++) {
    // As integers: the mappings are different objects, between which pointers must not be subtracted. The own delta is
    // 0 even where the own rank's part is mapped a second time.
    const auto mine = reinterpret_cast<intptr_t>(start);
    window->deltas.push_back(r == rank ? 0
                                       : static_cast<ptrdiff_t>(reinterpret_cast<intptr_t>(memory->peer(r)) - mine));
  }
  window->aligned = std::ranges::all_of(window->deltas, [](ptrdiff_t delta) { return delta % 16 == 0; });
  window->memory = std::move(memory);
  windows_.push_back(std::move(window));
  return windows_.back().get();
}

void WindowTable::remove(fcclWindow_t window) {
  std::erase_if(windows_, [&](const auto& w) { return w.get() == window; });
}

}  // namespace fccl
