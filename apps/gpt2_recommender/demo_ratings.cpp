#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gpt2_recommender/ratings.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

struct Movie {
  std::string title;            // Latin-1
  std::vector<int64_t> genres;  // ascending, in movielens_genres()
};
struct Person {
  bool male;
  size_t age;  // in movielens_ages()
  int64_t occupation;
  std::vector<int64_t> likes;  // genres
};
struct World {
  std::vector<Movie> movies;
  std::vector<Person> people;
  std::vector<Rating> ratings;  // grouped by user
};

constexpr int64_t kGenres = 19;  // those of MovieLens 100k, "unknown" first

std::vector<int64_t> pick_genres(RandomStream& random, int64_t count) {
  std::vector<int64_t> picked;
  while (static_cast<int64_t>(picked.size()) < count) {
    const auto genre = static_cast<int64_t>(1 + random.below(kGenres - 1));
    if (std::find(picked.begin(), picked.end(), genre) == picked.end()) picked.push_back(genre);
  }
  std::sort(picked.begin(), picked.end());
  return picked;
}

Movie make_movie(RandomStream random, int64_t number) {
  static constexpr const char* kAdjectives[] = {"Silent", "Last",   "Hidden",  "Golden",  "Mis\xe9rable",
                                                "Long",   "Broken", "Distant", "Caf\xe9", "Brave"};
  static constexpr const char* kNouns[] = {"River", "Summer", "Garden", "Train", "Harbour", "Winter", "Letter", "Road"};
  return {.title = fmt::format("{} {} {} ({})", kAdjectives[random.below(std::size(kAdjectives))],
                               kNouns[random.below(std::size(kNouns))], number + 1, 1930 + random.below(70)),
          .genres = pick_genres(random, static_cast<int64_t>(1 + random.below(3)))};
}

Person make_person(RandomStream random) {
  return {.male = random.below(100) < 70,
          .age = random.below(detail::movielens_ages().size()),
          .occupation = static_cast<int64_t>(random.below(detail::movielens_occupations().size())),
          .likes = pick_genres(random, 3)};
}

int64_t common_genres(const Person& person, const Movie& movie) {
  return std::count_if(movie.genres.begin(), movie.genres.end(), [&](int64_t genre) {
    return std::find(person.likes.begin(), person.likes.end(), genre) != person.likes.end();
  });
}

/// Draws the movies that a person rates: those with the largest log weight plus Gumbel noise, which is a weighted draw
/// without replacement. Popular movies and movies of liked genres weigh more.
std::vector<Rating> rate(const World& world, int32_t user, RandomStream random, int64_t count) {
  const Person& person = world.people[user];
  std::vector<std::pair<double, int32_t>> wanted;
  for (int32_t item = 0; item < static_cast<int32_t>(world.movies.size()); ++item) {
    const double weight =
        1.6 * static_cast<double>(common_genres(person, world.movies[item])) - 0.7 * std::log(item + 4.0);
    wanted.emplace_back(weight - std::log(-std::log(std::max(random.uniform(), 1e-300))), item);
  }
  count = std::min<int64_t>(count, static_cast<int64_t>(wanted.size()) / 2);
  std::partial_sort(wanted.begin(), wanted.begin() + count, wanted.end(), std::greater<>());
  std::vector<Rating> rows;
  int64_t time = 874'724'710 + static_cast<int64_t>(random.below(10'000'000));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t item = wanted[i].second;
    const auto stars = std::clamp<int64_t>(
        static_cast<int64_t>(2 + random.below(3)) + common_genres(person, world.movies[item]), 1, 5);
    time += static_cast<int64_t>(random.below(500));
    rows.push_back({.user = user, .item = item, .value = static_cast<float>(stars), .time = time});
  }
  return rows;
}

World make_world(const DemoRatingsOptions& options) {
  World world;
  for (int64_t i = 0; i < options.items; ++i) {
    world.movies.push_back(make_movie(RandomStream(hash_key(options.seed, 1, i)), i));
  }
  for (int64_t u = 0; u < options.users; ++u) {
    world.people.push_back(make_person(RandomStream(hash_key(options.seed, 2, u))));
    RandomStream random(hash_key(options.seed, 3, u));
    const auto count = static_cast<int64_t>(options.ratings_per_user / 2 + random.below(options.ratings_per_user));
    const auto rows = rate(world, static_cast<int32_t>(u), random, count);
    world.ratings.insert(world.ratings.end(), rows.begin(), rows.end());
  }
  return world;
}

std::string rating_lines(const World& world, const char* separator) {
  std::string text;
  for (const Rating& r : world.ratings) {
    text += fmt::format("{1}{0}{2}{0}{3}{0}{4}\n", separator, r.user + 1, r.item + 1, static_cast<int>(r.value),
                        r.time.whole);
  }
  return text;
}

