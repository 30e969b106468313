# How each dependency is found. `./dev setup` installs what is missing; nothing of others is kept in this tree.
find_package(Torch 2.11 REQUIRED)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
