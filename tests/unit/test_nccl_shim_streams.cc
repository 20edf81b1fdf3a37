// The order of calls on different streams, on streams that only the test has.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/shim/stream_order.h"
#include "tests/support/catch.h"

using fccl::shim::StreamOrderOf;

namespace {

uint64_t ids = 0;

struct Stream {
  std::string name;
  uint64_t id = ++ids;
  bool alive = true;
  bool captured = false;
};

Stream defaultStream{.name = "default"};
Stream ofThread{.name = "thread"};
std::string done;  // what was enqueued, and what was wrong about it

class Streams {
 public:
  explicit Streams(int) {}
  static bool isDefault(const void* stream) { return stream == &defaultStream; }
  uint64_t idOf(void* stream) const { return stream == &ofThread ? ++ids : touch(stream).id; }
  bool isCaptured(void* stream) const { return touch(stream).captured; }
  bool mark(void* stream) {
    if (touch(stream).captured) done += "!captured ";
    done += "mark:" + touch(stream).name + " ";
    return true;
  }
  void follow(void* stream) {
    if (touch(stream).captured) done += "!captured ";
    done += "follow:" + touch(stream).name + " ";
  }

 private:
  static Stream& touch(void* stream) {
    auto& s = *static_cast<Stream*>(stream);
    if (!s.alive) done += "!destroyed ";
    return s;
  }
};

class Calls {
 public:
  // What a call on the stream enqueues beside itself.
  std::string on(Stream& stream) {
    done.clear();
    order_.before(&stream);
    done += "call ";
    order_.after(&stream);
    return done;
  }

 private:
  StreamOrderOf<Streams> order_{0};
};

}  // namespace

TEST_CASE("NCCL shim: a call on another stream follows the one before, whose stream may be destroyed", "[nccl]") {
  Stream a{.name = "a"};
  Stream b{.name = "b"};
  Calls calls;
  CHECK(calls.on(a) == "call mark:a ");
  CHECK(calls.on(a) == "call mark:a ");
  a.alive = false;
  CHECK(calls.on(b) == "follow:b call mark:b ");
  b.alive = false;
  CHECK(calls.on(defaultStream) == "follow:default call ");
}

TEST_CASE("NCCL shim: a new stream with the handle of a destroyed one is another stream", "[nccl]") {
  Stream a{.name = "a"};
  Calls calls;
  CHECK(calls.on(a) == "call mark:a ");
  a = {.name = "new"};
  CHECK(calls.on(a) == "follow:new call mark:new ");
  CHECK(calls.on(a) == "call mark:new ");
}

TEST_CASE("NCCL shim: the default stream is marked when it is left, another thread's is another stream", "[nccl]") {
  Stream a{.name = "a"};
  Calls calls;
  CHECK(calls.on(defaultStream) == "call ");
  CHECK(calls.on(defaultStream) == "call ");
  CHECK(calls.on(a) == "mark:default follow:a call mark:a ");
  CHECK(calls.on(defaultStream) == "follow:default call ");
  CHECK(calls.on(ofThread) == "mark:default follow:thread call mark:thread ");
  CHECK(calls.on(ofThread) == "follow:thread call mark:thread ");
}

TEST_CASE("NCCL shim: a captured call has no place in the order, those around it keep theirs", "[nccl]") {
  Stream a{.name = "a"};
  Stream b{.name = "b", .captured = true};
  Stream c{.name = "c"};
  Calls calls;
  CHECK(calls.on(b) == "call ");
  CHECK(calls.on(a) == "call mark:a ");
  CHECK(calls.on(b) == "call ");
  a.alive = false;
  CHECK(calls.on(c) == "follow:c call mark:c ");
  c.captured = true;
  CHECK(calls.on(c) == "call ");
  c.captured = false;
  b.captured = false;
  CHECK(calls.on(b) == "follow:b call mark:b ");
}
