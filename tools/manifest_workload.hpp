// One entry of a manifest's "workloads".
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/manifest.hpp"

namespace foveal::tools {

/// Limits of the file's numbers. Lengths and page numbers are int32 in the engine; a seed up to
/// 2^53 - 1 survives every JSON reader.
inline constexpr std::int64_t kMaxWorkloadDimension = 2147483647;
inline constexpr std::int64_t kMaxWorkloadHeaddim = 512;
inline constexpr std::int64_t kMaxWorkloadPageSize = 65536;
inline constexpr std::int64_t kMaxWorkloadSeed = (std::int64_t{1} << 53) - 1;
inline constexpr double kMaxWorkloadSoftcap = 1e6;
inline constexpr std::size_t kMaxWorkloadIdBytes = 100;

/// `where` names the manifest and the entry's place in it.
Result<Workload> parse_workload(const nlohmann::json& entry, const std::string& source,
                                const std::string& where, const std::string& base_directory);

}  // namespace foveal::tools
