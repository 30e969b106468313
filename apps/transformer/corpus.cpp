#include "transformer/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/folder_files.h"
#include "transformer/demo_text.h"

namespace trainkit::transformer {
namespace {

/// Returns the tokenizer of a new run. The characters are those of all texts.
absl::StatusOr<std::shared_ptr<const Tokenizer>> make_tokenizer(const CorpusOptions& options,
                                                                std::span<CachedText> texts) {
  if (options.tokenizer == "gpt2") {
    return Gpt2Tokenizer::open(options.vocab, options.merges, {.special_tokens = options.allow_special_tokens});
  }
  std::string all;
  for (CachedText& text : texts) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string characters, text.characters());
    all += characters;
  }
  return CharTokenizer::from_text(all);
}

absl::StatusOr<TokenizedText> tokenize(CachedText& text, const Tokenizer& tokenizer, int64_t least_tokens,
                                       const TokenizeProgress& progress) {
  TRAINKIT_ASSIGN_OR_RETURN(TokenFile tokens, text.tokens(tokenizer, progress));
  const Documents& facts = text.facts();
  if (tokens.size() < least_tokens) {
    return data_error("data.empty", {.file = facts.name}, "the text is too short",
                      fmt::format("{} tokens", tokens.size()), fmt::format("at least {}", least_tokens));
  }
  return TokenizedText{.source = facts.name,
                       .bytes = text.size_bytes(),
                       .crlf = facts.crlf,
                       .empty_documents = facts.empty_documents,
                       .left_out = facts.left_out,
                       .tokens = std::move(tokens)};
}

/// Returns the digest of a single input without weight as that of its text, as token files and sha tools see it.
std::string digest_of(const CorpusOptions& options, std::span<const CachedText> texts) {
  if (texts.size() == 1) return texts[0].facts().digest;
  std::string all;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& digest = texts[i].facts().digest;
    const bool is_input = i < options.inputs.size();
    all += is_input ? fmt::format("{} {}\n", digest, options.inputs[i].weight) : digest + " validation\n";
  }
  return Digest::of(all);
}

/// Returns the mean number of characters per token of the validation texts.
double characters_per_token(const Corpus& corpus) {
  const std::vector<int64_t> characters = token_characters(*corpus.tokenizer);
  if (std::all_of(characters.begin(), characters.end(), [](int64_t count) { return count == 1; })) return 1;
  std::vector<int64_t> some(1 << 16);
  int64_t sum = 0, count = 0;
  for (const TokenizedText& text : corpus.validation_texts()) {
    for (int64_t at = text.train_tokens; at < text.tokens.size(); at += std::ssize(some)) {
      const auto read = std::span(some).first(static_cast<size_t>(std::min(std::ssize(some), text.tokens.size() - at)));
      text.tokens.read(at, read);
      for (const int64_t token : read) sum += characters[static_cast<size_t>(token)];
    }
    count += text.tokens.size() - text.train_tokens;
  }
  return static_cast<double>(sum) / static_cast<double>(count);
}

absl::Status check_lengths(const std::string& source, int64_t train, std::optional<int64_t> validation,
                           int64_t block_size) {
  if (train < block_size + 1) {
    return data_error("data.empty", {.file = source}, "the training part of the text is too short",
                      fmt::format("{} tokens", train), fmt::format("at least {} (block_size + 1)", block_size + 1),
                      "use more text or a smaller --block-size");
  }
  if (validation && *validation < 2) {
    return data_error("data.empty", {.file = source}, "the validation part of the text is too short",
                      fmt::format("{} tokens", *validation), "at least 2", "use more text");
  }
  return absl::OkStatus();
}

constexpr char kGenerated[] = "generated text";

/// Opens a text. Without input: Debian's licence texts, or generated text if there are none.
absl::StatusOr<CachedText> open_input(std::string input, const DocumentOptions& options, const std::string& prepared,
                                      const std::string& tokens) {
  constexpr char kLicences[] = "/usr/share/common-licenses";
  if (!input.empty()) return CachedText::open(input, options, prepared, tokens);
  if (auto licences = CachedText::open(kLicences, options, prepared, tokens); licences.ok()) return licences;
  input = split_path(prepared).first + "/" + kGenerated;
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), input, demo_text()));
  return CachedText::open(input, options, prepared, tokens);
}

