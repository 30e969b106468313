// Rows of tables, arrays in folders, and random parts of data sets.
#include "trainkit/data/table_dataset.h"

#include <ATen/Functions.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/data/array_folder.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Table table_of(const TempDir& dir, const std::string& text, const std::string& name = "t.csv") {
  std::ofstream(dir / name) << text;
  return Table::open(dir / name).value();
}

/// All rows as one batch.
Batch batch_of_all(std::shared_ptr<const Dataset> rows) {
  const int64_t size = rows->size();
  auto loader =
      Prefetcher::create(std::move(rows), SequentialSampler(size), {.batch_size = size, .num_workers = 0}).value();
  return loader->next().value().value().to(at::kCPU);
}

constexpr char kFlats[] =
    "size,city,rooms,id,price\n"
    "50,Bonn,2,a,100\n"
    "70,Kiel,NA,b,140.5\n"
    "90,Bonn,3,c,180\n"
    "60,Jena,4,d,120\n";

}  // namespace

TEST_CASE("A schema standardises numbers, numbers categories and marks missing values by the training rows",
          "[data][table]") {
  const TempDir dir;
  const Table table = table_of(dir, kFlats);
  const std::vector<int64_t> training = {0, 1, 2};
  const TableSchema schema = TableSchema::learn(table, training, {.target = "price", .ignore = {"id"}}).value();
  REQUIRE(schema.features().size() == 3);
  CHECK(schema.features()[0].mean == Approx(70));
  CHECK(schema.features()[0].deviation == Approx(std::sqrt(800.0 / 3)));
  CHECK(schema.features()[1].values == std::vector<std::string>{"Bonn", "Kiel"});
  CHECK(schema.features()[2].has_missing);
  CHECK(schema.target().mean == Approx((100 + 140.5 + 180) / 3));
  CHECK(schema.width() == 1 + 3 + 2);
  const auto rows = TableDataset::create(table, schema).value();
  const Batch batch = batch_of_all(rows);
  CHECK(batch["y"].equal(at::tensor({100.0, 140.5, 180.0, 120.0}, at::kDouble)));
  CHECK(batch["categories"].flatten().equal(at::tensor({1, 2, 1, 0}, at::kLong)));
  CHECK(rows->unknown() == std::map<std::string, int64_t>{{"city", 1}});
  CHECK(rows->describe(2) == dir / "t.csv" + ":4");
  const at::Tensor inputs = schema.inputs(batch);
  REQUIRE(inputs.sizes() == at::IntArrayRef({4, 6}));
  // Numbers, then whether `rooms` is missing, then unknown city, Bonn, Kiel.
  CHECK(inputs.select(1, 2).equal(at::tensor({0.0F, 1.0F, 0.0F, 0.0F})));
  CHECK(inputs[1][1].item<float>() == 0);
  CHECK(inputs[3].slice(0, 3).equal(at::tensor({1.0F, 0.0F, 0.0F})));
}

TEST_CASE("A stored schema makes the same inputs of rows in memory", "[data][table]") {
  const TempDir dir;
  const Table table = table_of(dir, kFlats);
  std::vector<int64_t> all(4);
  std::iota(all.begin(), all.end(), 0);
  const TableSchema learned = TableSchema::learn(table, all, {.target = "price", .ignore = {"id"}}).value();
  REQUIRE(learned.save(dir / "table.json").ok());
  const TableSchema schema = TableSchema::load(dir / "table.json").value();
  const at::Tensor expected = learned.inputs(batch_of_all(TableDataset::create(table, learned).value()));
  const std::vector<std::map<std::string, TableValue>> rows = {{{"size", 50.0}, {"city", "Bonn"}, {"rooms", "2"}},
                                                               {{"size", "70"}, {"city", "Kiel"}},
                                                               {{"size", 90.0}, {"city", "Bonn"}, {"rooms", 3.0}},
                                                               {{"size", 60.0}, {"city", "Jena"}, {"rooms", " 4 "}}};
  const auto dataset = TableDataset::create(rows, schema).value();
  CHECK(schema.inputs(batch_of_all(dataset)).equal(expected));
  CHECK(dataset->unknown().empty());
  CHECK(dataset->describe(1) == "row 1");
  const auto error = [&](std::map<std::string, TableValue> row) {
    return error_line(TableDataset::create(std::vector{std::move(row)}, schema).status());
  };
  CHECK_THAT(error({{"sise", 1.0}}), Catch::Contains("error[data.row]") && Catch::Contains("sise"));
  CHECK_THAT(error({{"size", "big"}}), Catch::Contains("row 0: size: not a number"));
}

