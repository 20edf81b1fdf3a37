// Which NCCL a process takes, and what it says of one that will not do. Each look is a process of its own, since a
// process keeps the first copy that it has loaded.
#include <cstdio>
#include <optional>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"

using namespace fccl::test;

namespace {

const std::string kFolder = FCCL_BINARY_DIR "/fake_nccl";
const std::string kNccl = kFolder + "/libnccl.so.2";
const std::string kEngine = kFolder + "/libengine.so";  // has NCCL's names, up to 2.26
const std::string kNowhere = FCCL_BINARY_DIR "/no_such_folder";

struct Look {
  std::string libraryPath = kNowhere;  // where the loader looks first
  std::string loadedBefore;
  std::string wish;
  std::string version;

  std::string operator()() const {
    const ScopedVariable path("LD_LIBRARY_PATH", libraryPath.c_str());
    const ScopedVariable library("FCCL_NCCL_LIB", wish.c_str());
    std::optional<ScopedVariable> pretended;
    if (!version.empty()) pretended.emplace("FAKE_NCCL_VERSION", version.c_str());
    const std::string command = "'" FCCL_BINARY_DIR "/fccl-which-nccl' " + loadedBefore;
    FILE* out = popen(command.c_str(), "r");
    REQUIRE(out != nullptr);
    std::string text;
    for (char line[512]; fgets(line, sizeof line, out) != nullptr;) text += line;
    pclose(out);
    return text;
  }
};

}  // namespace

TEST_CASE("NCCL library: the loader's own where nothing else is there", "[nccl]") {
  CHECK(Look{.libraryPath = kFolder}() == "NCCL 2.28.3 (" + kNccl + ")\n");
}

TEST_CASE("NCCL library: FCCL_NCCL_LIB comes before the loader's", "[nccl]") {
  CHECK(Look{.libraryPath = kFolder, .wish = kEngine, .version = "21903"}() == "NCCL 2.19.3 (" + kEngine + ")\n");
  const std::string missing = Look{.libraryPath = kFolder, .wish = kNowhere + "/libnccl.so"}();
  CHECK(contains(missing, "FCCL_NCCL_LIB is '" + kNowhere + "/libnccl.so', which cannot be loaded"));
}

TEST_CASE("NCCL library: a copy in the process comes before all others", "[nccl]") {
  CHECK(contains(Look{.loadedBefore = kNccl, .wish = kEngine}(), kNccl));
  // Under a name of its own, inside of an engine's library.
  CHECK(contains(Look{.libraryPath = kFolder, .loadedBefore = kEngine, .wish = kNccl, .version = "22602"}(),
                 "NCCL 2.26.2 (" + kEngine + ")"));
  // Both: the one that is NCCL's own library.
  CHECK(contains(Look{.loadedBefore = kEngine + " " + kNccl}(), kNccl));
}

TEST_CASE("NCCL library: versions", "[nccl]") {
  const auto ofVersion = [](const char* version) { return Look{.libraryPath = kFolder, .version = version}(); };
  CHECK(contains(ofVersion("21900"), "NCCL 2.19.0 ("));
  CHECK(contains(ofVersion("23000"), "NCCL 2.30.0 ("));
  for (const char* old : {"21805", "2804"}) {
    const std::string text = ofVersion(old);
    CHECK(contains(text, "is too old: FCCL needs 2.19.0 or newer"));
    CHECK(contains(text, "FCCL_NCCL_LIB"));
  }
  CHECK(contains(ofVersion("2804"), "NCCL 2.8.4 ("));
}

TEST_CASE("NCCL library: a name that its version should have is missing", "[nccl]") {
  const std::string text = Look{.wish = kEngine, .version = "22703"}();
  CHECK(contains(text, "NCCL 2.27.3 (" + kEngine + ") has no ncclCommWindowRegister"));
  const std::string other = Look{.wish = "libc.so.6"}();
  CHECK(contains(other, "no ncclGetVersion"));
}
