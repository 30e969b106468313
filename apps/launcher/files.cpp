#include "launcher/files.h"

#include <elf.h>
#include <glob.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace trainkit::launcher {

std::string real_path(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return "";
  std::string text = resolved;
  std::free(resolved);
  return text;
}

std::string parent(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == path.npos ? "" : path.substr(0, slash);
}

bool exists(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

std::string read_file(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return text;
  char buffer[65536];
  for (size_t size = 0; (size = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, size);
  std::fclose(file);
  return text;
}

std::vector<std::string> matches(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

std::vector<std::string> needed_libraries(const std::string& file) {
  std::vector<std::string> names;
  std::FILE* input = std::fopen(file.c_str(), "rb");
  if (input == nullptr) return names;
  const auto read_at = [&](uint64_t offset, void* into, size_t size) {
    return std::fseek(input, static_cast<long>(offset), SEEK_SET) == 0 && std::fread(into, 1, size, input) == size;
  };
  // Offsets and sizes come from the file: a read outside it fails, and sizes are limited before memory is allocated.
  Elf64_Ehdr header;
  std::vector<Elf64_Phdr> segments;
  if (read_at(0, &header, sizeof header) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
      header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_phentsize == sizeof(Elf64_Phdr)) {
    segments.resize(header.e_phnum);
    if (!read_at(header.e_phoff, segments.data(), segments.size() * sizeof(Elf64_Phdr))) segments.clear();
  }
  std::vector<Elf64_Dyn> dynamic;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC || segment.p_filesz > (1 << 20)) continue;
    dynamic.resize(segment.p_filesz / sizeof(Elf64_Dyn));
    if (!read_at(segment.p_offset, dynamic.data(), dynamic.size() * sizeof(Elf64_Dyn))) dynamic.clear();
  }
  uint64_t strings_address = 0, strings_size = 0;
  for (const Elf64_Dyn& entry : dynamic) {
    if (entry.d_tag == DT_STRTAB) strings_address = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRSZ) strings_size = entry.d_un.d_val;
  }
  // DT_STRTAB is an address in memory. The loadable segment that contains it gives its offset in the file.
  std::string strings;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD || strings_address < segment.p_vaddr || strings_size > (64 << 20) ||
        strings_address + strings_size > segment.p_vaddr + segment.p_filesz) {
      continue;
    }
    strings.resize(strings_size);
    if (!read_at(segment.p_offset + strings_address - segment.p_vaddr, strings.data(), strings.size())) strings.clear();
  }
  for (const Elf64_Dyn& entry : dynamic)
    if (entry.d_tag == DT_NEEDED && entry.d_un.d_val < strings.size())
      names.emplace_back(strings.c_str() + entry.d_un.d_val);
  std::fclose(input);
  return names;
}

}  // namespace trainkit::launcher