std::vector<std::string> genre_names(const Movie& movie) {
  std::vector<std::string> names;
  for (const int64_t genre : movie.genres) names.push_back(detail::movielens_genres()[genre]);
  return names;
}

std::string utf8(const std::string& latin1) {
  std::string text;
  for (const char c : latin1) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += {static_cast<char>(0xc0 | byte >> 6), static_cast<char>(0x80 | (byte & 0x3f))};
    }
  }
  return text;
}

using Files = std::vector<std::pair<std::string, std::string>>;

Files files_1m(const World& world) {
  std::string movies, users;
  for (size_t i = 0; i < world.movies.size(); ++i) {
    movies += fmt::format("{}::{}::{}\n", i + 1, world.movies[i].title, fmt::join(genre_names(world.movies[i]), "|"));
  }
  for (size_t u = 0; u < world.people.size(); ++u) {
    const Person& person = world.people[u];
    users += fmt::format("{}::{}::{}::{}::{:05}\n", u + 1, person.male ? 'M' : 'F',
                         detail::movielens_ages()[person.age].first, person.occupation, 10'000 + 7 * u);
  }
  return {{"ratings.dat", rating_lines(world, "::")}, {"movies.dat", movies}, {"users.dat", users}};
}

Files files_100k(const World& world) {
  std::string movies, users;
  for (size_t i = 0; i < world.movies.size(); ++i) {
    const Movie& movie = world.movies[i];
    movies += fmt::format("{}|{}|01-Jan-1995||http://localhost/{}", i + 1, movie.title, i + 1);
    for (int64_t genre = 0; genre < kGenres; ++genre) {
      const bool has = std::find(movie.genres.begin(), movie.genres.end(), genre) != movie.genres.end();
      movies += has ? "|1" : "|0";
    }
    movies += "\n";
  }
  for (size_t u = 0; u < world.people.size(); ++u) {
    const Person& person = world.people[u];
    users += fmt::format("{}|{}|{}|{}|{:05}\n", u + 1, std::max<int64_t>(7, detail::movielens_ages()[person.age].first),
                         person.male ? 'M' : 'F', detail::movielens_occupations()[person.occupation], 10'000 + 7 * u);
  }
  return {{"u.data", rating_lines(world, "\t")}, {"u.item", movies}, {"u.user", users}};
}

Files files_recbole(const World& world) {
  std::string items = "item_id:token\tmovie_title:token_seq\tclass:token_seq\n";
  std::string users = "user_id:token\tage:token\tgender:token\toccupation:token\n";
  for (size_t i = 0; i < world.movies.size(); ++i) {
    items += fmt::format("{}\t{}\t{}\n", i + 1, world.movies[i].title, fmt::join(genre_names(world.movies[i]), " "));
  }
  for (size_t u = 0; u < world.people.size(); ++u) {
    const Person& person = world.people[u];
    users += fmt::format("{}\t{}\t{}\t{}\n", u + 1, detail::movielens_ages()[person.age].second,
                         person.male ? 'M' : 'F', detail::movielens_occupations()[person.occupation]);
  }
  const std::string header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n";
  return {{"demo.inter", header + rating_lines(world, "\t")}, {"demo.item", items}, {"demo.user", users}};
}

}  // namespace

Ratings make_demo_ratings(const DemoRatingsOptions& options) {
  World world = make_world(options);
  Ratings made{.format = "made up", .path = "nowhere", .rows = std::move(world.ratings)};
  for (size_t u = 0; u < world.people.size(); ++u) {
    const Person& person = world.people[u];
    made.users.push_back({std::to_string(u + 1), fmt::format("{}, age {}, {}", person.male ? "male" : "female",
                                                             detail::movielens_ages()[person.age].second,
                                                             detail::movielens_occupations()[person.occupation])});
  }
  std::vector<int32_t> numbers(world.movies.size(), -1);
  for (Rating& row : made.rows) {
    int32_t& number = numbers[row.item];
    if (number < 0) {
      number = static_cast<int32_t>(made.items.size());
      const Movie& movie = world.movies[row.item];
      made.items.push_back({std::to_string(row.item + 1),
                            fmt::format("{}. {}", utf8(movie.title), fmt::join(genre_names(movie), ", "))});
    }
    row.item = number;
  }
  return made;
}

absl::Status write_demo_ratings(const std::string& folder, const DemoRatingsOptions& options) {
  const World world = make_world(options);
  for (const auto& [name, files] :
       {std::pair("ml-1m", files_1m(world)), {"ml-100k", files_100k(world)}, {"recbole", files_recbole(world)}}) {
    TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().create_directories(folder + "/" + name));
    for (const auto& [file, text] : files) TRAINKIT_RETURN_IF_ERROR(write_file_atomically(directory, file, text));
  }
  return absl::OkStatus();
}

}  // namespace trainkit::rec
