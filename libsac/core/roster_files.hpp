// SPDX-License-Identifier: Apache-2.0
// How the roster's files are named, and what is in a client's.
#pragma once

#include <string>

#include "roster.hpp"

namespace sac {

// client.number.pool.namespace.capacity.access
std::string table_file(const Roster::Table &table);
// False: no table's file has this name.
bool parse_table(const std::string &name, Roster::Table &out);

// Writes a client's file, whole. Throws Error(SAC_E_SYSTEM).
void write_client(int directory, const std::string &name, const Id &boot,
                  const Roster::Client &client, const std::string &path);
// False: it is not whole, or of another boot.
bool read_client(int directory, const std::string &name, const Id &boot, Roster::Client &out);

}  // namespace sac