TEST_CASE("A target of texts is a class", "[data][table]") {
  const TempDir dir;
  const Table table = table_of(dir, "x,kind\n1,cat\n2,dog\n3,ape\n");
  const std::vector<int64_t> training = {0, 1};
  const TableSchema schema = TableSchema::learn(table, training, {.target = "kind"}).value();
  CHECK(schema.target().values == std::vector<std::string>{"ape", "cat", "dog"});
  CHECK(batch_of_all(TableDataset::create(table, schema).value())["y"].equal(at::tensor({1, 2, 0}, at::kLong)));
  const Table numbers = table_of(dir, "x,kind\n1,7\n2,9\n", "n.csv");
  const TableSchema classes =
      TableSchema::learn(numbers, training, {.target = "kind", .target_is_class = true}).value();
  CHECK(classes.target().values == std::vector<std::string>{"7", "9"});
}

TEST_CASE("Errors of a table name the line and the column", "[data][table]") {
  const TempDir dir;
  const std::vector<int64_t> training = {0, 1};
  const Table table = table_of(dir, "x,y\n1,2\n3,4\n");
  const TableSchema schema = TableSchema::learn(table, training, {.target = "y"}).value();
  const auto error = [&](const std::string& text) {
    return error_line(TableDataset::create(table_of(dir, text, "other.csv"), schema).status());
  };
  CHECK_THAT(error("x,y\n1,2\nbad,4\n"), Catch::Contains("other.csv:3: x: not a number (got 'bad'"));
  CHECK_THAT(error("x,y\n1,\n"), Catch::Contains("other.csv:2: y: the target is missing"));
  CHECK_THAT(error("z,y\n1,2\n"), Catch::Contains("x"));
  CHECK(TableDataset::create(table_of(dir, "x\n1\n", "other.csv"), schema).value()->fields().size() == 1);
  CHECK_FALSE(TableSchema::learn(table, training, {.target = "price"}).ok());
  CHECK_FALSE(TableSchema::learn(table, training, {.target = "y", .ignore = {"no"}}).ok());
  std::string names = "name,y\n";
  for (int i = 0; i < 20; ++i) names += "n" + std::to_string(i) + ",1\n";
  std::vector<int64_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  CHECK_THAT(
      error_line(
          TableSchema::learn(table_of(dir, names, "names.csv"), all, {.target = "y", .max_categories = 10}).status()),
      Catch::Contains("20 different texts"));
}

TEST_CASE("A damaged schema is refused", "[data][table]") {
  const TempDir dir;
  const auto load = [&](const std::string& text) {
    std::ofstream(dir / "table.json") << text;
    return TableSchema::load(dir / "table.json").status();
  };
  const std::string number = R"({"name":"x","mean":0,"deviation":1,"has_missing":false})";
  CHECK(load(R"({"target":)" + number + R"(,"features":[],"missing":[""]})").ok());
  for (const std::string& text :
       {std::string("{"), std::string("[]"), R"({"target":)" + number + R"(,"features":[{}],"missing":[]})",
        R"({"target":)" + number + R"(,"features":[{"name":"c","values":["b","a"]}],"missing":[]})",
        R"({"target":)" + number +
            R"(,"features":[{"name":"x","mean":0,"deviation":0,"has_missing":false}],"missing":[]})",
        R"({"target":)" + number + R"(,"features":[],"missing":[1]})"}) {
    INFO(text);
    CHECK(id_of(load(text)) == "run.file");
  }
}

TEST_CASE("An array folder has the classes and files in ascending order", "[data][array_folder]") {
  const TempDir dir;
  for (const char* folder : {"b", "a", "empty", ".hidden"}) std::filesystem::create_directories(dir / folder);
  REQUIRE(write_npy(dir / "b/2.npy", at::full({2, 3}, 2.0)).ok());
  REQUIRE(write_npy(dir / "b/1.npy", at::full({2, 3}, 1.0)).ok());
  REQUIRE(write_npy(dir / "a/x.npy", at::full({2, 3}, 0.0)).ok());
  std::ofstream(dir / "a/notes.txt") << "no array";
  const auto rows = ArrayFolder::open(dir.path().string()).value();
  CHECK(rows->classes() == std::vector<std::string>{"a", "b"});
  CHECK(rows->name(1) == "b/1.npy");
  const Batch batch = batch_of_all(rows);
  CHECK(batch["y"].equal(at::tensor({0, 1, 1}, at::kLong)));
  CHECK(batch["x"].select(1, 0).select(1, 0).equal(at::tensor({0.0F, 1.0F, 2.0F})));
  REQUIRE(write_npy(dir / "b/3.npy", at::full({3, 3}, 2.0)).ok());
  const auto other = ArrayFolder::open(dir.path().string()).value();
  auto loader = Prefetcher::create(other, SequentialSampler(4), {.batch_size = 4}).value();
  CHECK_THAT(error_line(loader->next().status()), Catch::Contains("b/3.npy") && Catch::Contains("another shape"));
  CHECK(id_of(ArrayFolder::open(dir / "empty").status()) == "data.folder");
  CHECK(id_of(ArrayFolder::open(dir / "none").status()) == "data.folder");
}
