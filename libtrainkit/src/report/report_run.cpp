// The parts of a report about one run, apart from charts and results.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "logging/field_names.h"
#include "report/report_parts.h"
#include "trainkit/core/format.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::ordered_json;

std::string date(double unix_time) {
  if (!(unix_time > 0) || unix_time > 1e11) return "";
  const auto seconds = static_cast<std::time_t>(unix_time);
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(seconds));
}

/// Quotes a word for a POSIX shell where necessary.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) c == '\'' ? quoted.append("'\\''") : quoted.append(1, c);
  return quoted + "'";
}

std::string command_of(const Json& session) {
  std::string text;
  const Json& words = value_at(session, fields::kCommand);
  if (!words.is_array()) return text;
  for (const Json& word : words) {
    if (!word.is_string()) continue;
    // The program by its name: its folder belongs to one machine.
    const auto full = word.get<std::string>();
    text += text.empty() ? shell_word(full.substr(full.rfind('/') + 1)) : " " + shell_word(full);
  }
  return text;
}

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : separator) + part;
  }
  return text;
}

/// Returns the best value of a split's metric and its step; NaN if there is none.
ChartPoint best_of(const std::vector<ChartPoint>& points, bool higher) {
  ChartPoint best{0, kNan};
  for (const ChartPoint& point : points) {
    if (!std::isfinite(point.y)) continue;
    if (!std::isfinite(best.y) || (higher ? point.y > best.y : point.y < best.y)) best = point;
  }
  return best;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string best_tile(const RunData& run) {
  const std::string metric = run.monitor();
  const auto values = points_of(run, "val", metric);
  const ChartPoint best = best_of(values, run.higher_is_better());
  if (std::isfinite(best.y)) {
    const auto figure = [is_share = metric != fields::kLoss && are_shares(values)](double value) {
      return is_share ? format_value(value, ValueFormat::kShare) : format_number(value);
    };
    return tile(figure(best.y), "best validation " + metric,
                fmt::format("at step {:.0f}, first {}", best.x, figure(values[0].y)));
  }
  const auto losses = smooth(means_of(run, "train", fields::kLoss));
  if (losses.empty()) return "";
  return tile(format_number(losses.back().y), "training loss", fmt::format("at step {:.0f}", losses.back().x));
}

std::string rate_tile(const RunData& run) {
  const std::string metric = run.rate();
  std::vector<double> rates, extremes;
  for (const ChartPoint& point : means_of(run, "train", metric)) {
    if (std::isfinite(point.y)) rates.push_back(point.y);
  }
  for (const ChartPoint& point : points_of(run, "train", metric)) {
    if (std::isfinite(point.y)) extremes.push_back(point.y);
  }
  if (rates.empty()) return "";
  std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
  const auto [lowest, highest] = std::minmax_element(extremes.begin(), extremes.end());
  const std::string unit = metric == fields::kTokensPerSecond ? "tokens" : "rows";
  return tile(format_count(rates[rates.size() / 2]), unit + " per second, median",
              fmt::format("lowest {}, highest {}", format_count(*lowest), format_count(*highest)));
}

std::string memory_tile(const RunData& run) {
  const Json& session = value_at(run.last_session(), fields::kMemory);  // of a run without a summary yet
  const double predicted =
                   number_at(run.summary, fields::kPredictedMemoryBytes, number_at(session, fields::kPredictedBytes)),
               real = number_at(run.summary, fields::kRealMemoryBytes, number_at(session, fields::kRealBytes));
  const auto size = [](double bytes) { return format_value(bytes, ValueFormat::kSize); };
  if (real > 0 && predicted > 0) {
    return tile(size(real), "memory at the peak of a step",
                fmt::format("predicted {} ({:+.1f}%)", size(predicted), 100 * (predicted / real - 1)));
  }
  if (predicted > 0) return tile(size(predicted), "memory of a step", "predicted; not measured");
  const auto host = points_of(run, "train", fields::kHostMemoryBytes);
  const ChartPoint most = best_of(host, /*higher=*/true);
  return std::isfinite(most.y) ? tile(size(most.y), "memory of the process", "highest logged") : "";
}

std::string step_tile(const RunData& run) {
  const double steps = number_at(run.summary, fields::kSteps, static_cast<double>(run.history.last_step()));
  const double epochs = run.history.count() == 0 ? number_at(run.summary, fields::kEpochs) : run.history.last_epoch();
  if (steps <= 0) return "";
  std::string checkpoints =
      fmt::format("{} checkpoint{} kept", run.checkpoints.size(), run.checkpoints.size() == 1 ? "" : "s");
  return tile(fmt::format("{:.0f}", steps), "steps",
              fmt::format("{:.3g} epochs{}", epochs, run.checkpoints.empty() ? "" : ", " + checkpoints));
}

/// A row of the table of times.
struct Share {
  const char* name;
  double seconds;
  const char* style;
};

std::vector<Share> shares_of_time(const RunData& run) {
  const RunTimes times = run.times();
  const auto [wait, copy, reduce, count] = run.history.shares();
  const double part = times.training / std::max(count, 1.0);
  // The monitor counts the update in all of the training; its share is that of the last session.
  const Json& monitor = value_at(run.last_session(), fields::kUtilisation);
  const double update = std::clamp(number_at(monitor, fields::kUpdate), 0.0, 1.0) * times.training;
  const double compute = std::max(times.training - part * (wait + copy + reduce) - update, 0.0);
  return {{"forward and backward", compute, "c0"},
          {"updating the weights", update, "c2"},
          {"waiting for data", part * wait, "c1"},
          {"copying to the device", part * copy, "c3"},
          {"reducing gradients", part * reduce, "c4"},
          {"evaluation", times.evaluation, "c5"},
          {"saving checkpoints", times.saving, "c6"},
          {"start, test and results", times.total - times.training - times.evaluation - times.saving, "c7"}};
}

}  // namespace

