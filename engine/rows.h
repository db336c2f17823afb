// Activations where a decoder has them: in host memory, or in a GPU's.
#pragma once

#include "runtime/tensor.h"

namespace shiftrt {

// A view of float32 rows (tokens, hidden). Whoever takes a MatrixView gets them brought to the host; who takes Rows
// leaves them where they are.
class Rows {
 public:
  class Carrier {
   public:
    // Which GPU's rows these are.
    virtual int gpu() const = 0;
    // Brings them over. The view is valid until the next call.
    virtual MatrixView<const float> ToHost(MatrixView<const float> on_device) = 0;

   protected:
    ~Carrier() = default;
  };

  Rows(MatrixView<const float> on_host) : view_(on_host) {}
  Rows(MatrixView<float> on_host) : view_(on_host) {}
  Rows(MatrixView<const float> on_device, Carrier* carrier) : view_(on_device), carrier_(carrier) {}

  int64_t count() const { return view_.rows; }
  int64_t hidden() const { return view_.cols; }
  bool on_host() const { return carrier_ == nullptr; }
  int gpu() const { return carrier_->gpu(); }  // not of rows on the host
  // Of the memory that on_host() tells.
  MatrixView<const float> there() const { return view_; }
  operator MatrixView<const float>() const { return carrier_ == nullptr ? view_ : carrier_->ToHost(view_); }

 private:
  MatrixView<const float> view_;
  Carrier* carrier_ = nullptr;
};

}  // namespace shiftrt
