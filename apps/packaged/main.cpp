// All programs of a package in one file, so that they share their code. The launcher (apps/launcher) gives the name of
// the program as the first word.
#include <cstdio>
#include <string_view>

#define TRAINKIT_PROGRAM(name, function) int function(int argc, char** argv);
#include "programs.inc"
#undef TRAINKIT_PROGRAM

int main(int argc, char** argv) {
  const std::string_view path = argc > 0 ? argv[0] : "", name = path.substr(path.rfind('/') + 1);
#define TRAINKIT_PROGRAM(program, function) \
  if (name == program) return function(argc, argv);
#include "programs.inc"
  std::fprintf(stderr, "trainkit: error[program.missing] %s: no program of this package\n", argc > 0 ? argv[0] : "");
  return 2;
}