std::string section(std::string_view title, const std::string& content) {
  return content.empty() ? "" : fmt::format("<section><h2>{}</h2>\n{}</section>\n", html(title), content);
}

std::string tile(std::string_view value, std::string_view name, std::string_view remark) {
  return fmt::format("<div class=\"tile\"><span class=\"name\">{}</span><b>{}</b><small>{}</small></div>\n", html(name),
                     html(value), html(remark));
}

std::string table(std::string_view label, const std::vector<std::string>& heads,
                  const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& numeric) {
  const auto is_numeric = [&](size_t i) { return std::find(numeric.begin(), numeric.end(), i) != numeric.end(); };
  std::string out =
      fmt::format("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table>", html(label));
  if (!heads.empty()) out += "<thead><tr>";
  for (size_t i = 0; i < heads.size(); ++i) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", is_numeric(i) ? " class=\"n\"" : "", heads[i]);
  }
  if (!heads.empty()) out += "</tr></thead>";
  out += "<tbody>";
  for (const auto& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out += i == 0 ? fmt::format("<th scope=\"row\">{}</th>", row[i])
                    : fmt::format("<td{}>{}</td>", is_numeric(i) ? " class=\"n\"" : "", row[i]);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string run_head(const RunData& run) {
  const Outcome outcome = run.outcome();
  constexpr const char* kClasses[] = {"good", "stopped", "failed", "running"};
  const Json& session = run.last_session();
  std::string text = fmt::format(
      "<header><h1>{} <span class=\"badge {}\">{}</span></h1>\n<p class=\"sub\">{}</p>\n", html(run.name),
      kClasses[static_cast<int>(outcome.kind)], html(outcome.word),
      html(join({text_at(run.run, fields::kProgram), outcome.reason, date(number_at(session, fields::kStarted, kNan)),
                 text_at(value_at(session, fields::kHost), fields::kName)},
                " · ")));
  const bool failed = outcome.kind == Outcome::Kind::kFailed && run.error.is_object();
  if (failed) {
    const std::string got = text_at(run.error, "got"), expected = text_at(run.error, "expected");
    text +=
        fmt::format("<div class=\"problem\" role=\"note\"><b>{}</b> {}<br>{}</div>\n",
                    html("error[" + text_at(run.error, "id") + "]"),
                    html(join({text_at(run.error, "where"), text_at(run.error, "field"), text_at(run.error, "problem"),
                               got.empty() ? "" : "got " + got, expected.empty() ? "" : "expected " + expected},
                              ": ")),
                    html(text_at(run.error, "hint")));
  }
  const Json& warnings = value_at(run.summary, fields::kWarnings);
  if (warnings.is_array()) {
    for (const Json& warning : warnings) {
      if (warning.is_string())
        text += fmt::format("<p class=\"warning\">Warning: {}</p>\n", html(warning.get<std::string>()));
    }
  }
  return text + "</header>\n";
}

std::string run_tiles(const RunData& run) {
  const RunTimes times = run.times();
  const std::string time = times.total > 0
                               ? tile(format_duration(times.total), "time",
                                      fmt::format("{} in training steps", percent(times.training / times.total)))
                               : "";
  const std::string tiles =
      result_tiles(run) + best_tile(run) + step_tile(run) + time + rate_tile(run) + memory_tile(run);
  int count = 0;
  for (size_t at = 0; (at = tiles.find("<div class=\"tile\">", at)) != tiles.npos; ++at) ++count;
  // The first tile of an odd number is twice as wide, so that all rows are full.
  const int even = std::max(count + count % 2, 2);
  return fmt::format("<div class=\"tiles{}\" style=\"--wide:{};--middle:{}\">\n{}</div>\n",
                     count % 2 == 1 ? " odd" : "", even <= 6 ? even : even / 2, std::max(even / 2, 2), tiles);
}

std::string run_advice(const RunData& run) {
  std::string items;
  const Json& advice = value_at(value_at(run.last_session(), fields::kUtilisation), fields::kAdvice);
  if (advice.is_array()) {
    for (const Json& text : advice) {
      if (text.is_string()) items += fmt::format("<li>{}</li>", html(text.get<std::string>()));
    }
  }
  return items.empty() ? "" : section("Advice of the monitor", "<ul class=\"advice\">" + items + "</ul>\n");
}

std::string run_time(const RunData& run) {
  const double total = run.times().total;
  if (total <= 0) return "";
  std::string bar;
  std::vector<std::vector<std::string>> rows;
  for (const Share& share : shares_of_time(run)) {
    if (share.seconds < 0.0005 * total) continue;
    bar += fmt::format("<i class=\"{}\" style=\"width:{:.2f}%\"></i>", share.style, 100 * share.seconds / total);
    const std::string duration =
        share.seconds < 10 ? fmt::format("{:.2f} s", share.seconds) : format_duration(share.seconds);
    rows.push_back({fmt::format("<i class=\"swatch {}\"></i>{}", share.style, share.name), duration,
                    percent(share.seconds / total)});
  }
  return section("Where the time went", "<div class=\"bar\" aria-hidden=\"true\">" + bar + "</div>\n" +
                                            table("Where the time went", {"part", "time", "share"}, rows, {1, 2}));
}

std::string run_settings(const RunData& run) {
  std::vector<std::vector<std::string>> rows;
  for (const RunSetting& setting : run.settings) {
    if (run.is_default(setting)) continue;
    rows.push_back(
        {"<code>" + html(setting.name) + "</code>", "<code>" + html(setting.value) + "</code>", html(setting.source)});
  }
  if (rows.empty()) return "";
  std::string content = table("Settings", {"setting", "value", "from"}, rows);
  std::vector<std::vector<std::string>> all;
  for (const RunSetting& setting : run.settings) {
    if (run.is_default(setting)) {
      all.push_back({"<code>" + html(setting.name) + "</code>", "<code>" + html(setting.value) + "</code>",
                     html(setting.source)});
    }
  }
  content += fmt::format("<details><summary>{} settings with default values</summary>{}</details>\n", all.size(),
                         table("Default settings", {"setting", "value", "from"}, all));
  return section(fmt::format("Settings that differ from the defaults ({} of {})", rows.size(), run.settings.size()),
                 content);
}

std::string run_repeat(const RunData& run) {
  const Json& sessions = run.sessions();
  std::string text;
  for (const Json& session : sessions) {
    const std::string command = command_of(session);
    if (!command.empty()) text += (text.empty() ? "" : "\n") + command;
  }
  std::string content;
  const auto block = [&](const char* label, const std::string& commands) {
    content += fmt::format("<p>{}</p><pre tabindex=\"0\" aria-label=\"{}\">{}</pre>\n", html(label), html(label),
                           html(commands));
  };
  if (!text.empty()) {
    block("As typed:", "cd " + shell_word(text_at(sessions[0], fields::kFolder)) + "\n" + text);
  }
  const std::string program = text_at(run.run, fields::kProgram);
  if (!program.empty() && sessions.size() == 1 && !run.settings.empty()) {
    block("From its configuration, into another folder:",
          fmt::format("{} --config {} --output_dir {}", shell_word(program), shell_word(run.folder + "/config.yaml"),
                      shell_word(run.folder + "-again")));
  }
  return section("Repeat this run", content);
}

std::string run_machine(const RunData& run) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& name, const std::string& text) {
    if (!text.empty()) rows.push_back({html(name), html(text)});
  };
  const Json& session = run.last_session();
  const Json& facts = value_at(session, fields::kFacts);
  if (facts.is_array()) {
    for (const Json& fact : facts) {
      if (!fact.is_array() || fact.size() != 2 || !fact[0].is_string() || !fact[1].is_string()) continue;
      const std::string name = fact[0].get<std::string>(), text = html(fact[1].get<std::string>());
      if (name == "warning:") continue;  // at the top of the page
      if (name.empty() && !rows.empty()) {
        rows.back()[1] += "<br>" + text;
      } else {
        rows.push_back({html(name), text});
      }
    }
  }
  const Json& host = value_at(session, fields::kHost);
  add("host", text_at(host, fields::kName));
  const double processors = number_at(host, fields::kProcessors), memory = number_at(host, fields::kMemoryBytes);
  add("processor",
      join({text_at(host, fields::kProcessor), processors > 0 ? fmt::format("{:.0f} usable", processors) : "",
            memory > 0 ? format_value(memory, ValueFormat::kSize) : ""},
           ", "));
  add("system", text_at(host, fields::kSystem));
  const Json& versions =
      session.is_null() ? value_at(run.summary, fields::kVersions) : value_at(session, fields::kVersions);
  std::vector<std::string> list;
  if (versions.is_object()) {
    for (const auto& [name, version] : versions.items()) {
      if (version.is_string()) list.push_back(name + " " + version.get<std::string>());
    }
  }
  add("versions", join(list, ", "));
  add("commit of the working directory", text_at(session, fields::kCommit));
  int number = 0;
  for (const Json& each : run.sessions()) {
    const double started = number_at(each, fields::kStarted, kNan), ended = number_at(each, fields::kEnded, kNan);
    std::string changes;
    const Json& changed = value_at(each, fields::kChanges);
    if (changed.is_array()) {
      for (const Json& change : changed) changes += change.is_string() ? "; " + change.get<std::string>() : "";
    }
    add(fmt::format("session {}", ++number),
        fmt::format("{}, from step {:.0f}{}: {}{}", date(started), number_at(each, fields::kFirstStep),
                    std::isfinite(ended)
                        ? fmt::format("{}, {}",
                                      value_at(each, fields::kLastStep).is_number()
                                          ? fmt::format(" to {:.0f}", number_at(each, fields::kLastStep))
                                          : "",
                                      format_duration(ended - started))
                        : "",
                    text_at(each, fields::kExitReason).empty() ? "no end recorded" : text_at(each, fields::kExitReason),
                    changes));
  }
  add("checkpoints", join(run.checkpoints, ", "));
  return rows.empty() ? "" : section("Run and machine", table("Run and machine", {}, rows));
}

}  // namespace trainkit::detail
