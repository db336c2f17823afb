// SPDX-License-Identifier: Apache-2.0
/// \file
/// How long computations report their progress.
#pragma once

#include <cstdint>
#include <string_view>

namespace shiftrt {

/// Receives reports of a long computation, on the thread that called the library. An exception thrown by one of its
/// functions stops the computation and reaches the caller; this is the way to cancel a single call.
class Progress {
 public:
  virtual ~Progress() = default;
  /// A new phase begins; the one before has ended.
  /// \param phase what is done, for people
  /// \param total units of work that the phase has
  virtual void Begin(std::string_view phase, int64_t total) = 0;
  /// More of the phase is done.
  /// \param count units of work since the last report
  virtual void Advance(int64_t count) = 0;
  /// A single computation within the phase takes long, such as the solution of a large linear system. Called at its
  /// begin, between its parts and at its end. Unless it is overridden, it calls Advance(0).
  /// The first argument says for people what is computed, and the second how much of it is done: 0 at the begin of the
  /// computation, 1 at its end.
  virtual void Within(std::string_view /*what*/, double /*share*/) { Advance(0); }
  /// The phase has ended.
  virtual void End() = 0;
};

}  // namespace shiftrt
