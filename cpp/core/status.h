// What can go wrong in the core, as a value. The edge (cpp/bind) turns a Status into the exception of the same code.
#pragma once

#include <string>
#include <utility>

namespace memsvc {

enum class Code { kOk, kInvalid, kMalformed, kNotFound, kFull, kClosed, kDuplicate, kGap };

class Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace memsvc
