// Texts of the language model: plain text and JSON lines, as they are and prepared.
#include "core/base/utf8.h"
#include "target.h"
#include "trainkit/text/documents.h"

namespace trainkit::fuzz::texts {
namespace {

void read_text(const std::string& path, const DocumentOptions& options) {
  const auto text = open_documents(path, options, folder() + "/prepared");
  if (!text.ok()) return require_named(text.status(), {"data."});
  require(find_invalid_utf8(text->content) == text->content.size(), "a text is UTF-8");
  require(text->content.find('\0') == text->content.npos, "a text has no NUL");
  int64_t before = 0;
  for (const int64_t end : text->ends) {
    require(end > before && end <= std::ssize(text->content), "documents have ends in their order");
    require(text->content[static_cast<size_t>(end) - 1] == options.document_end, "a document has its end");
    before = end;
  }
}

}  // namespace

std::vector<std::string> seeds() {
  return {"To be,\r\nor not to be\n",
          "\xef\xbb\xbf"
          "a<|endoftext|>b\n",
          "{\"text\": \"one\", \"id\": 1}\n\n{\"text\": \"two\\r\\n\\u00e9\"}\n{\"text\": \"\"}\n"};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string plain = write_bytes("text.txt", as_text(data, size));
  read_text(plain, {});
  read_text(plain, {.normalize_newlines = true, .replace_end_of_text = true});
  read_text(write_bytes("text.jsonl", as_text(data, size)), {.normalize_newlines = true});
  return 0;
}

const Registered target("texts", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::texts
