#include "trainkit/app/plan.h"

#include "app/plan/epoch_time.h"

namespace trainkit {

void add_plan_flags(ConfigParser& parser, PlanFlags& flags) {
  const OptionGroup add(parser, "Plan");
  const OptionNeed gpu{"gpu", {""}, /*excludes=*/true};
  std::vector<std::string> names;
  for (const detail::GpuSheet& sheet : detail::gpu_sheets()) names.push_back(sheet.name);
  add("devices", &flags.devices,
      {.help = "Number of devices; this machine need not have them. Default: those that the flags of a run name, else "
               "1, or as many as the trainer's guide has.",
       .min = 1,
       .max = 1 << 20});
  add("gpu", &flags.gpu,
      {.help = "Device whose data sheet gives the speed and the default of --gpu_memory.",
       .choices = names,
       .metavar = "NAME"});
  add("efficiency", &flags.efficiency,
      {.help = "Share of the data sheet's operations that training reaches. The default is the published value of "
               "ResNet-50 in half precision on an RTX 4090.",
       .max = 1,
       .above = 0,
       .needs = {gpu}});
  add("link", &flags.link,
      {.help = "Link between devices, as --inside of trainkit scale. The default is half of PCIe 4, through the host.",
       .metavar = "LINK",
       .needs = {gpu}});
  add("workers", &flags.workers, {.help = "Loader workers over all devices.", .min = 1, .max = 4096, .needs = {gpu}});
  add("row_rate", &flags.row_rate,
      {.help = "Rows that one worker reads and decodes per second. 0: unknown.", .min = 0, .needs = {gpu}});
  add("read_gbs", &flags.read_gbs,
      {.help = "Read speed of decoded rows in GB/s.", .above = 0, .metavar = "GB/S", .needs = {gpu}});
}

}  // namespace trainkit
