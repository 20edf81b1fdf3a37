#include "tests/support/catch.h"

int main(int argc, char** argv) { return fccl::test::runCatch(argc, argv); }