/// Returns the name of the files of text `i`: "corpus", "corpus-2", ..., "validation".
std::string file_name(const CorpusOptions& options, size_t i) {
  if (i == std::max<size_t>(options.inputs.size(), 1)) return "validation";
  return i == 0 ? "corpus" : fmt::format("corpus-{}", i + 1);
}

/// Opens the inputs, then the validation text.
absl::StatusOr<std::vector<CachedText>> open_texts(const CorpusOptions& options, const Tokenizer* saved) {
  DocumentOptions how = options.text;
  const std::string kind = saved ? saved->name() : options.tokenizer;
  how.replace_end_of_text = kind == "char" && options.allow_special_tokens;
  // A run on plain text has no character for the end of a document.
  if (kind == "char" && saved && !document_end_token(*saved)) how.document_end = '\n';
  std::vector<TextInput> inputs = options.inputs;
  if (inputs.empty()) inputs.emplace_back();
  if (!options.validation_input.empty()) inputs.push_back({.path = options.validation_input});
  const std::string& folder = options.prepared_dir.empty() ? options.cache_dir : options.prepared_dir;
  std::vector<CachedText> texts;
  for (const TextInput& input : inputs) {
    const std::string name = file_name(options, texts.size());
    TRAINKIT_ASSIGN_OR_RETURN(CachedText text,
                              open_input(input.path, how, fmt::format("{}/{}.txt", folder, name),
                                         fmt::format("{}/{}.{}.tokens", options.cache_dir, name, kind)));
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

std::optional<TextInput> parse_input(const std::string& text) {
  std::error_code ignored;
  const size_t colon = text.rfind(':');
  const std::string_view number = colon == text.npos ? "" : std::string_view(text).substr(colon + 1);
  const bool looks_like_number =
      !number.empty() && number.find_first_not_of("0123456789.eE+-") == number.npos && !std::isalpha(number[0]);
  if (colon == 0 || !looks_like_number || std::filesystem::exists(text, ignored)) return TextInput{.path = text};
  TextInput input{.path = text.substr(0, colon)};
  const auto read = std::from_chars(number.data(), number.data() + number.size(), input.weight);
  const bool is_number = read.ec == std::errc() && read.ptr == number.data() + number.size();
  if (!is_number || !std::isfinite(input.weight) || input.weight <= 0) return std::nullopt;
  return input;
}

RunFacts Corpus::describe(const DocumentOptions& options) const {
  RunFacts facts;
  for (size_t i = 0; i < texts.size(); ++i) {
    const TokenizedText& text = texts[i];
    std::string line = fmt::format("{}: {}, {} tokens, vocabulary {} ({})", text.source, format_size(text.bytes),
                                   text.tokens.size(), tokenizer->vocab_size(), tokenizer->name());
    if (!validation) {
      line += fmt::format("; the last {} tokens are for validation", text.tokens.size() - text.train_tokens);
    }
    facts.emplace_back(i == 0 ? "text" : fmt::format("text {}", i + 1), line + describe_findings(text, options));
  }
  if (validation) {
    facts.emplace_back("validation",
                       fmt::format("{}: {}, {} tokens{}", validation->source, format_size(validation->bytes),
                                   validation->tokens.size(), describe_findings(*validation, options)));
  }
  return facts;
}

std::vector<std::shared_ptr<const TokenWindows>> windows_of(std::span<const TokenizedText> texts,
                                                            TokenWindowsOptions options) {
  std::vector<std::shared_ptr<const TokenWindows>> windows;
  for (const TokenizedText& text : texts) {
    (options.whole ? options.begin : options.end) = text.train_tokens;
    windows.push_back(std::make_shared<TokenWindows>(text.tokens, options));
  }
  return windows;
}

std::string describe_findings(const TokenizedText& text, const DocumentOptions& options) {
  std::string findings;
  if (text.crlf > 0) {
    findings += fmt::format("; {} CRLF line ends{}", text.crlf,
                            options.normalize_newlines ? " converted to LF" : " (--normalize_newlines converts them)");
  }
  if (text.empty_documents > 0) findings += fmt::format("; {} empty documents skipped", text.empty_documents);
  if (const std::string note = left_out_note(text.left_out); !note.empty()) findings += "; " + note;
  return findings;
}

TokenizeProgress tokenize_progress() {
  return [shown = int64_t{-1}](int64_t done, int64_t total) mutable {
    const int64_t tenth = total > (int64_t{16} << 20) ? done * 10 / total : -1;
    if (tenth > shown) {
      shown = tenth;
      std::fprintf(stderr, "tokenizing %d%%\n", static_cast<int>(tenth * 10));
    }
    return true;
  };
}

absl::Status check_documents(const Corpus& corpus) {
  const auto end = document_end_token(*corpus.tokenizer);
  for (const TokenizedText& text : corpus.texts) {
    if (end && count_tokens(text.tokens, 0, text.train_tokens, *end) > 0) return absl::OkStatus();
  }
  return data_error("data.documents", {.file = corpus.texts.front().source}, "no document ends in the training text",
                    "", "a .jsonl file, a folder of texts, or <|endoftext|> between documents",
                    "--allow_special_tokens parses <|endoftext|>; --no-pack_documents trains on the text as a whole");
}

absl::StatusOr<Corpus> tokenize_corpus(const CorpusOptions& options, int64_t least_tokens,
                                       const TokenizeProgress& progress) {
  Corpus corpus;
  if (!options.saved_tokenizer.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(corpus.tokenizer, load_tokenizer(options.saved_tokenizer));
  }
  TRAINKIT_ASSIGN_OR_RETURN(std::vector<CachedText> texts, open_texts(options, corpus.tokenizer.get()));
  corpus.digest = digest_of(options, texts);
  if (options.check_digest) TRAINKIT_RETURN_IF_ERROR(options.check_digest(corpus.digest));
  if (!corpus.tokenizer) {
    TRAINKIT_ASSIGN_OR_RETURN(corpus.tokenizer, make_tokenizer(options, texts));
  }
  const size_t inputs = std::max<size_t>(options.inputs.size(), 1);
  for (size_t i = 0; i < texts.size(); ++i) {
    TRAINKIT_ASSIGN_OR_RETURN(TokenizedText text, tokenize(texts[i], *corpus.tokenizer, least_tokens, progress));
    if (options.inputs.empty() && text.source.ends_with(kGenerated)) text.source = kGenerated;
    if (i == inputs) {
      corpus.validation = std::move(text);
    } else {
      text.weight = options.inputs.empty() ? 0 : options.inputs[i].weight;
      corpus.texts.push_back(std::move(text));
    }
  }
  corpus.files = std::move(texts);
  return corpus;
}

absl::StatusOr<Corpus> prepare_corpus(const CorpusOptions& options, const TokenizeProgress& progress) {
  TRAINKIT_ASSIGN_OR_RETURN(Corpus corpus, tokenize_corpus(options, /*least_tokens=*/0, progress));
  for (TokenizedText& text : corpus.texts) {
    const int64_t tokens = text.tokens.size();
    std::optional<int64_t> validation;
    text.train_tokens = tokens;
    if (!corpus.validation) {
      text.train_tokens = static_cast<int64_t>(static_cast<double>(tokens) * (1.0 - options.validation_fraction));
      validation = tokens - text.train_tokens;
    }
    TRAINKIT_RETURN_IF_ERROR(check_lengths(text.source, text.train_tokens, validation, options.block_size));
  }
  if (corpus.validation) {
    TRAINKIT_RETURN_IF_ERROR(check_lengths(corpus.validation->source, options.block_size + 1,
                                           corpus.validation->tokens.size(), options.block_size));
  }
  corpus.characters_per_token = characters_per_token(corpus);
  return corpus;
}

}  // namespace trainkit::transformer
